"""What adapters share: complete tables, inherited refusals, the window, segments and recomputation cases."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, get_args

import pytest

from conformance.checks.evidence import Verdict, Violation
from conformance.checks.outcome import conclude
from conformance.checks.subject import Subject
from conformance.declarations import comparison
from fixtures.data import exact_batch
from fixtures.models import exact_linear
from fixtures.recipe import Recipe, Recompute
from frameworks.adapter_file import Absence, AdapterFile
from frameworks.base import LossLedger, MicroBatch, ending, inner_bounds, over_window, segment_bounds
from frameworks.base.recompute import CLOSED_OVER, FailingRerun, recomputed_call
from frameworks.base.window import AppliedMicroBatch
from frameworks.contract import NOT_OFFERED, Capability, RecomputeCase, Unsupported
from frameworks.operations import CATALOGUE
from frameworks.reference import ReferenceFramework
from frameworks.reference.core.operations import CARRIERS, TENSORS
from results.record.outcomes import Outcome
from tests.support.suite_runs import ROOT

TABLES = {
    "torch": ("OPERATIONS",),
    "tf": ("OPERATIONS", "LOSSES", "NORMALIZATIONS"),
    "paddle": ("OPERATIONS",),
    "jax": ("OPERATIONS",),
}
"""The dictionaries of each adapter's module `operations`; TensorFlow's operations are those of Keras."""


MODULES = {
    "": ("declarations", "framework", "launch", "native_loop", "probes"),
    "core": ("arrays", "layers", "losses", "network", "operations", "saved_bytes", "settings", "ways"),
    "training": ("checkpoint", "optimizer_probes", "optimizers", "scaler", "trainer"),
    "distributed": ("ranks",),
    "quantization": ("formats", "post_training"),
    "shipped": ("control_flow", "operations_and_layers"),
}
"""What every adapter of a framework has, by package."""


def modules(folder: str) -> list[Path]:
    """The modules of a package, without those of packages in it."""
    return sorted((ROOT / "frameworks" / folder).glob("*.py"))


@pytest.mark.parametrize("package", MODULES)
@pytest.mark.parametrize("adapter", TABLES)
def test_every_adapter_has_the_same_modules(adapter: str, package: str) -> None:
    shared = {path.stem for path in modules("keras_common")} if adapter == "tf" else set()
    assert set(MODULES[package]) - {path.stem for path in modules(f"{adapter}/{package}")} - shared == set()


def keys(adapter: str) -> set[str]:
    """The names in an adapter's tables of operations, read from the source, for its framework may not be installed."""
    folder = {"tf": "keras_common"}.get(adapter, f"{adapter}/core")
    tree = ast.parse((ROOT / "frameworks" / folder / "operations.py").read_text(encoding="utf-8"))
    tables = TABLES[adapter]
    assigned = [node for node in ast.walk(tree) if isinstance(node, ast.AnnAssign) and isinstance(node.value, ast.Dict)]
    chosen = [node.value for node in assigned if isinstance(node.target, ast.Name) and node.target.id in tables]
    assert len(chosen) == len(tables), f"{adapter}: one dictionary each of {tables}"
    return {key.value for value in chosen if isinstance(value, ast.Dict) for key in value.keys if _is_name(key)}


def _is_name(key: ast.expr | None) -> bool:
    return isinstance(key, ast.Constant) and isinstance(key.value, str)


@pytest.mark.parametrize("adapter", TABLES)
def test_every_adapter_has_every_operation_of_the_catalogue_and_no_other(adapter: str) -> None:
    assert keys(adapter) == set(CATALOGUE)


def test_the_reference_has_every_operation_of_the_catalogue_and_no_other() -> None:
    assert {*CARRIERS, *TENSORS} == set(CATALOGUE)


class WithoutAverage(ReferenceFramework):
    """An adapter that says nothing about the average of the weights."""

    def supported(self) -> Collection[Capability]:
        return {*super().supported()} - {Capability.AVERAGE}


class RefusesAverage(WithoutAverage):
    """An adapter that refuses the average of the weights with a reason and has no try of it."""

    def refusals(self) -> Mapping[Capability, str]:
        return {**super().refusals(), Capability.AVERAGE: "it has none"}


def test_what_an_adapter_says_nothing_about_is_refused_for_the_default_reason() -> None:
    framework = WithoutAverage()
    assert framework.declares(Capability.AVERAGE) == NOT_OFFERED
    with pytest.raises(Unsupported, match="this adapter does not offer it") as refusal:
        framework.trainer(exact_linear(), Recipe(average=0.5))
    judgement = conclude(framework, refusal.value, ())
    assert (judgement.outcome, judgement.reason) == (Outcome.NOT_OFFERED, NOT_OFFERED.reason)
    assert judgement.message.endswith("(nothing to try)")


@pytest.mark.parametrize(
    ("words", "names", "outcome"),
    [
        (("no_such",), ("averages",), Outcome.UNSUPPORTED),
        (("AVER",), (), Outcome.MISDECLARED),
        ((), ("average",), Outcome.MISDECLARED),
    ],
)
def test_an_absent_feature_is_looked_for_by_name(
    words: tuple[str, ...], names: tuple[str, ...], outcome: Outcome, monkeypatch: pytest.MonkeyPatch
) -> None:
    framework = WithoutAverage()
    absence = Absence((Capability.AVERAGE,), "it has none", ("no_such_module", "numpy"), words, names)
    monkeypatch.setattr(framework, "_file", AdapterFile(absent=(absence,)))
    with pytest.raises(Unsupported, match="it has none") as refusal:
        framework.trainer(exact_linear(), Recipe(average=0.5))
    assert conclude(framework, refusal.value, ()).outcome is outcome


