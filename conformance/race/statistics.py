"""Samples of a race, and its verdict: how many times the old version's cost a cost of the new version is.

Identical code differs between processes, in all of their rounds alike, so pairs and not rounds are the sample. A
pair's estimate is the 20 % trimmed mean of the log-ratios of its rounds, which took turns; of a cost that a process has
once it is that log-ratio. The estimate is the mean over pairs, and its 99 % interval is Student's (Student 1908), as in
a hierarchical model in which each pair has equally many rounds.

A cost grew if the whole interval lies above what is negligible. It did not grow if the interval lies below what the
race has to find. Between them the race was too noisy. Nothing is judged where the race contradicts itself: the twin,
a second process of the old version, costs more or less than the old one, or the same NumPy work takes longer next to
one of the versions.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from statistics import median

import numpy as np

from conformance.race.processes import FEWEST_PAIRS, NEW, OLD, TWIN, RaceSamples, SideSamples
from results.compare.ratio import CONFIDENCE, TRIMMED, in_pairs, refusal_of
from results.record.files import RecordError, compress_content, one_line, read, replace
from results.record.values import parse, plain, to_line, to_text


def write(path: Path, samples: RaceSamples) -> None:
    """Writes the samples, compressed if the name ends in .gz.

    Raises:
        RecordError: the file cannot be written.
    """
    replace(path, compress_content(path, to_line(plain(samples)).encode("utf-8") + b"\n"))


def load(path: Path) -> RaceSamples:
    """The samples in a file.

    Raises:
        RecordError: it cannot be read, or has no samples.
    """
    try:
        samples: RaceSamples = parse(read(path), RaceSamples)
    except ValueError as error:
        raise RecordError(path, f"has no samples of a race ({error})", "run the race again") from None
    return samples


@dataclass(frozen=True)
class PairInterval:
    """The ratio of two sides.

    Attributes:
        estimate, low, high: of new / old; NaN with a refusal.
        refusal: why there is no ratio, in one sentence, or "".
    """

    estimate: float
    low: float
    high: float
    pairs: int
    refusal: str = ""

    def __str__(self) -> str:
        text = f"{self.estimate:.4g} ({self.low:.4g} to {self.high:.4g}, {self.pairs} pairs of processes)"
        return self.refusal or text

    def grew(self, negligible: float) -> bool:
        """Whether the whole interval lies above what is negligible; never with a refusal."""
        return self.low > 1.0 + negligible

    def shrank(self, negligible: float) -> bool:
        """Whether the whole interval lies below what is negligible; never with a refusal."""
        return self.high < 1.0 / (1.0 + negligible)


def estimate(old: Sequence[Sequence[float]], new: Sequence[Sequence[float]]) -> PairInterval:
    """The ratio of costs that were measured in rounds; sample i of a pair's sides is of round i.

    A cost that a process has once is one round.
    """
    logs = []
    for before, after in zip(old, new, strict=True):
        x, y = in_pairs(before, after)
        if refusal := refusal_of(x, y):
            return PairInterval(math.nan, math.nan, math.nan, len(old), refusal)
        ordered = np.sort(np.log(y) - np.log(x))
        cut = int(TRIMMED * len(ordered))
        logs.append(float(ordered[cut : len(ordered) - cut].mean()))
    pairs = len(logs)
    if pairs < FEWEST_PAIRS:
        refusal = f"{pairs} pairs of processes are too few: {FEWEST_PAIRS} are needed"
        return PairInterval(math.nan, math.nan, math.nan, pairs, refusal)
    from scipy.special import stdtrit  # takes a part of a second

    mean, error = float(np.mean(logs)), float(np.std(logs, ddof=1)) / math.sqrt(pairs)
    reach = float(stdtrit(pairs - 1, 0.5 + CONFIDENCE / 2.0)) * error
    return PairInterval(math.exp(mean), math.exp(mean - reach), math.exp(mean + reach), pairs)


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
        needed: whether the race fails without a verdict about it.
    """

    key: str
    title: str
    rounds: bool
    negligible: float
    detectable: float
    timed: bool = True
    needed: bool = True

    def values(self, side: SideSamples) -> Sequence[float]:
        """The samples of a side."""
        return side.rounds[self.key] if self.rounds else [side.once[self.key]]

    def ratio(self, samples: RaceSamples, side: str) -> PairInterval:
        """The ratio of a side to the old one."""
        old, new = ([self.values(pair[name]) for pair in samples.pairs] for name in (OLD, side))
        return estimate(old, new)

    def median(self, samples: RaceSamples, side: str) -> float:
        """The median of a side, in seconds of one step or bytes."""
        scale = 1e9 * (samples.count if self.rounds else 1) if self.timed else 1.0
        return median(value for pair in samples.pairs for value in self.values(pair[side])) / scale


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
        old, new: medians, in seconds of one step or bytes.
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
        if any(verdict.outcome is RaceOutcome.GREW for verdict in self.verdicts):
            return 1
        unclear = (RaceOutcome.NOISY, RaceOutcome.REFUSED)
        return 2 if any(verdict.outcome in unclear and verdict.cost.needed for verdict in self.verdicts) else 0


