"""Generated programs: the laws that judge them, draws, and failures with the clause that they name."""

import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.internal.conjecture import providers

from conformance.checks.evidence import Abstention, Verdict, Violation
from conformance.checks.subject import Profile, Subject
from conformance.generative import coverage
from conformance.generative.masks import OPTIMIZER, MaskedCase, ObservedMask, RevealingModel, Shares
from conformance.generative.operations import NestedScope, ScopedOperation
from conformance.generative.programs.case import (
    Accumulate,
    Apply,
    ApplyGradients,
    DamageOffloaded,
    GeneratedBatch,
    GeneratedCase,
    GeneratedModel,
    Gradients,
    Predict,
    Restore,
    RestoreOverrides,
    Save,
    Spike,
    SpikedGradient,
    StartAgain,
    Train,
    Verb,
)
from conformance.generative.programs.ensemble import MANY_TERMS, Ensemble, Float64Rounding, NotesKinks, OtherRange
from conformance.generative.programs.judge import against_the_oracle
from conformance.generative.programs.triage import find_broken_clause, reachable
from conformance.generative.programs.variations import Program
from conformance.generative.verdicts import LAWS, as_test, explore
from conformance.known_failures.entries import Exclusion
from conformance.known_failures.reading import load_known
from conformance.search import Layout, Search, distance, generative_settings
from conformance.spec.clauses import load_clauses
from fixtures.arrays import Array
from fixtures.model import Dense, Dropout, Embedding, Flatten, Head, Heads
from fixtures.recipe import SGD, Adam, DynamicScaling, Offload, Ranks, Recipe
from frameworks.contract import Framework, Update
from frameworks.reference import ReferenceFramework
from frameworks.reference.core import scope
from frameworks.reference.core.arithmetic import Operations
from frameworks.reference.core.rounding import Nearest
from frameworks.reference.core.tape import Tensor, record_pullbacks
from frameworks.reference.training.decisions import Arrays
from frameworks.reference.training.trainer import ReferenceTrainer
from frameworks.registry import load
from tools.faults.catalogue import faults
from tools.faults.reference import autocast
from tools.faults.reference.accumulation import OneMaskForTheWholeWindow

MODEL = GeneratedModel((Dense(3), Heads((Head("a", 2),))), (5,), (("a", "squared_error"),))
WINDOW = (GeneratedBatch(2), GeneratedBatch(2, seed=1))
SCALED = Recipe(SGD(2.0**-4), scaling=DynamicScaling(initial=16.0, interval=2), accumulation=2)
INFINITE = SpikedGradient(1.0, (Spike(float("inf"), 0.0, 0.0),))
SKIPPED = GeneratedCase(MODEL, SCALED, (StartAgain(), Train(WINDOW), ApplyGradients((INFINITE, SpikedGradient(1.0)))))
RESUMED = GeneratedCase(
    MODEL,
    SCALED.replace(average=0.5),
    (StartAgain(), Train(WINDOW), Train(WINDOW), Save(), Train(WINDOW), Restore(), Predict(GeneratedBatch(1))),
)
ONWARD = GeneratedCase(MODEL, SCALED, (StartAgain(), Train(WINDOW), StartAgain(onward=True), Train(WINDOW)))
READ = GeneratedCase(
    MODEL, SCALED, (StartAgain(), Predict(GeneratedBatch(2)), Train(WINDOW), Predict(GeneratedBatch(2)))
)
TRAIN = Train((GeneratedBatch(4), GeneratedBatch(4, seed=1)))
MOMENTUM = Recipe(SGD(2.0**-4, 0.5), accumulation=2)
FILES = MOMENTUM.replace(offload=Offload(("parameters", "optimizer"), "disk"))
TO_FILES = Restore(under=RestoreOverrides(offload=FILES.offload))
TO_FOUR = Restore(under=RestoreOverrides(Ranks(4, "optimizer")))
NO_SHRINKING = Profile(shrinking_s=0.0)
FAULTS = {fault.label: fault.name for fault in faults() if fault.framework == "reference"}
TOKENS = GeneratedModel((Embedding(17, 4), Heads((Head("a", 2),))), (67,), (("a", "cross_entropy"),), True, exact=False)
TIED = replace(TOKENS, layers=(Embedding(17, 4), Heads((Head("a", 17, tied=0),))))
SPARSE = Recipe(SGD(0.03))
MODEL_INEXACT = replace(MODEL, exact=False)
MICRO = GeneratedBatch(3)
SAVED = GeneratedCase(
    MODEL_INEXACT, Recipe(SGD(2.0**-4, 0.5)), (StartAgain(), Train((MICRO,)), Save(), Restore(), Train((MICRO,)))
)
EVALUATED = replace(SAVED, program=(StartAgain(), Train((MICRO,)), Predict(MICRO), Train((MICRO,))))


