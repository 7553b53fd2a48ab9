"""Every clause about a device passes on a twin that costs what it should, and fails on one that does not."""

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from conformance.checks import subprocesses
from conformance.checks.evidence import Abstention, Verdict, Violation
from conformance.checks.subject import Subject, need_device
from conformance.suites.cost import test_cost_device as suite
from conformance.test_ids.inventory import inventory
from conformance.timing import costs
from fixtures.data import sincos_batch, token_batch
from fixtures.models import encoder, sincos
from fixtures.recipe import FLOAT16
from frameworks.contract import SUPPORTED, Capability, Declaration, Unsupported
from frameworks.reference import ReferenceFramework
from results.record.reading import load
from tests.support import own_loops
from tests.support.suite_runs import judge, outcomes

Run = Callable[[own_loops.Device], Verdict]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fixtures that the reference trains in no time, in the proportions of those that fill a device."""
    monkeypatch.setattr(suite, "products", lambda: costs.equal_blocks(4, 4, 4, inputs=2))
    monkeypatch.setattr(suite, "transformer_block", lambda: (encoder(4, 2, 1, 4), token_batch(2, 4, ragged=False)))
    monkeypatch.setattr(suite, "example", lambda: (sincos(4), sincos_batch(8)))
    monkeypatch.setattr(suite, "EPOCHS", 61)
    monkeypatch.setattr(suite, "WIDTH", 8)
    monkeypatch.setattr(suite, "ROWS", 64)
    monkeypatch.setattr(suite, "WORKSPACE", 0)


def run_of(test: Callable[..., None], *args: object) -> Run:
    """Runs a test of the suite."""

    def run(framework: own_loops.Device) -> Verdict:
        verdict = Verdict()
        test(Subject(framework), verdict, *args)
        return verdict

    return run


recomputation = run_of(suite.test_recomputation_costs_one_forward_pass, None)
example = run_of(suite.test_time_of_sine_and_cosine_example, FLOAT16)
mixed, block = (
    {tf32: run_of(test, tf32, FLOAT16) for tf32 in ("default", "off", "on")}
    for test in (suite.test_mixed_precision_is_no_slower, suite.test_mixed_precision_speeds_up_transformer_block)
)
TIMED = {
    "recomputation": (recomputation, 1.33, 1.0, []),
    "products, default": (mixed["default"], 0.5, 1.0, [None]),
    "products, off": (mixed["off"], 0.5, 1.0, [False]),
    "products, on": (mixed["on"], 0.5 / 0.6, 0.6, [True]),
    "block, default": (block["default"], 0.5, 1.0, [None]),
    "block, off": (block["off"], 0.5, 1.0, [False]),
    "block, on": (block["on"], 0.5 / 0.6, 0.6, [True]),
    "example": (example, 0.5, 1.0, []),
}


@pytest.mark.parametrize("name", TIMED)
def test_a_device_that_costs_what_it_should_passes(name: str) -> None:
    run, factor, plain, scopes = TIMED[name]
    framework = own_loops.Device()
    (measured,) = run(framework).measurements.values()
    assert framework.scopes == scopes
    unit, samples, control = measured
    assert (unit, len(samples), len(control)) == ("s", 60, 60)
    assert np.median(samples) / np.median(control) == pytest.approx(factor, rel=0.01)
    assert np.median(control) == pytest.approx(1e-3 * plain, rel=0.002)


@pytest.mark.parametrize(
    ("run", "times", "signature"),
    [
        (recomputation, {"recomputed": 1.67}, "slower-than-one-forward"),
        (recomputation, {"recomputed": 0.9}, "faster-than-plain"),
        (mixed["off"], {"mixed": 1.1}, "slower-than-float32"),
        (mixed["on"], {"mixed": 0.8}, "slower-than-float32"),
        (block["off"], {"mixed": 1.1}, "slower-than-float32"),
    ],
)
def test_an_interval_wholly_beyond_its_bound_fails(run: Run, times: dict[str, float], signature: str) -> None:
    with pytest.raises(Violation) as caught:
        run(own_loops.Device(times=times))
    assert caught.value.signature == signature


@pytest.mark.parametrize("run", [block["on"], block["default"], example])
def test_what_has_no_bound_is_timed_and_not_judged(run: Run) -> None:
    assert run(own_loops.Device(times={"mixed": 1.1})).checks == []


@pytest.mark.parametrize("name", TIMED)
def test_a_plain_step_that_differs_from_itself_leaves_the_clause(name: str) -> None:
    with pytest.raises(Abstention, match="the same step in two runs differs: ratio"):
        TIMED[name][0](own_loops.Device(drift=0.1))


def test_the_example_is_its_thousand_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(suite, "EPOCHS", 1000)
    monkeypatch.setattr(suite, "compare_times", lambda *args: asked.append(args[-1]))
    example(own_loops.Device())
    assert asked == [17]
    assert 60 * 17 >= 1000


def peak(framework: own_loops.Device, technique: str, folder: Path) -> Verdict:
    return run_of(suite.test_allocator_peak_matches_byte_count, folder, technique)(framework)


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Takes peaks in this process."""

    def measure_peak(subject: Subject, model: object, recipe: object, window: object, path: Path) -> int:
        arguments = (subject.framework.device, subject.framework.mode, model, subject.complete_recipe(recipe), window)
        framework_class = type(subject.framework)
        del path
        return subprocesses.PeakTask(f"{framework_class.__module__}:{framework_class.__qualname__}", *arguments).run()

    monkeypatch.setattr(subprocesses, "peak_bytes", measure_peak)


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("technique", suite.TECHNIQUES)
def test_a_peak_that_follows_the_count_passes(technique: str, tmp_path: Path) -> None:
    result = peak(own_loops.Device(), technique, tmp_path)
    assert [unit for unit, _, _ in result.measurements.values()] == ["B"] * 4
    assert result.checks[-1].bound is not None
    assert 0.1 < result.checks[-1].bound < 0.25


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("broken", "technique", "signature"),
    [
        (own_loops.KeepsFloat32, "O1-float16", "apart"),
        (own_loops.KeepsFloat32, "O1-bfloat16", "apart"),
        (own_loops.KeepsSegments, "recomputed", "apart"),
        (own_loops.KeepsMicroBatches, "accumulated", "apart"),
        (own_loops.NoPeak, "recomputed", "no-peak"),
    ],
)
def test_a_peak_that_stays_or_is_of_weights_alone_fails(
    broken: type[own_loops.Device], technique: str, signature: str, tmp_path: Path
) -> None:
    with pytest.raises(Violation) as caught:
        peak(broken(), technique, tmp_path)
    assert caught.value.signature == signature


