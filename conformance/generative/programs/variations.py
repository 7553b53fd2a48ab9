"""Plays a case in another way that must give the same result; no oracle is needed where both round alike."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import ClassVar, Protocol

import numpy as np

from conformance.checks.subject import Subject
from conformance.checks.subprocesses import apart, same_framework
from conformance.generative.programs.case import GeneratedCase, Restore, Save, Target, Train, step_text
from conformance.generative.programs.executor import Play, PlayFailed
from conformance.generative.programs.features import features
from conformance.generative.programs.judge import (
    Mismatch,
    against_the_oracle,
    apart_from_twin,
    canonical_play,
    ensemble_of,
    play,
    play_in_turn,
    raised,
)
from conformance.generative.programs.triage import triaged
from conformance.search.adapter_settings import GenerativeSettings
from conformance.search.arrays import Observation
from conformance.search.properties import Failure
from fixtures.recipe import Scaling
from frameworks.contract import Unsupported
from frameworks.registry import load

HUGE = 2.0**96
"""No scale that is drawn makes a smaller value, or what it was computed from, infinite in float32."""
SMALLEST = 2.0**-100
"""Smaller values may be sums of subnormal ones, of which a scale of 1 loses bits that a larger one keeps."""
LOST = 2.0**-137
"""What 2^12 subnormal gradients of float32 lose together, for each unit of the largest value that multiplies them."""
SLOT = 9
"""Under this number a variation saves; no drawn program does."""


class Variation:
    """A case, and another way to play it; a difference breaks the clause `breaks`."""

    breaks: ClassVar[str]

    def clause(self, subject: Subject, laws: GenerativeSettings, failure: Failure) -> tuple[str, str]:
        """The clause that a failure breaks, and the message."""
        return self.breaks, failure.breaking(self.breaks)


@dataclass(frozen=True)
class RecomputedCase(Variation):
    """A case, played as its recipe says and without recomputation."""

    breaks = "recompute.same-state"

    case: GeneratedCase

    def words(self) -> frozenset[str]:
        return features(self.case)

    def failure(self, subject: Subject, laws: GenerativeSettings) -> Failure | None:
        plain = replace(self.case, recipe=self.case.recipe.replace(recompute=None))
        unmasked = replace(self.case, drawn=self.case.drawn.without_masks())
        rounded = unmasked if subject.conventions.compiled else None
        return _compared(subject, laws, self.case, plain, rounded, ("global/", "result/bytes"))


@dataclass(frozen=True)
class ScaledCase(Variation):
    """A case without scaling, and with a scale by which nothing overflows."""

    breaks = "scaling.is-transparent"

    case: GeneratedCase
    scaling: Scaling

    @property
    def _scaled(self) -> GeneratedCase:
        return replace(self.case, recipe=self.case.recipe.replace(scaling=self.scaling))

    def words(self) -> frozenset[str]:
        return features(self.case) | features(self._scaled)

    def failure(self, subject: Subject, laws: GenerativeSettings) -> Failure | None:
        left = ("scaler/", "accumulator/", "result/scale", "result/good", "result/setting", "result/back", "global/")
        unmasked = replace(self._scaled, drawn=self.case.drawn.without_masks())
        rounded = unmasked if subject.conventions.compiled else None
        return _compared(subject, laws, self._scaled, self.case, rounded, left, largest=HUGE, underflow=SMALLEST)


@dataclass(frozen=True)
class ResumedCase(Variation):
    """A case, and the same with a save and a load before the verb at `place`."""

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
        return _compared(subject, laws, self._resumed, self.case, None, (), (self.place, self.place + 2))


@dataclass(frozen=True)
class SecondRun(Variation):
    """A case played alone, and after another one that stays open, or alternating with it."""

    breaks = "laws.second-run"

    case: GeneratedCase
    first: GeneratedCase
    in_turn: bool = False

    def words(self) -> frozenset[str]:
        return features(self.case) | features(self.first)

    def failure(self, subject: Subject, laws: GenerativeSettings) -> Failure | None:
        try:
            alone = play(subject, self.case)
            if self.in_turn:
                after, _ = play_in_turn(subject, self.case, self.first)
            else:
                play(subject, self.first)
                after = play(subject, self.case)
        except PlayFailed as failed:
            return raised(failed)
        return _failure(self.case, apart_from_twin(after, alone))


@dataclass(frozen=True)
class Elsewhere(Variation):
    """Cases played here in sequence, and in a new process in reverse order."""

    breaks = "laws.processes"

    cases: tuple[GeneratedCase, ...]

    def words(self) -> frozenset[str]:
        return frozenset(word for case in self.cases for word in features(case))

    def failure(self, subject: Subject, laws: GenerativeSettings) -> Failure | None:
        here = [_played(subject, case) for case in self.cases]
        refusals = [each for each in here if isinstance(each, Unsupported)]
        if len(refusals) == len(here):
            raise refusals[-1]
        with TemporaryDirectory() as folder:
            there = [*reversed(apart(PlaysTask.of(subject, tuple(reversed(self.cases))), Path(folder) / "plays"))]
        for case, mine, other in zip(self.cases, here, there, strict=True):
            if not isinstance(mine, Play) or other is None:
                continue
            if (failure := _failure(case, apart_from_twin(mine, Play(other), left=("global/",)))) is not None:
                return failure
        return None


@dataclass(frozen=True)
class PlaysTask:
    """Cases to play in a new process; `framework` is an adapter's "package.module:Class"."""

    framework: str
    device: str
    mode: str
    seed: int
    cases: tuple[GeneratedCase, ...]

    @classmethod
    def of(cls, subject: Subject, cases: tuple[GeneratedCase, ...]) -> PlaysTask:
        """The cases on the same framework, device, mode and seed."""
        return cls(*same_framework(subject), subject.seed, cases)

    def run(self) -> list[tuple[Observation | None, ...] | None]:
        """Observations after every verb; None for a case that is refused or raises."""
        subject = Subject(load(self.framework, self.device, self.mode), self.seed)
        plays = [_played(subject, case) for case in self.cases]
        return [each.observations if isinstance(each, Play) else None for each in plays]


