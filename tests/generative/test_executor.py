"""What a play is checked for besides the oracle's values: what is loaded, formats, and how many plays bound a value."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.internal.conjecture import providers

from conformance.checks.subject import Subject
from conformance.generative.programs import compare
from conformance.generative.programs.batch_strategies import LARGE_BATCHES, ROWS, large_batches
from conformance.generative.programs.case import GeneratedCase, Predict, Restore, Save, StartAgain, Train
from conformance.generative.programs.data import GeneratedBatch, GeneratedModel
from conformance.generative.programs.ensemble import Ensemble
from conformance.generative.programs.judge import against_the_oracle
from conformance.generative.programs.subject_executor import SubjectExecutor
from conformance.generative.programs.variations import CutWindows
from conformance.search.adapter_settings import generative_settings
from conformance.search.failure import Failure
from conformance.search.search import Search
from fixtures.arrays import Array
from fixtures.layers import Activation, Dense, Embedding, Flatten, Head, Heads, Layer
from fixtures.recipe import SGD, Precision, Recipe
from frameworks.reference import ReferenceFramework
from frameworks.reference.training.decisions import Arrays
from frameworks.reference.training.trainer import ReferenceTrainer
from frameworks.registry import load

MODEL = GeneratedModel((Dense(3), Heads((Head("a", 2),))), (5,), (("a", "squared_error"),), exact=False)
MICRO = GeneratedBatch(3)
SAVED = GeneratedCase(
    MODEL, Recipe(SGD(2.0**-4, 0.5)), (StartAgain(), Train((MICRO,)), Save(), Restore(), Train((MICRO,)))
)
LOW = GeneratedCase(MODEL, Recipe(SGD(0.03), Precision("O1", "bfloat16")), (StartAgain(), Train((MICRO,))))

TWO_HEADS = GeneratedModel(
    (Embedding(5, 1), Flatten(), Dense(67), Activation("relu"), Heads((Head("a", 4), Head("b", 4)))),
    (3,),
    (("a", "squared_error"), ("b", "squared_error")),
    seed=9,
    gain=7,
)
LARGE = CutWindows(
    GeneratedCase(
        TWO_HEADS, Recipe(SGD(0.03), Precision("O1", "bfloat16"), seed=1), (Train((GeneratedBatch(4, seed=50),)),)
    ),
    (1, 2, 1),
)
"""Outputs that bfloat16 nearly holds, so that hardly any member rounds them the other way."""


class LoadsOneUnitHigher(ReferenceTrainer):
    """A load gives masters that are one unit in the last place off."""

    def load_state(self, arrays: Arrays) -> None:
        super().load_state({n: _higher(a) if n.startswith("master/") else a for n, a in arrays.items()})


class EvaluationMovesMasters(ReferenceTrainer):
    """An evaluation leaves masters one unit in the last place off."""

    def predict(self, inputs: Array) -> Arrays:
        outputs = super().predict(inputs)
        self.masters = {name: _higher(values) for name, values in self.masters.items()}
        return outputs


class EvaluationMovesTheStream(ReferenceTrainer):
    """An evaluation moves the random stream, that no oracle's is set against, on."""

    def predict(self, inputs: Array) -> Arrays:
        self.draws += 1
        return super().predict(inputs)


def _higher(values: Array) -> Array:
    """Values one unit in the last place of float32 above."""
    return np.nextafter(values.astype(np.float32), np.float32(np.inf)).astype(np.float64)


class ShowsDoublesOnceTrained(ReferenceTrainer):
    """Moments are shown in float64 from the second update on."""

    def optimizer_state(self) -> dict[str, Array]:
        state = super().optimizer_state()
        return {n: a.astype(np.float64) if "/" in n and self.steps > 1 else a for n, a in state.items()}


def subject(trainer: type[ReferenceTrainer] = ReferenceTrainer) -> Subject:
    """The reference with another trainer."""
    return Subject(type("Changed", (ReferenceFramework,), {"trainer_class": trainer})("cpu"), 0)


