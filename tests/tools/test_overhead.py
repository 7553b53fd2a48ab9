"""The page of overheads says what the committed samples give, and samples come only from sides that train the same."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fixtures.arrays import Array
from fixtures.model import Batch
from frameworks.native_loop import CASES, FIXTURES, parts
from frameworks.reference import ReferenceFramework
from tests.support.suite_runs import one_page
from tools.benchmarks.overhead import __main__ as command
from tools.benchmarks.overhead import samples
from tools.benchmarks.overhead.samples import STORE, CaseTimes, Overhead

OVERHEAD = Overhead(
    "some", "1", "cpu eager", "a machine", "2026-01-01", 1e-7, (CaseTimes("x", (100,) * 60, (103,) * 60),)
)


class Same:
    """The reference's own step in the place of one written by hand; `factor` times its loss is what it tells."""

    def __init__(self, factor: float = 1.0) -> None:
        self.factor = factor

    def make(
        self, fixture: str, mixed: bool, weights: Mapping[str, Array], batch: Batch, device: str
    ) -> Callable[[], float]:
        (case,) = (case for case in CASES if (case.fixture, case.mixed) == (fixture, mixed))
        trainer = ReferenceFramework(device).trainer(FIXTURES[fixture]()[0], case.recipe, weights)
        return lambda: self.factor * trainer.update((batch,)).loss


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """One case, and a smaller one."""
    from fixtures.data import digits_batch
    from fixtures.models import digits_mlp

    monkeypatch.setitem(FIXTURES, "digits-mlp", lambda: (digits_mlp((8,)), digits_batch(4)))
    monkeypatch.setattr(command, "CASES", CASES[:1])


def test_samples_are_read_as_they_were_written_a_row_a_line(tmp_path: Path) -> None:
    sample = replace(OVERHEAD, cases=(CaseTimes("a", (1, 2), (3, 4)), CaseTimes("b", (), ())))
    store = replace(STORE, folder=tmp_path / "samples")
    assert store.all() == []
    store.save(sample, "some")
    assert store.load("some") == sample
    assert store.all() == [sample]
    head, *rows, _ = store.path("some").read_text("utf-8").splitlines()
    assert head.endswith('"tick_s": 1e-07, "cases": [')
    assert rows == ['{"case":"a","native":[1,2],"adapter":[3,4]},', '{"case":"b","native":[],"adapter":[]}']
    assert sample.label == "some 1, cpu eager"


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"cases": 3}', '{"cases": [{"case": 4}]}', "\udcff", "[[1"])
def test_a_file_without_samples_is_refused_by_name(content: str, tmp_path: Path) -> None:
    (tmp_path / "some.json").write_text(content, "utf-8", "surrogateescape")
    with pytest.raises(ValueError, match=r"some\.json has no valid samples"):
        replace(STORE, folder=tmp_path).load("some")


def test_no_committed_overhead_is_beyond_what_is_wanted() -> None:
    committed = STORE.all()
    assert {"torch", "tf", "paddle", "jax"} <= {overhead.framework for overhead in committed}
    assert [line for overhead in committed for line in samples.beyond(overhead)] == []


@pytest.mark.parametrize("fixture", FIXTURES)
def test_every_weight_of_a_fixture_belongs_to_one_part(fixture: str) -> None:
    model, _ = FIXTURES[fixture]()
    paths = sorted({name.rpartition(".")[0] for name in model.parameter_shapes()})
    assert sorted(parts(fixture).values()) == paths


@pytest.mark.usefixtures("quick")
def test_sides_that_train_the_same_are_timed_in_pairs() -> None:
    result = command.overhead(ReferenceFramework("cpu"), Same(), pairs=3)
    (case,) = result.cases
    assert (result.framework, case.case, len(case.native), len(case.adapter)) == ("reference", "digits-mlp O0", 3, 3)
    assert all(0 < ticks * result.tick_s < 10 for ticks in (*case.native, *case.adapter))


@pytest.mark.usefixtures("quick")
def test_a_side_that_trains_something_else_is_not_timed() -> None:
    with pytest.raises(command.TrainingMismatch, match=r"reference, digits-mlp O0: loss 0 through the adapter: got "):
        command.overhead(ReferenceFramework("cpu"), Same(1.01), pairs=3)


def test_what_a_framework_does_not_support_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    from frameworks.contract import SUPPORTED, Capability, Declaration

    refused = {Capability.O1_FLOAT16: Declaration(False, "not here")}
    framework = ReferenceFramework("cpu")
    monkeypatch.setattr(framework, "declares", lambda capability: refused.get(capability, SUPPORTED))
    assert [case.label for case in command.supported(framework)] == ["digits-mlp O0", "encoder O0"]


def test_only_an_interval_beyond_the_limit_is_a_problem() -> None:
    def beyond(ticks: int) -> list[str]:
        return samples.beyond(replace(OVERHEAD, cases=(CaseTimes("x", (100,) * 60, (ticks,) * 60),)))

    assert beyond(105) == []
    (line,) = beyond(106)
    assert line.startswith("some, x: ratio 1.06")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["mxnet"], "unknown framework 'mxnet'"),
        (["reference"], "'reference' has no native training loop"),
        (["reference", "--pairs", "59"], "59 pairs are too few: 60 are needed"),
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
    def measured(ticks: int) -> Any:
        return lambda *_: replace(OVERHEAD, cases=(CaseTimes("x", (100,) * 60, (ticks,) * 60),))

    page = one_page(tmp_path, monkeypatch, "nothing to fill\n")
    store = replace(STORE, folder=tmp_path / "samples")
    for module in (command, samples):
        monkeypatch.setattr(module, "STORE", store)
    monkeypatch.setattr(command, "steps", lambda *_: Same())
    monkeypatch.setattr(command, "overhead", measured(103))
    assert command.main(["reference"]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
    page.write_text("<!-- overhead: begin -->\n<!-- overhead: end -->\n")
    assert command.main(["reference"]) == 0
    assert "| some 1, cpu eager | x | 0.01 ms | × 1.030 | 1.030 to 1.030 | 0 µs |" in page.read_text()
    assert store.load("reference").cases[0].adapter == (103,) * 60
    monkeypatch.setattr(command, "overhead", measured(106))
    assert command.main(["reference"]) == 1
    assert "want at most 1.05" in capsys.readouterr().err