def train_and(recipe: Recipe, *verbs: Any) -> GeneratedCase:
    """A case that trains once before these verbs."""
    return GeneratedCase(MODEL, recipe, (StartAgain(), TRAIN, *verbs))


OPEN_WINDOW = (Accumulate(GeneratedBatch(2), 4), Save(), Restore(), Accumulate(GeneratedBatch(2, seed=5), 4), Apply())
RESHAPED = train_and(MOMENTUM.replace(ranks=Ranks(2, "optimizer")), *OPEN_WINDOW, Save(), TO_FOUR, TRAIN)


def subject(name: str = "reference", seed: int = 0) -> Subject:
    return Subject(load(FAULTS.get(name, name), "cpu"), seed, NO_SHRINKING)


@pytest.mark.parametrize("clause", LAWS)
def test_explore_of_the_reference_at_another_seed_passes(clause: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "conformance.generative.verdicts.generative_settings", lambda f: replace(generative_settings(f), programs=48)
    )
    verdict = Verdict()
    explore(subject(seed=3), verdict, (), LAWS[clause])
    assert all(check.passed for check in verdict.checks)
    assert not verdict.checks[-1].measured.startswith("0 drawn")  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("fault", "case", "clause"),
    [
        ("SkipIsAnUpdateOfZeros", SKIPPED, "scaling.skip-is-atomic"),
        ("OverflowKeepsTheCount", SKIPPED, "scaling.automaton"),
        ("AverageIsNotSaved", RESUMED, "resume.bit-identical"),
        ("StartsFromZeros", RESUMED, "master.average-follows-updates"),
        ("OutputsAreReused", READ, "accumulation.evaluation-changes-nothing"),
        ("MomentumStaysWithItsRank", RESHAPED, "sharding.resumes-in-another-size"),
        (
            "AverageIsNotGathered",
            train_and(MOMENTUM.replace(ranks=Ranks(2), average=0.5), TRAIN),
            "sharding.replicas-equal",
        ),
        ("UpdatesACopy", train_and(FILES, TRAIN), "offload.same-bits"),
        ("MissingFilesAreZeros", train_and(MOMENTUM, Save(), TO_FILES, DamageOffloaded()), "offload.disk-fault"),
        ("FilesAreTrusted", train_and(FILES, DamageOffloaded(0.3, 0.9)), "offload.disk-fault"),
    ],
)
def test_find_broken_clause_of_a_fault_names_its_clause(fault: str, case: GeneratedCase, clause: str) -> None:
    broken = subject(fault)
    laws = generative_settings(broken.framework)
    assert against_the_oracle(subject(), laws, case) is None
    failure = against_the_oracle(broken, laws, case)
    assert find_broken_clause(case, failure, lambda other: against_the_oracle(broken, laws, other)).clause == clause


def test_against_the_oracle_of_weights_that_are_not_copied_fails() -> None:
    broken = subject("GivenWeightsAreNotCopied")
    laws = generative_settings(broken.framework)
    assert against_the_oracle(broken, laws, ONWARD).place == 3
    assert against_the_oracle(subject(), laws, ONWARD) is None