def judge(samples: RaceSamples) -> RaceJudgement:
    """The verdict of every cost that both sides have."""
    same_numpy, yardstick = samples.numpy[0] == samples.numpy[1], YARDSTICK.ratio(samples, NEW)
    differs = yardstick.grew(YARDSTICK.negligible) or yardstick.shrank(YARDSTICK.negligible)
    why = f"the same NumPy work next to the new version: {yardstick} times" if same_numpy and differs else ""
    notes = () if same_numpy else (f"NumPy differs ({' and '.join(samples.numpy)}): its work is no yardstick",)
    sides = [side for pair in samples.pairs for side in pair.values()]
    costs = [cost for cost in COSTS if all(cost.key in (side.rounds if cost.rounds else side.once) for side in sides)]
    verdicts = tuple(_verdict(samples, cost, why if cost.timed else "") for cost in costs)
    return RaceJudgement(verdicts, yardstick, notes)


def _verdict(samples: RaceSamples, cost: RaceCost, contradiction: str) -> RaceVerdict:
    ratio, twin = cost.ratio(samples, NEW), cost.ratio(samples, TWIN)
    why = ratio.refusal or twin.refusal or contradiction
    if not why and (twin.grew(cost.negligible) or twin.shrank(cost.negligible)):
        why = f"two processes of the old version differ: {twin} times"
    if why:
        outcome = RaceOutcome.REFUSED
    elif ratio.grew(cost.negligible):
        outcome = RaceOutcome.GREW
    elif ratio.shrank(cost.negligible):
        outcome = RaceOutcome.SHRANK
    else:
        outcome = RaceOutcome.EQUAL if ratio.high < 1.0 + cost.detectable else RaceOutcome.NOISY
    return RaceVerdict(cost, outcome, ratio, twin, cost.median(samples, OLD), cost.median(samples, NEW), why)


_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))
_HEAD = ("cost", "verdict", "old", "new", "new / old (99 %)", "old / old (99 %)")


def table(samples: RaceSamples, judgement: RaceJudgement) -> str:
    """One line for each cost, after what raced and before a conclusion."""
    rows = [_HEAD, *map(_row, judgement.verdicts)]
    widths = [max(len(row[index]) for row in rows) for index in range(len(_HEAD))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    worse = [verdict.cost.title for verdict in judgement.verdicts if verdict.outcome is RaceOutcome.GREW]
    conclusion = f"Worse: {', '.join(worse)}." if worse else "Nothing is worse."
    if judgement.status == 2:
        conclusion = "Cannot be judged; free a core, or race more --pairs."
    loads = f"; load {' to '.join(f'{load:.1f}' for load in samples.load)}" if samples.load else ""
    heading = [
        f"{samples.framework} {samples.old} → {samples.new}, {samples.place}, {samples.fixture}{loads}",
        f"yardstick, the same NumPy work: {judgement.yardstick}",
        *judgement.notes,
        *(f"{verdict.cost.title}: {verdict.why}" for verdict in judgement.verdicts if verdict.why),
    ]
    return "".join(f"{one_line(line)}\n" for line in (*heading, *lines, conclusion))


def to_json(samples: RaceSamples, judgement: RaceJudgement) -> str:
    """What raced, and the verdicts with their intervals, as JSON."""
    names = ("framework", "place", "fixture", "old", "new", "load")
    raced = {name: getattr(samples, name) for name in names}
    return to_text(plain({**raced, "status": judgement.status, **vars(judgement)}))


def _row(verdict: RaceVerdict) -> tuple[str, ...]:
    sides = (_amount(value, verdict.cost.timed) for value in (verdict.old, verdict.new))
    ratios = (
        "none" if interval.refusal else f"{interval.estimate:.3f} ({interval.low:.3f}–{interval.high:.3f})"
        for interval in (verdict.ratio, verdict.twin)
    )
    return verdict.cost.title, verdict.outcome.value, *sides, *ratios


def _amount(value: float, timed: bool) -> str:
    if not timed:
        return f"{value / 2**20:.1f} MiB"
    size, unit = next((pair for pair in _UNITS if value >= pair[0]), _UNITS[-1])
    return f"{value / size:.3g} {unit}" if math.isfinite(value) else "none"
