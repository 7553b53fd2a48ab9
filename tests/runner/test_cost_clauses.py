"""The clauses about times and bytes that need no device: brief steps are timed, and a device's grain is allowed."""

import ast
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest

from conformance.checks.evidence import Verdict
from conformance.checks.subject import Subject
from conformance.runner import cost
from conformance.runner.plugin import TIMED
from conformance.suites.cost import test_cost as suite
from conformance.test_ids.inventory import SUITES, inventory
from conformance.timing import costs
from fixtures.recipe import FLOAT16
from frameworks.reference import ReferenceFramework


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(cost, "processor_model", lambda: "A")
    monkeypatch.setenv("CI", "true")
    path = tmp_path / "costs.toml"
    path.write_text('processor = "A"\n[quick]\ntorch = 100.0\n')
    return path


@pytest.mark.parametrize(
    ("framework", "spent", "over"), [("torch", 104.0, False), ("torch", 106.0, True), ("tf", 900.0, False)]
)
def test_cost_above_the_file_is_too_much(file: Path, framework: str, spent: float, over: bool) -> None:
    line, result = cost.judge(framework, "quick", spent, file)
    assert result is over
    assert line.startswith(f"cost: {spent:.0f} yardsticks of processor time")
    assert ("edit the file and say why" in line) is over


def test_cost_is_not_judged_on_another_processor_or_outside_of_ci(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write_text(file.read_text().replace('"A"', '"B"'))
    assert cost.judge("torch", "quick", 900.0, file) == ("cost: 900 yardsticks of processor time", False)
    file.write_text(file.read_text().replace('"B"', '"A"'))
    monkeypatch.delenv("CI")
    assert not cost.judge("torch", "quick", 900.0, file)[1]


def test_committed_costs_can_be_read_and_the_yardstick_takes_time() -> None:
    _, costs = cost.limits()
    assert all(number > 0 for of_selection in costs.values() for number in of_selection.values())
    assert 0.001 < cost.Yardstick().stop() < 10


SUBJECT = Subject(ReferenceFramework("cpu"))


@pytest.mark.parametrize("factor", [0.5, 9.0])
def test_a_brief_step_is_timed_and_not_judged(monkeypatch: pytest.MonkeyPatch, factor: float) -> None:
    def time_interleaved(
        works: Mapping[str, Callable[[], None]], rounds: int, rng: np.random.Generator, timed: object
    ) -> dict[str, list[int]]:
        factors = {"plain": 1.0, "twin": 1.0, "technique": factor}
        assert (list(works), timed) == (list(factors), SUBJECT.framework.measure_time)
        return {side: [int(x) for x in 1e6 * f * rng.normal(1.0, 0.001, rounds)] for side, f in factors.items()}

    monkeypatch.setattr(costs, "time_interleaved", time_interleaved)
    verdict = Verdict()
    suite.test_time_of_recomputed_steps(SUBJECT, verdict, None)
    suite.test_time_of_mixed_precision_steps(SUBJECT, verdict, FLOAT16)
    assert sorted(verdict.measurements) == ["seconds a step, 4 segments", "seconds a step, O1-float16"]
    for unit, samples, control in verdict.measurements.values():
        assert (unit, len(samples), len(control)) == ("s", 60, 60)
        assert np.median(samples) / np.median(control) == pytest.approx(factor, rel=0.01)
    assert verdict.checks == []


def test_a_sample_of_several_steps_is_told_by_the_step() -> None:
    updates: list[int] = []

    class Counting(ReferenceFramework):
        def measure_time(self, work: Callable[[], object]) -> int:
            before = len(updates)
            work()
            return 1_000_000 * (len(updates) - before)

        def trainer(self, *args: object) -> object:
            trainer = super().trainer(*args)
            update = trainer.update
            trainer.update = lambda window: updates.append(0) or update(window)
            return trainer

    verdict = Verdict()
    costs.compare_times(Subject(Counting("cpu")), verdict, suite.brief(), costs.RECIPE, "some", steps=3)
    ((unit, samples, control),) = verdict.measurements.values()
    assert (unit, set(samples), set(control)) == ("s", {0.001}, {0.001})
    assert len(updates) == 3 * 3 * 63


def test_an_allocators_grain_is_allowed_on_a_device_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    framework = ReferenceFramework("cpu")
    assert suite.slack(Subject(framework), 3) == 8
    monkeypatch.setattr(framework, "device", "cuda")
    assert suite.slack(Subject(framework), 3) == 8 + 3 * 512


def test_what_takes_times_alone_is_what_runs_last() -> None:
    """Other workers wait for the tests whose names lead to `time_interleaved`; the plugin puts those clauses last."""
    timing, timed = {"time_interleaved", "compare_times"}, set[str]()
    for path in sorted(SUITES.rglob("test_*.py")):
        functions = [node for node in ast.parse(path.read_text("utf-8")).body if isinstance(node, ast.FunctionDef)]
        named = {
            function.name: {node.id for node in ast.walk(function) if isinstance(node, ast.Name)}
            for function in functions
        }
        own = {name for name, names in named.items() if names & timing}
        tests = {name for name in named if name.startswith("test_") and (named[name] & (own | timing))}
        timed |= {
            code.clause for code in inventory().values() if code.file.endswith(path.name) and code.function in tests
        }
    assert timed == TIMED