def test_explore_of_a_failure_gives_a_test_to_paste_and_the_same_one_for_a_seed() -> None:
    texts = []
    for _ in range(2):
        with pytest.raises(Violation) as raised:
            explore(subject("OverflowKeepsTheCount"), Verdict(), (), LAWS["laws.programs"], 2)
        texts.append(str(raised.value))
    assert texts[0] == texts[1]
    message, source = texts[0].split("\n\n", 1)
    assert re.match(r"after step \d+ of \d+, [a-z ]+( on [0-9 +]+ samples)?: ", message)
    assert raised.value.signature in load_clauses()
    names: dict[str, Any] = {}
    exec(compile(source, "pasted", "exec"), names)
    with pytest.raises(Violation) as again:
        names["test_example"](subject("OverflowKeepsTheCount"), Verdict())
    assert again.value.signature == raised.value.signature
    names["test_example"](subject(), Verdict())


@pytest.mark.parametrize("clause", LAWS)
def test_as_test_names_the_clause_of_the_law(clause: str) -> None:
    assert f'@clause("{clause}")\n' in as_test(LAWS[clause], Program(SKIPPED))


@pytest.mark.parametrize(
    ("values", "kinked"),
    [([1.0, 2.0**-20], True), ([1.0, 0.0], False), ([1.0, 0.5], False), ([np.inf, 1.0], False)],
    ids=["next to nothing", "zero", "ordinary", "infinite"],
)
def test_activation_of_rounding_errors_is_a_kink(values: list[float], kinked: bool) -> None:
    ops = NotesKinks(Nearest())
    record_pullbacks(lambda x: [ops.activation("relu", Tensor(x["a"], "float32")).value.sum()], {"a": np.array(values)})
    assert ops.kinked == kinked


@pytest.mark.parametrize(
    ("drawn", "recipe", "one_by_one"),
    [
        (TOKENS, SPARSE, True),
        (TOKENS, SPARSE.replace(scaling=DynamicScaling(initial=2.0)), True),
        (TOKENS, SPARSE.replace(optimizer=SGD(0.03, 0.5)), False),
        (TOKENS, SPARSE.replace(clip=8.0), False),
        (TIED, SPARSE, False),
    ],
    ids=["plain", "scaled", "momentum", "clip", "tied"],
)
def test_ensemble_subtracts_rows_of_an_embedding_one_by_one(
    drawn: GeneratedModel, recipe: Recipe, one_by_one: bool
) -> None:
    rows = GeneratedBatch(64, constant=True)
    program = (StartAgain(), Accumulate(rows, 64 * 67), Gradients((GeneratedBatch(2),)), Apply())
    ensemble = Ensemble(subject().conventions, GeneratedCase(drawn, recipe, program), frozenset(), 0)
    plays = (ensemble.nearest, *ensemble.play_rounded(2))
    nearest, *others = ((play.observations[-1] or {})["master/0.weight"] for play in plays)
    units = [distance(table, nearest) / np.spacing(np.abs(nearest).max()) for table in others]
    assert [count > 8.0 for count in units] == [False, one_by_one]


@pytest.mark.parametrize(("value", "overflowed"), [(70_000.0, True), (60_000.0, False), (np.inf, False)])
def test_other_range_notes_overflows_of_float16(value: float, overflowed: bool) -> None:
    rounding = OtherRange(Nearest(), np.inf)
    assert rounding.round(np.array([value]), "float16")[0] == pytest.approx(value, rel=1e-3)
    assert rounding.overflowed == overflowed


@pytest.mark.parametrize(("terms", "equal"), [(MANY_TERMS, False), (MANY_TERMS - 1, True)])
def test_float64_rounding_moves_an_exact_sum_of_many_terms_only(terms: int, equal: bool) -> None:
    rounding = Float64Rounding(np.random.default_rng(0))
    assert (rounding.round(np.array(1.5), "float32", terms) == 1.5) == equal


def test_ensemble_of_exact_values_has_equal_members() -> None:
    exact = GeneratedCase(MODEL, Recipe(SGD(2.0**-4)), (StartAgain(), Train((GeneratedBatch(2),))))
    ensemble = Ensemble(subject().conventions, exact, frozenset(), 0)
    for member in ensemble.members:
        for mine, other in zip(member.observations, ensemble.nearest.observations, strict=True):
            assert all(np.array_equal(mine[name], other[name]) for name in other if name.startswith("parameter/"))