def failure(trainer: type[ReferenceTrainer], case: GeneratedCase) -> Failure | None:
    """What is wrong with a case on the reference with another trainer."""
    judged = subject(trainer)
    return against_the_oracle(judged, generative_settings(ReferenceFramework("cpu")), case)


LOOKED = replace(SAVED, program=(StartAgain(), Train((MICRO,)), Predict(MICRO), Train((MICRO,))))


@pytest.mark.parametrize(
    ("trainer", "case", "name", "text"),
    [
        (LoadsOneUnitHigher, SAVED, "loaded", ""),
        (EvaluationMovesMasters, LOOKED, "master/", "which only reads"),
        (EvaluationMovesTheStream, LOOKED, "random/", "which only reads"),
        (ShowsDoublesOnceTrained, SAVED, "optimizer/momentum/", "got float64, want float32 as before"),
    ],
)
def test_against_the_oracle_sees_what_rounding_would_hide(
    trainer: type[ReferenceTrainer], case: GeneratedCase, name: str, text: str
) -> None:
    assert failure(ReferenceTrainer, case) is None
    failed = failure(trainer, case)
    assert failed is not None
    assert failed.name.startswith(name)
    assert text in failed.text


def test_exceeded_looks_at_few_members_first_and_at_more_where_needed() -> None:
    ensemble = Ensemble(subject().conventions, LOW, frozenset(), 0)
    fewer, further = list(ensemble.fewer()), list(ensemble.further())
    assert fewer[-1] == ensemble.members
    assert [len(members) for members in (*fewer, *further)] == [2, 4, 8, 9, 13, 17, 21, 25, 29, 33]
    assert all(set(map(id, some)) <= set(map(id, more)) for some, more in pairwise((*fewer, *further)))
    name = "parameter/0.weight"
    exact = (ensemble.nearest.observations[1] or {})[name]
    bounds = [compare._bound(name, 1, exact, ensemble, members) for members in (*fewer, *further)]
    known = [bound for bound in bounds if bound is not None]
    assert known == sorted(known)
    assert len(known) == len(bounds)
    assert known[0] > 0.0
    beyond = exact + np.where(np.arange(exact.size).reshape(exact.shape) == 0, 2.0 * known[-1], 0.0).astype(exact.dtype)
    assert compare._exceeded(name, 1, beyond, exact, ensemble, ensemble.fewer()) == known[3]
    assert compare._exceeded(name, 1, beyond, exact, ensemble, ensemble.further()) == known[-1]
    few = Ensemble(subject().conventions, LOW, frozenset(), 0)
    assert compare._exceeded(name, 1, exact, exact, few, few.fewer()) is None
    assert len(few._rounded) == 2


@pytest.mark.parametrize("seed", [0, 13])
def test_two_programs_may_both_be_off_by_what_rounding_to_nearest_takes_away(seed: int) -> None:
    judged = replace(subject(), seed=seed)
    assert LARGE.failure(judged, generative_settings(judged.framework)) is None


def test_a_play_is_bounded_from_the_exact_value_where_all_members_are_the_oracle() -> None:
    ensemble = Ensemble(subject().conventions, LARGE.case, frozenset(), 0)
    name = "master/4.a.bias"
    exact = (ensemble.nearest.observations[0] or {})[name]
    bound = compare._bound(name, 0, exact, ensemble, ensemble.members)
    off = compare.distance(exact, (ensemble.unrounded.observations[0] or {})[name])
    assert bound is not None
    assert off > bound
    assert compare._from_exact_value(name, 0, ensemble) == bound + off


@pytest.mark.parametrize("case", [LOW, LARGE.case], ids=["low", "large"])
def test_some_members_allow_no_value_more_than_all(case: GeneratedCase) -> None:
    ensemble = Ensemble(subject().conventions, case, frozenset(), 0)
    assert ensemble.rounded(2) == ensemble.members[:2]
    for place, exact in enumerate(ensemble.nearest.observations):
        for name, value in (exact or {}).items():
            bounds = [compare._bound(name, place, value, ensemble, members) for members in ensemble.fewer()]
            allowed = [float("inf") if bound is None else bound for bound in bounds]
            assert allowed == sorted(allowed), name


