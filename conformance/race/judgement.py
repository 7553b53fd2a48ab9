"""The verdict of a race: slower, faster, equal, or not to be judged.

A cost grew if the whole interval lies above what is negligible. It did not grow if the interval lies below what the
race has to find. Between them the race was too noisy. Nothing is judged where the race contradicts itself: the twin,
a second process of the old version, costs more or less than the old one, or the same NumPy work takes longer next to
one of the versions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import median

from conformance.race.estimates import PairInterval, of_rounds
from conformance.race.samples import NEW, OLD, TWIN, PairSamples, RaceSamples, SideSamples


class RaceOutcome(StrEnum):
    """What a race says of one cost."""

    GREW = "worse"
    SHRANK = "better"
    EQUAL = "no worse"
    NOISY = "too noisy"
    REFUSED = "not judged"


@dataclass(frozen=True)
class RaceCost:
    """A cost.

    Attributes:
        rounds: whether it is measured in rounds, or once in each process.
        negligible: largest change that does not count. detectable: the smallest one that has to be excluded.
        timed: whether it is a time.
        needed: whether the race fails without a verdict about it.
    """

    key: str
    title: str
    rounds: bool
    negligible: float
    detectable: float
    timed: bool = True
    needed: bool = True


COSTS = (
    RaceCost("step", "whole step", True, 0.01, 0.05),
    RaceCost("optimizer", "optimizer step", True, 0.01, 0.05),
    RaceCost("first", "first step", False, 0.05, 0.25, needed=False),
    RaceCost("import", "import", False, 0.05, 0.25, needed=False),
    RaceCost("memory", "resident memory", False, 0.01, 0.05, timed=False),
)
YARDSTICK = RaceCost("yardstick", "NumPy work", True, 0.01, 0.05)


@dataclass(frozen=True)
class RaceVerdict:
    """What a race says of one cost.

    Attributes:
        ratio: new / old. twin: of the old version to itself.
        old, new: medians, in seconds a step or bytes.
        why: of a refusal, in one sentence, or "".
    """

    cost: RaceCost
    outcome: RaceOutcome
    ratio: PairInterval
    twin: PairInterval
    old: float
    new: float
    why: str = ""


@dataclass(frozen=True)
class RaceJudgement:
    """The verdicts of a race.

    Attributes:
        yardstick: of the same NumPy work next to both versions.
        notes: what a reader should know.
    """

    verdicts: tuple[RaceVerdict, ...]
    yardstick: PairInterval
    notes: tuple[str, ...] = ()

    @property
    def status(self) -> int:
        """0: nothing is worse; 1: something is; 2: a cost that is needed cannot be judged."""
        if any(each.outcome is RaceOutcome.GREW for each in self.verdicts):
            return 1
        unclear = (RaceOutcome.NOISY, RaceOutcome.REFUSED)
        return 2 if any(each.outcome in unclear and each.cost.needed for each in self.verdicts) else 0


def judge(samples: RaceSamples) -> RaceJudgement:
    """The verdict of every cost that both sides have."""
    same_numpy = samples.numpy[0] == samples.numpy[1]
    yardstick = _ratio(samples.pairs, YARDSTICK, NEW)
    lies = same_numpy and _apart(yardstick, YARDSTICK.negligible)
    why = f"the same NumPy work next to the new version: {yardstick} times" if lies else ""
    notes = () if same_numpy else (f"NumPy differs ({' and '.join(samples.numpy)}): its work is no yardstick",)
    verdicts = [_verdict(samples, cost, why if cost.timed else "") for cost in COSTS if _has(samples.pairs, cost)]
    return RaceJudgement(tuple(verdicts), yardstick, notes)


def _has(pairs: Sequence[PairSamples], cost: RaceCost) -> bool:
    return all(cost.key in (side.rounds if cost.rounds else side.once) for pair in pairs for side in pair.values())


def _verdict(samples: RaceSamples, cost: RaceCost, lies: str) -> RaceVerdict:
    ratio, twin = (_ratio(samples.pairs, cost, side) for side in (NEW, TWIN))
    why = ratio.refusal or twin.refusal or lies
    if not why and _apart(twin, cost.negligible):
        why = f"two processes of the old version differ: {twin} times"
    old, new = (_median(samples, cost, side) for side in (OLD, NEW))
    return RaceVerdict(cost, RaceOutcome.REFUSED if why else _outcome(ratio, cost), ratio, twin, old, new, why)


def _outcome(ratio: PairInterval, cost: RaceCost) -> RaceOutcome:
    if ratio.low > 1.0 + cost.negligible:
        return RaceOutcome.GREW
    if ratio.high < 1.0 / (1.0 + cost.negligible):
        return RaceOutcome.SHRANK
    return RaceOutcome.EQUAL if ratio.high < 1.0 + cost.detectable else RaceOutcome.NOISY


def _apart(one: PairInterval, negligible: float) -> bool:
    """Whether an interval lies outside what is negligible."""
    return not one.refusal and (one.low > 1.0 + negligible or one.high < 1.0 / (1.0 + negligible))


def _ratio(pairs: Sequence[PairSamples], cost: RaceCost, side: str) -> PairInterval:
    return of_rounds([_values(pair[OLD], cost) for pair in pairs], [_values(pair[side], cost) for pair in pairs])


def _values(side: SideSamples, cost: RaceCost) -> Sequence[float]:
    return side.rounds[cost.key] if cost.rounds else [side.once[cost.key]]


def _median(samples: RaceSamples, cost: RaceCost, side: str) -> float:
    values = [value for pair in samples.pairs for value in _values(pair[side], cost)]
    scale = 1e9 * (samples.count if cost.rounds else 1) if cost.timed else 1.0
    return median(values) / scale