@pytest.mark.parametrize("clause", LAWS)
def test_words_of_an_instance_are_not_empty(clause: str) -> None:
    counts: list[int] = []
    search: Search[Any, None] = Search(lambda instance: counts.append(len(instance.words())))
    search.run(LAWS[clause].instances(subject().framework, ()), 5, 0, 0.0)
    assert counts
    assert all(counts)


def test_instances_leave_out_what_an_exclusion_names() -> None:
    entry = Exclusion(load_known(["torch"]).findings[0], ("optimizer=Adam", "clip"))
    recipes: list[Recipe] = []
    search: Search[Program, None] = Search(lambda program: recipes.append(program.case.recipe))
    search.run(LAWS["laws.programs"].instances(subject().framework, (entry,)), 60, 0, 0.0)
    assert recipes
    assert not any(type(recipe.optimizer) is Adam and recipe.clip is not None for recipe in recipes)


def test_explore_with_nothing_left_to_draw_abstains() -> None:
    entry = Exclusion(load_known(["torch"]).findings[0], ("verb=StartAgain",))
    with pytest.raises(Abstention, match="excluded by a known defect"):
        explore(subject(), Verdict(), (entry,), LAWS["laws.processes"])


def test_draw_cases_counts_drawn_and_missing_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    framework: Framework = ReferenceFramework("cpu")
    monkeypatch.setattr(coverage, "generative_settings", lambda f: replace(generative_settings(f), programs=8))
    counts = coverage.draw_cases(framework)
    assert counts.programs > 8
    assert sum(counts.steps.values()) > 0
    assert coverage.never(counts, framework)["pairs"]
    assert "| verbs |" in coverage.table(counts, framework)


def test_reachable_and_beyond_drawing_name_existing_clauses() -> None:
    assert reachable() <= load_clauses().keys()
    assert set(coverage.beyond_drawing()) <= load_clauses().keys() - reachable()


class LoadsOneUnitHigher(ReferenceTrainer):
    """A load raises masters by one unit in the last place."""

    def load_state(self, arrays: Arrays) -> None:
        super().load_state({n: _higher(a) if n.startswith("master/") else a for n, a in arrays.items()})


class EvaluationMovesMasters(ReferenceTrainer):
    """An evaluation raises masters by one unit in the last place."""

    def predict(self, inputs: Array) -> Arrays:
        outputs = super().predict(inputs)
        self.masters = {name: _higher(values) for name, values in self.masters.items()}
        return outputs


class EvaluationMovesTheStream(ReferenceTrainer):
    """An evaluation draws a number from the random stream."""

    def predict(self, inputs: Array) -> Arrays:
        self.draws += 1
        return super().predict(inputs)


def _higher(values: Array) -> Array:
    return np.nextafter(values.astype(np.float32), np.float32(np.inf)).astype(np.float64)


class ShowsDoublesOnceTrained(ReferenceTrainer):
    """Moments are returned in float64 from the second update on."""

    def optimizer_state(self) -> dict[str, Array]:
        state = super().optimizer_state()
        return {n: a.astype(np.float64) if "/" in n and self.steps > 1 else a for n, a in state.items()}


def subject_with(trainer: type[ReferenceTrainer] = ReferenceTrainer) -> Subject:
    return Subject(type("Changed", (ReferenceFramework,), {"trainer_class": trainer})("cpu"), 0)


@pytest.mark.parametrize(
    ("trainer", "case", "name", "text"),
    [
        (LoadsOneUnitHigher, SAVED, "loaded", ""),
        (EvaluationMovesMasters, EVALUATED, "master/", "which only reads"),
        (EvaluationMovesTheStream, EVALUATED, "random/", "which only reads"),
        (ShowsDoublesOnceTrained, SAVED, "optimizer/momentum/", "got float64, want float32 as before"),
    ],
)
def test_against_the_oracle_of_a_change_below_rounding_fails(
    trainer: type[ReferenceTrainer], case: GeneratedCase, name: str, text: str
) -> None:
    laws = generative_settings(ReferenceFramework("cpu"))
    assert against_the_oracle(subject_with(), laws, case) is None
    failed = against_the_oracle(subject_with(trainer), laws, case)
    assert failed.name.startswith(name)
    assert text in failed.text


