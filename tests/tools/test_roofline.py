"""The roofline counts what can be counted by hand, and the page says what the committed samples give."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conformance.timing import costs
from fixtures.data import exact_batch, sincos_batch, token_batch
from fixtures.models import blocks, digits_convolution, encoder, exact_linear, sincos
from fixtures.recipe import FLOAT16, FLOAT32, SGD, Adam
from frameworks.contract import SUPPORTED, Capability, Declaration
from frameworks.reference import ReferenceFramework
from tests.support import devices
from tests.support.suite_runs import one_page
from tools.benchmarks.roofline import __main__ as command
from tools.benchmarks.roofline import cases, samples
from tools.benchmarks.roofline.counting import least_bytes, operations
from tools.benchmarks.roofline.samples import STORE, Roofline, StepTimes

ROOFLINE = Roofline(
    "some",
    "1",
    "cpu eager",
    "a machine",
    "2026-01-01",
    1e-7,
    {"float32": 2e9},
    1e9,
    (StepTimes("x", "float32", 4_000_000, 10_000, (40_000,) * 3),),
)


class Works:
    """Products and sums that only take a device's time: a microsecond an element, half in 16 bits."""

    def __init__(self, framework: devices.Device) -> None:
        self.framework = framework

    def product(self, size: int, format_name: str, device: str, *, left: bool, right: bool) -> Callable[[], object]:
        assert device == self.framework.device
        factor = 0.5 if format_name.endswith("16") else self.framework.float32
        return lambda: self._take(
            1e-6 * size**3 * factor * {(False, False): 2, (False, True): 1, (True, False): 3}[left, right]
        )

    def addition(self, elements: int, device: str) -> Callable[[], object]:
        assert device == self.framework.device
        return lambda: self._take(1e-6 * elements)

    def _take(self, seconds: float) -> None:
        self.framework.now += seconds


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fixtures, matrices and vectors of no size."""
    fixtures = {
        "products": lambda: costs.equal_blocks(2, 4, 4, inputs=2),
        "transformer block": lambda: (encoder(4, 2, 1, 4), token_batch(2, 4, ragged=False)),
        "sine and cosine": lambda: (sincos(4), sincos_batch(8)),
    }
    monkeypatch.setattr(cases, "FILLING", fixtures)
    monkeypatch.setattr(cases, "BRIEF", fixtures)
    monkeypatch.setattr(command, "SIZES", {"cpu": (8, 16), "cuda": (8, 16)})
    monkeypatch.setattr(command, "ELEMENTS", {"cpu": (64,), "cuda": (64,)})


def test_operations_of_dense_layers_are_those_counted_by_hand() -> None:
    # 8 → 4 on 8 samples: forward 2·8·8·4 = 512 and as many for the weight; inputs ask for no gradient.
    assert operations(exact_linear(), 8) == 2 * 512
    # 2 → 4, 4 → 4, 4 → 10 on 3 samples: 48, 96 and 240 forward.
    assert operations(blocks(2, 4, inputs=2), 3) == 2 * 48 + 3 * 96 + 3 * 240


def test_operations_of_a_convolution_are_those_counted_by_hand() -> None:
    # 28² places of 3·3·1 → 4, after pooling 7² places of 3·3·4 → 8, 7·7·8 → 32, 32 → 10.
    forward = [2 * 784 * 9 * 4, 2 * 49 * 36 * 8, 2 * 392 * 32, 2 * 32 * 10]
    assert operations(digits_convolution(0.0, 4), 5) == 5 * (2 * forward[0] + 3 * sum(forward[1:]))


def test_operations_of_attention_are_those_counted_by_hand() -> None:
    # Width 6, 5 tokens: four projections of 2·5·6·6, scores and mix of 2·5·5·6 each, 6 → 12 → 6, 6 → 4.
    forward = 4 * 360 + 2 * 300 + 2 * 720 + 240
    assert operations(encoder(6, 2, 1, 5), 7) == 7 * 3 * forward


def test_bytes_are_those_counted_by_hand() -> None:
    batch, weights, biases = exact_batch(8), 32, 4
    inputs = 8 * 8 * 4
    # Forward and backward 4 bytes each, gradient and update 4 · 4.
    plain = inputs + weights * (8 + 16) + biases * (4 + 16)
    assert least_bytes(exact_linear(), batch, FLOAT32, SGD()) == plain
    assert least_bytes(exact_linear(), batch, FLOAT32, SGD(momentum=0.9)) == plain + 36 * 8
    assert least_bytes(exact_linear(), batch, FLOAT32, Adam()) == plain + 36 * 16
    # Read for the copy 4, copy written 2, read forward and backward 2 each.
    assert least_bytes(exact_linear(), batch, FLOAT16, SGD()) == inputs + weights * (4 + 2 + 4 + 16) + biases * 20


def test_bytes_of_activations_are_those_that_backward_needs() -> None:
    def activation_bytes(model: Any, batch: Any) -> int:
        """What float16 halves, less what copies add."""
        return least_bytes(model, batch, FLOAT32, SGD()) - least_bytes(model, batch, FLOAT16, SGD())

    # Two blocks keep products and GELUs: 4 tensors of 3·4, of which each way 2 bytes fewer; each of the 64 weights
    # takes 4 bytes fewer twice read, and 6 for the copy: 2 more.
    batch = costs.equal_blocks(2, 4, 3, inputs=2)[1]
    assert activation_bytes(blocks(2, 4, inputs=2), batch) == 4 * 12 * 2 * 2 - 64 * 2
    # ReLU takes its product's place, and float64 heads stay: 2 tensors of 8·4, 4 + 16 weights.
    assert activation_bytes(sincos(4), sincos_batch(8)) == 2 * 32 * 2 * 2 - 20 * 2
    # Embedding, norm, attention's five, norm, product, GELU, product, norm: 7 of the width, one way 2·width twice.
    ids = token_batch(2, 5, ragged=False)
    tensors, weights = 2 * 5 * (6 * (1 + 1 + 5 + 1 + 1 + 1) + 2 * 12), 4 * 36 + 2 * 72 + 24
    assert activation_bytes(encoder(6, 2, 1, 5), ids) == tensors * 2 * 2 - weights * 2


def test_an_embedding_is_read_where_it_is_picked() -> None:
    model = encoder(6, 2, 1, 5)
    more = token_batch(3, 5, ragged=False), token_batch(2, 5, ragged=False)
    sizes = [least_bytes(model, batch, FLOAT32, SGD()) for batch in more]
    per_sample = 5 * 8 + 5 * 6 * 4 + 5 * (6 * 10 + 2 * 12) * 8
    assert sizes[0] - sizes[1] == per_sample
    assert sizes[1] > 4096 * 6 * 16


@pytest.mark.usefixtures("small")
def test_a_device_is_measured_with_and_without_tf32(tmp_path: Path) -> None:
    framework = devices.Device()
    result = command.roofline(framework, Works(framework))
    assert result.rates == {"float32": 2e6, "tensorfloat32": 3e6, "float16": 4e6, "bfloat16": 4e6}
    assert (result.bandwidth, result.place.split()[0]) == (12e6, "cuda")
    assert [(step.fixture, step.format) for step in result.steps] == [
        (f, name) for f in cases.FILLING for name in result.rates
    ]
    times = {step.format: result.seconds(step) for step in result.steps}
    assert times == pytest.approx({"float32": 1e-3, "tensorfloat32": 6e-4, "float16": 5e-4, "bfloat16": 5e-4}, rel=0.01)
    assert {len(step.ticks) for step in result.steps} == {20}
    store = replace(STORE, folder=tmp_path / "some")
    store.save(result, "file")
    assert store.load("file") == result


@pytest.mark.usefixtures("small")
def test_without_a_switch_float32_is_measured_as_it_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    framework = devices.Device()
    refused = {c: Declaration(False, "no") for c in (Capability.TF32, Capability.O1_BFLOAT16, Capability.FLOAT64_HEADS)}
    monkeypatch.setattr(framework, "declares", lambda capability: refused.get(capability, SUPPORTED))
    result = command.roofline(framework, Works(framework))
    assert [*result.rates] == ["float32", "float16"]
    assert {step.fixture for step in result.steps} == {"products", "transformer block"}
    assert framework.scopes == []


def test_a_best_rate_is_the_best_of_all_sizes_and_tries(monkeypatch: pytest.MonkeyPatch) -> None:
    framework, taken = devices.Device(), iter([9, 5, 4, 3, 2, 6, *[8] * 12, *[9] * 12, *[8] * 6])
    monkeypatch.setattr(framework, "timed", lambda *_: 1_000 * next(taken))
    monkeypatch.setattr(command, "SIZES", {"cuda": (100, 200)})
    assert command.rate(framework, Works(framework), "float16") == pytest.approx(2 * 200**3 / 8e-6, rel=1e-6)


def test_the_roof_is_the_longer_of_computing_and_moving() -> None:
    (step,) = ROOFLINE.steps
    assert ROOFLINE.parts(step) == pytest.approx((2e-3, 1e-5))
    assert ROOFLINE.seconds(step) == pytest.approx(4e-3)
    assert ROOFLINE.share(step) == pytest.approx(0.5)
    assert replace(ROOFLINE, bandwidth=5e6).share(step) == pytest.approx(0.5)
    assert replace(ROOFLINE, bandwidth=2.5e6).share(step) == pytest.approx(1.0)


def test_the_committed_samples_count_as_the_code_does() -> None:
    committed = STORE.all()
    assert {"torch", "tf", "paddle", "jax"} <= {roofline.framework for roofline in committed}
    for roofline in committed:
        for step in roofline.steps:
            model, batch = cases.fixtures(roofline.place.split()[0])[step.fixture]()
            (precision,) = {p for p in (FLOAT32, FLOAT16, cases.BFLOAT16) if p.format == step.format} or {FLOAT32}
            assert step.operations == operations(model, len(batch))
            assert step.moved == least_bytes(model, batch, precision, Adam())
            assert 0.0 < roofline.share(step) < 1.1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["mxnet"], "unknown framework 'mxnet'"),
        (["reference"], "no product is written in 'reference'"),
        (["reference", "--device", "tpu"], "sees no device 'tpu'"),
    ],
)
def test_bad_arguments_are_refused_in_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line


def test_the_command_measures_keeps_and_fills_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = one_page(tmp_path, monkeypatch, "nothing to fill\n")
    store = replace(STORE, folder=tmp_path / "samples")
    for module in (command, samples):
        monkeypatch.setattr(module, "STORE", store)
    monkeypatch.setattr(command, "works", lambda _: None)
    monkeypatch.setattr(command, "roofline", lambda *_: ROOFLINE)
    assert command.main(["reference"]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
    page.write_text("<!-- roofline: begin -->\n<!-- roofline: end -->\n")
    assert command.main(["reference"]) == 0
    row = "| some 1, cpu eager | x | float32 | 0.00 GFLOP | 0.0 MB | 2.00 ms | 0.01 ms | 4.00 ms | 50.0% |"
    assert row in page.read_text()
    assert "| some 1, cpu eager | float32 | 2.0 GFLOP/s | 1.0 GB/s |" in page.read_text()
    assert store.load("reference-cpu") == ROOFLINE


def test_the_reference_takes_the_brief_fixtures() -> None:
    assert cases.fixtures("cpu") is cases.BRIEF
    assert cases.fixtures("cuda") is cases.FILLING
    framework = ReferenceFramework("cpu")
    assert [case.format for case in cases.cases(framework)] == ["float32", "float16", "bfloat16"] * 3
    assert np.isfinite(command._best(framework, lambda: sum(range(10_000))))