def test_an_absence_without_a_place_to_search_does_not_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    framework = WithoutAverage()
    absence = Absence((Capability.AVERAGE,), "it has none", ("no_such_module",), ("average",))
    monkeypatch.setattr(framework, "_file", AdapterFile(absent=(absence,)))
    with pytest.raises(Unsupported, match="it has none") as refusal:
        framework.trainer(exact_linear(), Recipe(average=0.5))
    assert conclude(framework, refusal.value, ()).outcome is Outcome.NOT_OFFERED
    with pytest.raises(Violation, match="a refusal was tried"):
        comparison.compare(Subject(framework, 0), Verdict(), Capability.AVERAGE)


def test_an_absence_may_be_of_some_modes() -> None:
    file = AdapterFile(absent=(Absence(("a",), "b", (), ("c",), modes=("eager",)),))
    assert file.absence("a", "eager") is not None
    assert (file.absence("a", "graph"), file.absence("b", "eager")) == (None, None)


def test_an_inherited_refusal_alone_holds_without_a_try() -> None:
    def compare(framework: ReferenceFramework) -> None:
        comparison.compare(Subject(framework, 0), Verdict(), Capability.AVERAGE)

    with pytest.raises(Unsupported):
        compare(WithoutAverage())
    with pytest.raises(Violation, match="a refusal was tried"):
        compare(RefusesAverage())


def test_a_verb_that_an_adapter_leaves_out_refuses_for_the_declared_reason() -> None:
    framework = ReferenceFramework()
    with pytest.raises(Unsupported) as refusal:
        framework.trainer(exact_linear(), Recipe()).peak_bytes()
    assert refusal.value.reason == framework.declares(Capability.PEAK_BYTES).reason


def recorded_call(case: RecomputeCase) -> tuple[Any, list[Any]]:
    """The value of a case on numbers, and how the recomputation call was called."""
    calls: list[Any] = []

    def run(function: Callable[..., Any], *args: Any, **named: Any) -> Any:
        calls.append((args, named))
        return function(*args, **named)

    rerun = FailingRerun()

    def failing(x: int, w: int) -> int:
        rerun.begin()
        return x * w

    return recomputed_call(case, run, lambda x, w: x * w, failing, 2, 3), calls


PASSED: dict[str, list[Any]] = {
    "plain": [],
    "positional": [((2, 3), {})],
    "tuple": [(((2, 3),), {})],
    "list": [(([2, 3],), {})],
    "dict": [(({"x": 2, "w": 3},), {})],
    "keyword": [((), {"x": 2, "w": 3})],
    "no-grad-input": [((2,), {})],
    "weights-changed": [((2,), {})],
    "raises": [((2, 3), {})],
}


@pytest.mark.parametrize("case", get_args(RecomputeCase))
def test_each_recomputation_case_passes_its_arguments_as_it_is_named(case: RecomputeCase) -> None:
    assert recorded_call(case) == (6, PASSED[case])
    assert (case in CLOSED_OVER) == (PASSED[case] == [((2,), {})])


def test_a_recomputation_case_that_does_not_exist_is_an_error() -> None:
    with pytest.raises(ValueError, match="no recomputation case 'backwards'"):
        recorded_call("backwards")  # type: ignore[arg-type]


def test_the_second_run_of_a_failing_function_raises() -> None:
    rerun = FailingRerun()
    rerun.begin()
    with pytest.raises(RuntimeError, match="the second run"):
        rerun.begin()


def test_segments_follow_one_another_and_cover_all_layers() -> None:
    assert segment_bounds(7, None) == ((0, 7),)
    assert segment_bounds(7, Recompute(3)) == ((0, 3), (3, 5), (5, 7))
    assert inner_bounds((3, 6)) == ((3, 5), (5, 6))
    assert inner_bounds((3, 4)) == ((3, 4),)


def test_a_window_gives_each_step_the_items_of_the_whole_window() -> None:
    window = exact_batch().into(4)
    total = sum(batch.items for batch in window)
    assert over_window(window, lambda batch, items: (batch, items)) == [(batch, total) for batch in window]


def test_the_loss_of_a_window_weighs_micro_batches_by_their_items() -> None:
    ledger: LossLedger[MicroBatch] = LossLedger()
    assert math.isnan(ledger.loss())
    assert ledger.add(MicroBatch(6.0, 3), 4) == 2.0
    assert ledger.add(MicroBatch(6.0, 1), 4) == 6.0
    assert (ledger.loss(), ledger.losses()) == (3.0, (2.0, 6.0))
    assert math.isnan(ledger.add(MicroBatch(0.0, 0), 4))
    ledger.empty()
    assert ledger.losses() == ()


def test_a_window_that_its_framework_ends_reports_the_update_that_was_made() -> None:
    first = AppliedMicroBatch(1.0, 1, 8.0, applied=True, rate=0.5)
    second = AppliedMicroBatch(1.0, 1, 4.0, rate=0.25)
    assert ending([first, second]) == (True, 8.0, 0.5)
    assert ending([second]) == (False, 4.0, 0.25)
    with pytest.raises(ValueError, match="without any micro-batch"):
        ending([])