def _played(subject: Subject, case: GeneratedCase) -> Play | Unsupported | None:
    try:
        return play(subject, case)
    except Unsupported as refusal:
        return refusal
    except PlayFailed:
        return None


@dataclass(frozen=True)
class CutWindows(Variation):
    """Windows of samples, whole and cut into micro-batches of these sizes."""

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
            plays = [canonical_play(play(subject, each), laws, each) for each in (self.case, self._cut)]
        except PlayFailed as failed:
            return raised(failed)
        ensembles = tuple(ensemble_of(subject, each, plays[0]) for each in (self.case, self._cut))
        left = ("global/", "random/", "result/micro", *laws.not_compared)
        return _failure(self.case, apart_from_twin(plays[1], plays[0], ensembles, left))


def _compared(
    subject: Subject,
    laws: GenerativeSettings,
    case: GeneratedCase,
    twin: GeneratedCase,
    rounded: GeneratedCase | None = None,
    left: tuple[str, ...] = (),
    inserted: tuple[int, int] = (0, 0),
    largest: float = np.inf,
    underflow: float = 0.0,
) -> Failure | None:
    """The first difference between the plays of a case and its twin.

    Args:
        rounded: a case whose ensemble bounds the rounding difference of two programs; None for equal bits.
        inserted: places of the verbs that the twin does not have.
        largest: plays are compared until the twin has a larger value.
        underflow: values smaller than this are equal, and smaller than what large values of the play make of lost bits.
    """
    try:
        measured, expected = play(subject, case), play(subject, twin)
    except PlayFailed as failed:
        return raised(failed)
    start, stop = inserted
    aligned = Play((*measured.observations[:start], *measured.observations[stop:]))
    ensembles = () if rounded is None else (ensemble_of(subject, rounded, expected),)
    ordinary = tuple(takewhile(lambda each: each is None or _below(each, largest), expected.observations))
    aligned, expected = Play(aligned.observations[: len(ordinary)]), Play(ordinary)
    underflow = max(underflow, LOST * _largest(expected)) if underflow else 0.0
    if not ensembles:
        return _failure(twin, apart_from_twin(aligned, expected, (), left, underflow))
    aligned, expected = (canonical_play(each, laws, twin) for each in (aligned, expected))
    return _failure(twin, apart_from_twin(aligned, expected, ensembles, (*left, *laws.not_compared), underflow))


def _largest(play: Play) -> float:
    """The largest finite floating value of a play, 0 if there is none."""
    values = [value for each in play.observations for value in (each or {}).values() if value.dtype.kind in "fV"]
    sizes = (np.abs(value.astype(np.float64)) for value in values)
    return max((float(np.max(size, initial=0.0, where=np.isfinite(size))) for size in sizes), default=0.0)


def _below(observation: Observation, largest: float) -> bool:
    """Whether no value is larger, nor not a number where that is a bound; given gradients have no loss."""
    if largest == np.inf:
        return True
    arrays = (value for name, value in observation.items() if value.dtype.kind not in "USO" and name != "result/loss")
    return all(bool((np.abs(value.astype(np.float64)) <= largest).all()) for value in arrays)


def _failure(case: GeneratedCase, apart: Mismatch | None) -> Failure | None:
    if apart is None:
        return None
    where = f"after step {apart.place + 1} of {len(case.program)}, {step_text(case.program[apart.place])}"
    return Failure(apart.place, apart.name, False, f"{where}: {apart}")


class Instance(Protocol):
    """An instance of a law: a program compared with the oracle, or a variation compared with the case itself."""

    def words(self) -> frozenset[str]:
        """Features that exclusions may name."""

    def failure(self, subject: Subject, laws: GenerativeSettings) -> Failure | None:
        """The failure, if there is one."""

    def clause(self, subject: Subject, laws: GenerativeSettings, failure: Failure) -> tuple[str, str]:
        """The clause that a failure breaks, and the message."""


@dataclass(frozen=True)
class Program:
    """A case, run on the framework and on the oracle."""

    case: GeneratedCase

    def words(self) -> frozenset[str]:
        return features(self.case)

    def failure(self, subject: Subject, laws: GenerativeSettings) -> Failure | None:
        return against_the_oracle(subject, laws, self.case)

    def clause(self, subject: Subject, laws: GenerativeSettings, failure: Failure) -> tuple[str, str]:
        broken = triaged(self.case, failure, lambda case: against_the_oracle(subject, laws, case))
        return broken.clause, str(broken)