def test_search_stops_at_the_smallest_case_or_at_the_end_of_its_time() -> None:
    search: Search[int, str] = Search(lambda number: "large" if number > 10 else None)
    search.run(st.integers(0, 1000), 200, 0, 5.0)
    assert search.smallest == (11, "large")
    drawn: list[int] = []
    limited: Search[int, str] = Search(lambda _: "wrong")
    limited.run(st.integers(0, 1000).map(lambda number: drawn.append(number) or number), 200, 0, 1e-9)
    assert limited.smallest is not None
    assert (limited.judged, len(drawn)) == (1, 2)


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


WIDE = RevealingModel((Dense(47), Dropout(0.5), Heads((Head("a", 2),))), (32,), (("a", "squared_error"),))
PASSES = (StartAgain(), Train((GeneratedBatch(4),)), Gradients((GeneratedBatch(4, 4),)))
SKIPPED_WINDOW = (StartAgain(), Train((GeneratedBatch(4, spoilt=math.inf),)), Gradients((GeneratedBatch(4),)))
TWICE_DRAWN = (StartAgain(), Gradients((GeneratedBatch(4),), times=2))
SCOPE = NestedScope("bfloat16")
JOINED = ScopedOperation("concatenate", (4, 4), "bfloat16", (), False, (SCOPE,), 0, second="float32", empty=True)
NAMED = ScopedOperation("matmul", (4, 4), "float32", (), False, (replace(SCOPE, wide=("tanh",)),), 0)
POINTWISE = ScopedOperation("conv2d", (9, 4), "float32", (), False, (SCOPE,), 0)
FAR = ScopedOperation("softmax", (5, 7), "float32", (), False, (SCOPE,), 0, offset=-200.0)
UNPREPARED = ScopedOperation("matmul", (4, 4), "float32", (), False, (SCOPE,), 0, left=(NestedScope("float16"),))
PREPARED = replace(UNPREPARED, prepared=True)


def make_subject(part: type = ReferenceTrainer) -> Subject:
    """The reference with these trainers, or another framework."""
    framework = part
    if issubclass(part, ReferenceTrainer):
        framework = type("Broken", (ReferenceFramework,), {"trainer_class": part})
    return Subject(framework("cpu"))


def mask_failure(trainer: type, program: tuple[Verb, ...], recipe: Recipe) -> Any:
    subject = make_subject(trainer)
    return MaskedCase(WIDE, recipe, program, 1).failure(subject, generative_settings(subject.framework))


class OppositeNext(ReferenceTrainer):
    """Every second mask is the complement of the previous one."""

    def draw_mask(self, shape: tuple[int, ...], rate: float) -> Array:
        odd = self.draws % 2
        self.draws -= odd
        mask = super().draw_mask(shape, rate)
        self.draws += odd
        return ~mask if odd else mask


class SkipRewinds(ReferenceTrainer):
    """A skipped update rewinds the random stream to the start of its window."""

    def apply(self) -> Update:
        beginning = self.draws - self.window.micro_batches
        update = super().apply()
        self.draws = beginning if update.skipped else self.draws
        return update


@pytest.mark.parametrize(
    ("trainer", "program", "recipe", "name", "text"),
    [
        (SkipRewinds, SKIPPED_WINDOW, Recipe(OPTIMIZER, scaling=DynamicScaling(8.0)), "stream", ""),
        (OneMaskForTheWholeWindow, TWICE_DRAWN, Recipe(OPTIMIZER), "repeated", "is the mask that layer 1 had before"),
        (OppositeNext, PASSES, Recipe(OPTIMIZER), "repeated", "is the opposite of the mask"),
    ],
)
def test_masked_case_with_broken_masks_fails(
    trainer: Any, program: tuple[Verb, ...], recipe: Recipe, name: str, text: str
) -> None:
    assert mask_failure(ReferenceTrainer, program, recipe) is None
    failed = mask_failure(trainer, program, recipe)
    assert failed.name == name
    assert text in failed.text