def test_micro_batches_that_weigh_too_much_are_seen_where_values_are_large() -> None:
    judged = Subject(load("tools.faults.reference.composition:ItemsCountedInWholeBatches", "cpu"))
    failed = LARGE.failure(judged, generative_settings(judged.framework))
    assert failed is not None
    assert failed.name == "result/gradient_norm"


def test_search_stops_at_the_smallest_case_or_at_the_end_of_its_time() -> None:
    search: Search[int, str] = Search(lambda number: "large" if number > 10 else None)
    search.run(st.integers(0, 1000), 200, 0, 5.0)
    assert search.smallest == (11, "large")
    drawn: list[int] = []
    late: Search[int, str] = Search(lambda _: "wrong")
    late.run(st.integers(0, 1000).map(lambda number: drawn.append(number) or number), 200, 0, 1e-9)
    assert late.smallest is not None
    assert (late.judged, len(drawn)) == (1, 2)


def test_search_draws_do_not_depend_on_loaded_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(providers, "_get_local_constants", lambda: pytest.fail("source files are read"))
    cases: list[int] = []
    Search(cases.append).run(st.integers(0, 10**6), 200, 0, 0.0)
    assert len(set(cases)) > 100


def test_search_leaves_out_empty_cases_and_stops_when_it_has_enough() -> None:
    cases: list[int] = []
    search: Search[int, None] = Search(cases.append, enough=3)
    search.run(st.integers(0, 9).map(lambda n: n if n % 2 else None), 60, 0, 0.0)
    assert len(cases) == search.judged == 3
    assert all(n % 2 for n in cases)


@pytest.mark.parametrize("seed", [0, 1])
def test_half_of_the_data_lie_column_by_column(seed: int, tmp_path: Path) -> None:
    executor = SubjectExecutor(subject(), GeneratedCase(MODEL, Recipe(), (StartAgain(), Predict(MICRO))), tmp_path)
    batch = executor.batch(GeneratedBatch(3, seed=seed))
    assert batch.inputs.flags.f_contiguous == bool(seed)


@pytest.mark.parametrize(("layers", "most"), [((), ROWS), ((Dense(33),), max(LARGE_BATCHES))])
@pytest.mark.parametrize("classes", [4, 1100])
def test_rows_that_16_bits_do_not_count_are_drawn_for_narrow_models(
    layers: tuple[Layer, ...], most: int, classes: int
) -> None:
    drawn = GeneratedModel((*layers, Heads((Head("a", 2), Head("b", classes)))), (5,), (("a", "squared_error"),))
    assert max(large_batches(drawn)) == (most if classes == 4 else max(LARGE_BATCHES))


def test_search_ends_with_what_a_judge_raises() -> None:
    cases: list[int] = []

    def judge(number: int) -> None:
        cases.append(number)
        if number > 10:
            raise ZeroDivisionError(number)

    with pytest.raises(ZeroDivisionError) as raised:
        Search(judge).run(st.integers(0, 100), 100, 0, 5.0)
    assert raised.value.args == (cases[-1],)
    assert max(cases[:-1], default=0) <= 10


@pytest.mark.parametrize(("left", "judged"), [([0.0, 0.0], False), ([0.0, 2.0], True)])
def test_zeros_of_a_window_that_overflows_are_judged_unless_unscaling_left_nothing(
    left: list[float], judged: bool
) -> None:
    exact = {"result/gradient.a": np.array([np.nan, 1.0]), "result/gradient.b": np.array([3.0, 2.0])}
    mine = {"result/gradient.a": np.array([np.nan, 0.0]), "result/gradient.b": np.array(left)}
    sides = compare._where_finite(mine, exact)
    assert any(not np.array_equal(sides[0][name], sides[1][name]) for name in exact) == judged
