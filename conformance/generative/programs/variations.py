"""Variations of a case that must give the same result; they need no oracle if both plays round alike."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import ClassVar, Protocol

import numpy as np
from hypothesis import strategies as st

from conformance.checks import subprocesses
from conformance.checks.subject import Subject, supports
from conformance.generative.programs import judge
from conformance.generative.programs.case import (
    Accumulate,
    ApplyGradients,
    GeneratedBatch,
    GeneratedCase,
    Gradients,
    Restore,
    Save,
    SpikedGradient,
    Target,
    TraceLayers,
    Train,
    Verb,
    open_windows,
)
from conformance.generative.programs.executor import Play, PlayFailed
from conformance.generative.programs.features import features
from conformance.generative.programs.recipes import recipes, variants
from conformance.generative.programs.strategies import TARGETS, cases, limit_files, models
from conformance.generative.programs.triage import find_broken_clause
from conformance.search import Failure, GenerativeSettings, Observation
from fixtures.model import BatchNorm, Dropout, LayerNorm, walk
from fixtures.recipe import DynamicScaling, Recompute, Scaling, StaticScaling
from frameworks.contract import Capability, Framework, Unsupported
from frameworks.ways import Way

LARGEST_SCALABLE = 2.0**96
"""Limit of the compared values: below it, no drawn scale makes a value or its operands infinite in float32."""
SMALLEST_SCALABLE = 2.0**-100
"""Smaller values may be sums of subnormal ones, whose low bits a scale of 1 loses and a larger scale keeps."""
SUBNORMAL_LOSS = 2.0**-137
"""Loss of 2^12 subnormal float32 gradients together, per unit of the largest value that multiplies them."""
SLOT = 9
"""Slot in which a variation saves; no drawn program uses it."""
TRIPLES, TRIPLES_DRAWN = 3, 8
"""Number of triples of cases that one process plays, and of triples drawn to find allowed ones."""
MANY_UPDATES, SMALL = 260, 128
"""More updates than 8 bits can count, and the largest number of values of a model that makes so many."""
LONG_INTERVAL = 1000
"""A growth interval that is longer than any drawn program."""


class Variation:
    """A case, and another way to play it; a difference breaks the clause `breaks`."""

    breaks: ClassVar[str]

    def clause(self, subject: Subject, laws: GenerativeSettings, failure: Failure) -> tuple[str, str]:
        """Return the clause that a failure breaks, and the message."""
        return self.breaks, failure.breaking(self.breaks)


@dataclass(frozen=True)
class RecomputedCase(Variation):
    """A case played with recomputation, and again without."""

    breaks = "recompute.same-state"

    case: GeneratedCase

    def words(self) -> frozenset[str]:
        return features(self.case)

    def failure(self, subject: Subject, laws: GenerativeSettings) -> Failure | None:
        plain = replace(self.case, recipe=self.case.recipe.replace(recompute=None))
        tolerance = TwinTolerance(excluded=("global/", "result/bytes"), rounded=_case_that_bounds(subject, self.case))
        return _compare_plays(subject, laws, self.case, plain, tolerance)


@dataclass(frozen=True)
class ScaledCase(Variation):
    """A case played without scaling, and again with a scale under which nothing overflows."""

    breaks = "scaling.is-transparent"

    case: GeneratedCase
    scaling: Scaling

    @property
    def _scaled(self) -> GeneratedCase:
        return replace(self.case, recipe=self.case.recipe.replace(scaling=self.scaling))

    def words(self) -> frozenset[str]:
        return features(self.case) | features(self._scaled)

    def failure(self, subject: Subject, laws: GenerativeSettings) -> Failure | None:
        of_scaler = ("scaler/", "accumulator/", "result/scale", "result/good", "result/setting", "result/back")
        tolerance = TwinTolerance(
            excluded=(*of_scaler, "global/"),
            rounded=_case_that_bounds(subject, self._scaled),
            largest=LARGEST_SCALABLE,
            underflow=SMALLEST_SCALABLE,
        )
        return _compare_plays(subject, laws, self._scaled, self.case, tolerance)


@dataclass(frozen=True)
class ResumedCase(Variation):
    """A case played as it is, and again with a save and a load before the verb at `place`."""

    breaks = "resume.bit-identical"

    case: GeneratedCase
    place: int
    into: Target

    @property
    def _resumed(self) -> GeneratedCase:
        program = self.case.program
        longer = (*program[: self.place], Save(SLOT), Restore(SLOT, self.into, alike=True), *program[self.place :])
        return replace(self.case, program=longer)

    def words(self) -> frozenset[str]:
        return features(self.case) | features(self._resumed)

    def failure(self, subject: Subject, laws: GenerativeSettings) -> Failure | None:
        inserted = range(self.place, self.place + 2)
        return _compare_plays(subject, laws, self._resumed, self.case, TwinTolerance(inserted=inserted))


@dataclass(frozen=True)
class SecondRun(Variation):
    """A case played alone, and again after another case whose run stays open, or alternating with that case."""

    breaks = "laws.second-run"

    case: GeneratedCase
    first: GeneratedCase
    in_turn: bool = False

    def words(self) -> frozenset[str]:
        return features(self.case) | features(self.first)

    def failure(self, subject: Subject, laws: GenerativeSettings) -> Failure | None:
        try:
            alone = judge.play(subject, self.case)
            if self.in_turn:
                after, _ = judge.play_in_turn(subject, self.case, self.first)
            else:
                judge.play(subject, self.first)
                after = judge.play(subject, self.case)
        except PlayFailed as failed:
            return judge.make_failure(failed)
        return judge.describe(self.case, judge.find_twin_mismatch(after, alone))


@dataclass(frozen=True)
class Elsewhere(Variation):
    """Cases played in sequence in this process, and in reverse order in a new process."""

    breaks = "laws.processes"

    cases: tuple[GeneratedCase, ...]

    def words(self) -> frozenset[str]:
        return frozenset(word for case in self.cases for word in features(case))

    def failure(self, subject: Subject, laws: GenerativeSettings) -> Failure | None:
        own = [_try_play(subject, case) for case in self.cases]
        refusals = [result for result in own if isinstance(result, Unsupported)]
        if len(refusals) == len(own):
            raise refusals[-1]
        framework = subprocesses.same_framework(subject)
        task = PlaysTask(*framework, subject.seed, subject.ways, tuple(reversed(self.cases)))
        with TemporaryDirectory() as folder:
            others = [*reversed(subprocesses.run_in_new_process(task, Path(folder) / "plays"))]
        for case, result, observations in zip(self.cases, own, others, strict=True):
            if not isinstance(result, Play) or observations is None:
                continue
            mismatch = judge.find_twin_mismatch(result, Play(observations), excluded=("global/",))
            if (failure := judge.describe(case, mismatch)) is not None:
                return failure
        return None


@dataclass(frozen=True)
class PlaysTask(subprocesses.FrameworkTask):
    """Cases to play in a new process; the other fields make the subject again."""

    seed: int
    ways: tuple[Way, ...]
    cases: tuple[GeneratedCase, ...]

    def run(self) -> list[tuple[Observation | None, ...] | None]:
        """Return the observations after every verb of each case; None for a case that is refused or raises."""
        subject = Subject(self.load(), self.seed, ways=self.ways)
        plays = [_try_play(subject, case) for case in self.cases]
        return [result.observations if isinstance(result, Play) else None for result in plays]


def _try_play(subject: Subject, case: GeneratedCase) -> Play | Unsupported | None:
    try:
        return judge.play(subject, case)
    except Unsupported as refusal:
        return refusal
    except PlayFailed:  # the other laws judge failures of a single play
        return None


@dataclass(frozen=True)
class CutWindows(Variation):
    """Windows of samples, played whole and again split into micro-batches of these sizes."""

    breaks = "accumulation.equals-full-batch"

    case: GeneratedCase
    sizes: tuple[int, ...]

    @property
    def _cut(self) -> GeneratedCase:
        program = tuple(replace(verb, cut=self.sizes) for verb in self.case.program if isinstance(verb, Train))
        return GeneratedCase(self.case.drawn, self.case.recipe.replace(accumulation=len(self.sizes)), program)

    def words(self) -> frozenset[str]:
        return features(self.case) | features(self._cut)

    def failure(self, subject: Subject, laws: GenerativeSettings) -> Failure | None:
        try:
            plays = [judge.canonical_play(judge.play(subject, case), laws, case) for case in (self.case, self._cut)]
        except PlayFailed as failed:
            return judge.make_failure(failed)
        ensembles = tuple(judge.ensemble_of(subject, case, plays[0]) for case in (self.case, self._cut))
        excluded = ("global/", "random/", "result/micro", *laws.not_compared)
        mismatch = judge.find_twin_mismatch(plays[1], plays[0], ensembles=ensembles, excluded=excluded)
        return judge.describe(self.case, mismatch)


@dataclass(frozen=True)
class TwinTolerance:
    """What may differ between the plays of a case and of its twin.

    Attributes:
        excluded: prefixes of names that are not compared.
        rounded: a case whose ensemble bounds the difference in rounding; None if the plays must be equal bit for bit.
        inserted: places of verbs that the twin does not have.
        largest: the comparison ends before the twin's first observation with a larger value.
        underflow: smaller values are equal; if not 0, it is raised to `SUBNORMAL_LOSS` times the largest value of the
            play.
    """

    excluded: tuple[str, ...] = ()
    rounded: GeneratedCase | None = None
    inserted: range = range(0)
    largest: float = np.inf
    underflow: float = 0.0


def _case_that_bounds(subject: Subject, case: GeneratedCase) -> GeneratedCase | None:
    """Return the case without dropout, whose masks no oracle knows, if a compiler may round its twin otherwise."""
    return replace(case, drawn=case.drawn.without_masks()) if subject.conventions.compiled else None


def _compare_plays(
    subject: Subject, laws: GenerativeSettings, case: GeneratedCase, twin: GeneratedCase, tolerance: TwinTolerance
) -> Failure | None:
    """Return the first difference between the plays of a case and its twin; None if there is none."""
    try:
        measured, expected = judge.play(subject, case), judge.play(subject, twin)
    except PlayFailed as failed:
        return judge.make_failure(failed)
    ensembles = () if tolerance.rounded is None else (judge.ensemble_of(subject, tolerance.rounded, expected),)
    aligned = [*measured.observations]
    del aligned[tolerance.inserted.start : tolerance.inserted.stop]
    compared = [*takewhile(lambda seen: seen is None or _below(seen, tolerance.largest), expected.observations)]
    measured, expected = Play(tuple(aligned[: len(compared)])), Play(tuple(compared))
    excluded = tolerance.excluded
    underflow = max(tolerance.underflow, SUBNORMAL_LOSS * _largest(expected)) if tolerance.underflow else 0.0
    if ensembles:
        measured, expected = (judge.canonical_play(side, laws, twin) for side in (measured, expected))
        excluded = (*excluded, *laws.not_compared)
    mismatch = judge.find_twin_mismatch(measured, expected, ensembles=ensembles, excluded=excluded, underflow=underflow)
    return judge.describe(twin, mismatch)


def _largest(play: Play) -> float:
    """Return the largest finite floating value of a play, 0 if there is none."""
    arrays = (array for observation in play.observations for array in (observation or {}).values())
    magnitudes = (np.abs(array.astype(np.float64)) for array in arrays if array.dtype.kind in "fV")
    return max((float(np.max(value, initial=0.0, where=np.isfinite(value))) for value in magnitudes), default=0.0)


def _below(observation: Observation, largest: float) -> bool:
    """Return whether no value but the loss is NaN or exceeds `largest`; external gradients have no loss."""
    if largest == np.inf:
        return True
    arrays = (value for name, value in observation.items() if value.dtype.kind not in "USO" and name != "result/loss")
    return all(bool((np.abs(value.astype(np.float64)) <= largest).all()) for value in arrays)


class Instance(Protocol):
    """An instance of a law: a program compared with the oracle, or a variation compared with the case itself."""

    def words(self) -> frozenset[str]:
        """Return the features that exclusions may name."""

    def failure(self, subject: Subject, laws: GenerativeSettings) -> Failure | None:
        """Return the failure, None if there is none."""

    def clause(self, subject: Subject, laws: GenerativeSettings, failure: Failure) -> tuple[str, str]:
        """Return the clause that a failure breaks, and the message."""


@dataclass(frozen=True)
class Program:
    """A case to play on the framework and on the oracle."""

    case: GeneratedCase

    def words(self) -> frozenset[str]:
        return features(self.case)

    def failure(self, subject: Subject, laws: GenerativeSettings) -> Failure | None:
        return judge.against_the_oracle(subject, laws, self.case)

    def clause(self, subject: Subject, laws: GenerativeSettings, failure: Failure) -> tuple[str, str]:
        broken = find_broken_clause(self.case, failure, lambda case: judge.against_the_oracle(subject, laws, case))
        return broken.clause, str(broken)


def programs(framework: Framework) -> st.SearchStrategy[Program]:
    """Return a strategy for cases to compare with the oracle."""
    return cases(framework).map(Program)


@st.composite
def draw_recomputed_case(draw: st.DrawFn, framework: Framework) -> RecomputedCase:
    """Draw a case with recomputation, mostly also with dropout."""
    drawn = cases(framework, dropout=draw(st.integers(0, 3)) > 0)
    case = draw(drawn.filter(lambda case: len(case.drawn.layers) > 1))
    if case.recipe.recompute is None:
        segments = draw(st.integers(1, len(case.drawn.layers) - 1))
        recompute = Recompute(segments, variant=draw(variants(framework, case.drawn)))
        case = replace(case, recipe=case.recipe.replace(recompute=recompute))
    return RecomputedCase(draw(_with_many_updates(case)))


@st.composite
def _with_many_updates(draw: st.DrawFn, case: GeneratedCase) -> GeneratedCase:
    """Return the case or, if the model is small, now and then the case with many updates before all other verbs."""
    if case.drawn.values > SMALL or case.recipe.accumulation > 1 or draw(st.integers(0, 11)):
        return case
    long = Train((GeneratedBatch(2, draw(st.integers(0, 9))),), times=MANY_UPDATES)
    return limit_files(replace(case, program=(*case.program[:1], long, *case.program[1:])))


@st.composite
def draw_scaled_case(draw: st.DrawFn, framework: Framework) -> ScaledCase:
    """Draw a case in which nothing overflows or underflows, and a scale for it.

    After large weights, a norm would divide by hidden values of up to 10^25, and the gradients would become subnormal.
    """
    case = draw(cases(framework, dropout=True))
    if any(isinstance(layer, BatchNorm | LayerNorm) for _, layer in walk(case.drawn.layers)):
        case = replace(case, drawn=replace(case.drawn, gain=min(case.drawn.gain, 0)))
    recipe = case.recipe.replace(scaling=None)
    if recipe.precision.format == "float16":
        recipe = recipe.replace(precision=replace(recipe.precision, level="O0", format="float32"))
    program = tuple(_tame(verb) for verb in case.program)
    scalings: list[Scaling] = []
    exponent = draw(st.integers(1, 16))
    if supports(framework, Capability.STATIC_SCALING):
        scalings.append(StaticScaling(2.0**exponent))
    if supports(framework, Capability.DYNAMIC_SCALING):
        scalings.append(DynamicScaling(2.0**exponent, interval=LONG_INTERVAL))
    return ScaledCase(replace(case, recipe=recipe, program=program), draw(st.sampled_from(scalings)))


def _tame(verb: Verb) -> Verb:
    """Return the verb with inputs and gradients of ordinary size, and without explicit unscaling."""
    match verb:
        case ApplyGradients(window=window):
            return ApplyGradients(tuple(SpikedGradient(max(-1.0, min(1.0, gradient.base))) for gradient in window))
        case Train(micros=micros) | Gradients(micros=micros):
            return replace(verb, micros=tuple(replace(micro, spoilt=None) for micro in micros))
        case Accumulate(micro=micro) | TraceLayers(micro=micro):
            return replace(verb, micro=replace(micro, spoilt=None))
        case _:
            return verb


@st.composite
def draw_resumed_case(draw: st.DrawFn, framework: Framework) -> ResumedCase:
    """Draw a case with dropout, sometimes with many updates first, and a place between two windows."""
    case = draw(cases(framework, dropout=True))
    case = draw(_with_many_updates(case))
    places = [0, *(index for index, waiting in enumerate(open_windows(case.program), 1) if not waiting)]
    targets: list[Target] = [t for t in TARGETS if t not in ("skipped", "stopped")]
    return ResumedCase(case, draw(st.sampled_from(places)), draw(st.sampled_from(targets)))


@st.composite
def draw_second_run(draw: st.DrawFn, framework: Framework) -> SecondRun:
    """Draw two cases; the first one may be cut off after any verb."""
    case, similar = draw(_similar_pairs(framework))
    first = similar if draw(st.booleans()) else draw(cases(framework, dropout=True))
    first = replace(first, program=first.program[: draw(st.integers(1, len(first.program)))])
    return SecondRun(case, first, in_turn=draw(st.booleans()))


def draw_elsewhere(framework: Framework) -> st.SearchStrategy[Elsewhere]:
    """Return a strategy for triples: a case, the same with one change, and the same with another seed."""
    return _similar_pairs(framework).map(lambda pair: Elsewhere((*pair, _reseed(pair[0]))))


def _reseed(case: GeneratedCase) -> GeneratedCase:
    return replace(case, recipe=case.recipe.replace(seed=case.recipe.seed + 1))


@st.composite
def join_triples(
    draw: st.DrawFn, triples: st.SearchStrategy[Elsewhere], is_allowed: Callable[[Elsewhere], bool]
) -> Elsewhere | None:
    """Draw several allowed triples as one instance, since a process is slow to start; None if none is allowed."""
    chosen: list[GeneratedCase] = []
    for _ in range(TRIPLES_DRAWN):
        if len(chosen) == 3 * TRIPLES:
            break
        triple = draw(triples)
        chosen += triple.cases if is_allowed(triple) else ()
    return Elsewhere(tuple(chosen)) if chosen else None


@st.composite
def _similar_pairs(draw: st.DrawFn, framework: Framework) -> tuple[GeneratedCase, GeneratedCase]:
    """Draw a case and a second one with the same shapes that differs in one thing."""
    case = draw(cases(framework, dropout=True, subnormal=True))
    other = draw(cases(framework, dropout=True))
    recipe = case.recipe
    rate = draw(st.sampled_from([0.125, 0.375, 0.75]))
    rates = tuple(Dropout(rate) if isinstance(layer, Dropout) else layer for layer in case.drawn.layers)
    norms = tuple(
        replace(la, epsilon=1e-5 if la.epsilon > 1e-5 else 1e-3) if isinstance(la, BatchNorm | LayerNorm) else la
        for la in case.drawn.layers
    )
    changed = {
        "rates": replace(case, drawn=replace(case.drawn, layers=rates)),
        "epsilons": replace(case, drawn=replace(case.drawn, layers=norms)),
        "precision": replace(case, recipe=recipe.replace(precision=other.recipe.precision)),
        "schedule": replace(case, recipe=recipe.replace(schedule=other.recipe.schedule)),
        "optimizer": replace(case, recipe=recipe.replace(optimizer=other.recipe.optimizer)),
        "weights": replace(case, drawn=replace(case.drawn, seed=case.drawn.seed + 1)),
        "seed": _reseed(case),
        "clip": replace(case, recipe=recipe.replace(clip=None)),
    }
    if isinstance(recipe.scaling, DynamicScaling) and isinstance(other.recipe.scaling, DynamicScaling):
        changed["scaling"] = replace(case, recipe=recipe.replace(scaling=other.recipe.scaling))
    if recipe.average is not None:
        changed["average"] = replace(case, recipe=recipe.replace(average=1.0 - recipe.average))
    return case, changed[draw(st.sampled_from(sorted(changed)))]


@st.composite
def draw_cut_windows(draw: st.DrawFn, framework: Framework) -> CutWindows:
    """Draw one to three windows of 2 to 16 samples, and sizes of micro-batches.

    Float16 has no scaling here, since the sizes decide whether a window overflows. There is no QAT, since its ranges
    follow the micro-batches.
    """
    drawn = draw(models(framework).filter(lambda m: not any(isinstance(la, BatchNorm) for _, la in walk(m.layers))))
    recipe = draw(recipes(framework, drawn)).replace(accumulation=1, recompute=None, quantization=None)
    recipe = recipe.replace(scaling=None) if recipe.precision.format == "float16" else recipe
    count = draw(st.integers(2, 4))
    even = st.integers(1, 4).map(lambda size: (size,) * count)
    sizes = draw(even | st.tuples(*[st.integers(1, 4)] * count))
    micros = [GeneratedBatch(sum(sizes), draw(st.integers(0, 99))) for _ in range(draw(st.integers(1, 3)))]
    return CutWindows(GeneratedCase(drawn, recipe, tuple(Train((micro,)) for micro in micros)), sizes)