@pytest.mark.parametrize(("rate", "values"), [(0.5, 40), (0.25, 60), (0.75, 60), (0.1, 140)])
def test_telling_of_a_mask_needs_forty_bits_of_chance(rate: float, values: int) -> None:
    mask = ObservedMask(0, "1", rate, np.zeros((1, values), bool))
    assert mask.telling(values)
    assert not mask.telling(values - 6)


def test_shares_off_beyond_chance_only() -> None:
    shares = Shares()
    rng = np.random.default_rng(0)
    for rate in (0.1, 0.5, 0.75):
        shares.add(rate, rng.random((1000, 10)) >= rate)
    assert shares.describe_problem() is None
    shares.add(0.5, np.ones((100, 10), bool))
    assert "deviation of the number of kept values" in str(shares.describe_problem())


def operation_failure(instance: ScopedOperation, framework: Any) -> Any:
    return instance.failure(Subject(framework), generative_settings(framework))


class LeavesEmptyOperandsOut(Operations):
    """A concatenation with a single non-empty operand returns that operand in its format."""

    def apply(self, op: str, function: Any, *operands: Tensor, keep: str = "") -> Tensor:
        filled = [x for x in operands if np.prod(x.shape)]
        if op == "concatenate" and len(filled) == 1:
            return filled[0]
        return super().apply(op, function, *operands, keep=keep)


LeavesEmptyOut = type("LeavesEmptyOut", (ReferenceFramework,), {"operations_class": LeavesEmptyOperandsOut})


class ListsAreWide(ReferenceFramework):
    """A scope with user lists runs every operation in float32."""

    def autocast(self, precision: Any, *, enabled: bool = True, wide: Any = (), low: Any = ()) -> Any:
        return super().autocast(precision, enabled=enabled, wide=("matmul",) if wide else (), low=low)


def test_longest_sum_of_a_model_leaves_rows_of_tables_out() -> None:
    heads, losses = Heads((Head("a", 2),)), (("a", "squared_error"),)
    assert GeneratedModel((Embedding(4097, 4), Flatten(), heads), (3,), losses).longest_sum == 12  # type: ignore[arg-type]
    assert GeneratedModel((Dense(300), heads), (5,), losses).longest_sum == 300  # type: ignore[arg-type]


class RestoresScopeOfCreation(ReferenceFramework):
    """The end of a scope restores the scope that was open when the object was created."""

    def autocast(self, precision: Any, **settings: Any) -> Any:
        outer, opened = scope.current(), super().autocast(precision, **settings)

        @contextmanager
        def region() -> Iterator[None]:
            with opened:
                yield
            scope.enter(outer)

        return region()


@pytest.mark.parametrize(
    ("framework", "instance", "without", "name", "text"),
    [
        (LeavesEmptyOut, JOINED, None, "order", "with an empty second operand"),
        (ListsAreWide, NAMED, None, "lists", ""),
        (RestoresScopeOfCreation, PREPARED, UNPREPARED, "format", ""),
        (autocast.PointwiseConvolutionsStayWide, POINTWISE, replace(POINTWISE, sizes=(4, 4)), "shape", ""),
        (autocast.SoftmaxMaximumStartsAtZero, FAR, replace(FAR, offset=0.0), "value", ""),
    ],
    ids=["empty", "named", "prepared", "pointwise", "far"],
)
def test_scoped_operation_with_a_fault_fails(
    framework: Any, instance: ScopedOperation, without: ScopedOperation | None, name: str, text: str
) -> None:
    """`without`: the operation without the feature that shows the fault."""
    assert operation_failure(instance, ReferenceFramework("cpu")) is None
    failed = operation_failure(instance, framework("cpu"))
    assert failed.name == name
    assert text in failed.text
    assert without is None or operation_failure(without, framework("cpu")) is None


@pytest.mark.parametrize("layout", ["rows", "columns", "strided"])
def test_scoped_operation_in_any_layout_has_the_same_values(layout: Layout) -> None:
    operation = replace(NAMED, layout=layout)
    assert all((a == b).all() for a, b in zip(operation.arrays(), NAMED.arrays(), strict=True))
    assert operation_failure(operation, ReferenceFramework("cpu")) is None