def test_a_peak_is_taken_in_a_process_of_its_own(tmp_path: Path) -> None:
    subject, (model, batch) = Subject(own_loops.Device()), costs.equal_blocks(2, 4, 4)
    result = subprocesses.peak_bytes(subject, model, costs.RECIPE, (batch,), tmp_path / "peak")
    run = subject.trainer(model, costs.RECIPE)
    run.update((batch,))
    assert result == run.peak_bytes() > sum(value.nbytes for value in model.weights(0).values())


def test_a_cpu_is_no_device_whatever_it_declares() -> None:
    with pytest.raises(Unsupported) as caught:
        need_device(Subject(own_loops.Device("cpu")))
    assert (caught.value.capability, caught.value.reason) == (Capability.PEAK_BYTES, "no device")
    need_device(Subject(own_loops.Device("cuda")))


def test_without_a_peak_or_the_switch_only_the_default_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    framework = own_loops.Device()
    refused = {Capability.PEAK_BYTES: Declaration(False, "none here"), Capability.TF32: Declaration(False, "no switch")}
    monkeypatch.setattr(framework, "declares", lambda capability: refused.get(capability, SUPPORTED))
    with pytest.raises(Unsupported, match="none here"):
        need_device(Subject(framework))
    del refused[Capability.PEAK_BYTES]
    assert len(mixed["default"](framework).measurements) == 1
    for tf32 in ("off", "on"):
        with pytest.raises(Unsupported, match="no switch"):
            mixed[tf32](framework)


def test_the_mark_selects_what_needs_a_device(tmp_path: Path) -> None:
    result = judge("-m", "gpu", f"--record={tmp_path / 'record.json'}")
    assert result.status == 0
    record = load(tmp_path / "record.json")
    files = {inventory()[verdict.case.partition("[")[0]].file for verdict in record.verdicts}
    assert files == {"cost/test_cost_device.py"}
    assert {verdict.outcome for verdict in record.verdicts} == {*outcomes(record, "cost.mixed-speed")}
    assert {verdict.reason for verdict in record.verdicts} == {"no device"}


def test_a_clock_is_the_processors_on_a_cpu_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    clocks: list[object] = []
    monkeypatch.setattr("frameworks.base.framework.measure_elapsed", lambda _, clock: clocks.append(clock) or 0)
    framework = ReferenceFramework("cpu")
    for framework.device in ("cpu", "cuda"):
        framework.measure_time(lambda: None)
    assert clocks == [time.process_time_ns, time.perf_counter_ns]
