"""A race: pairs of processes one after the other, within each pair rounds in which the sides take turns, and a verdict.

The verdict is how many times the old version's cost a cost of the new version is.

Identical code differs between processes, in all of their rounds alike, so pairs and not rounds are the sample. A
pair's estimate is the 20 % trimmed mean of the log-ratios of its rounds, which took turns; of a cost that a process has
once it is that log-ratio. The estimate is the mean over pairs, and its 99 % interval is Student's (Student 1908), as in
a hierarchical model in which each pair has equally many rounds.

A cost grew if the whole interval lies above what is negligible. It did not grow if the interval lies below what the
race has to find. Between them the race was too noisy. Nothing is judged where the race contradicts itself: the twin,
a second process of the old version, costs more or less than the old one, or the same NumPy work takes longer next to
one of the versions.
"""

import json
import math
import os
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from random import Random
from statistics import median
from typing import IO, Any, Literal

import numpy as np

from conformance.race import FEWEST_PAIRS, NEW, OLD, PAIRS, TWIN, RaceError
from conformance.runner.subprocesses import guard_group
from results.compare.ratio import CONFIDENCE, TRIMMED, in_pairs, refusal_of
from results.record.files import RecordError, compress_content, one_line, os_problem, read, replace
from results.record.model import parse, plain, to_line

ROOT = Path(__file__).parents[2]

SAMPLE_NS = 5_000_000
"""What a sample of steps takes at least: far more than the clock's resolution, and so short that what slows the machine
slows the sides of a round alike."""
ROUNDS, LIMIT_S = 240, 300.0
"""Default number of rounds of a pair, and of seconds after which no pair begins."""
EVERY = 3
"""Rounds from one sample of the optimizer step and of NumPy work to the next."""
YARDSTICKS = 2
"""Rounds of NumPy work in a sample of it."""
START_S, WORK_S = 300.0, 120.0
"""Seconds in which a process has to start, to import its framework, and to make its first step; and for other work."""
_MOST_STEPS = 1000
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")

Watch = Callable[[range], Iterator[int]]


@dataclass(frozen=True)
class SideSamples:
    """Samples of one process.

    Attributes:
        rounds: nanoseconds of each round, by work.
        once: what a process gives once: nanoseconds of `import` and `first`, bytes of `memory`.
    """

    rounds: Mapping[str, Sequence[float]]
    once: Mapping[str, float]


@dataclass(frozen=True)
class RaceSamples:
    """Samples of a race.

    Attributes:
        framework, place, fixture: what raced. old, new: versions. numpy: its versions, of the old and the new side.
        count: steps in a sample. load: the machine's load average before the first and after the last pair.
    """

    framework: str
    place: str
    fixture: str
    old: str
    new: str
    numpy: tuple[str, str]
    count: int
    pairs: tuple[dict[str, SideSamples], ...]
    load: tuple[float, ...] = ()
    started: str = ""
    version: Literal[1] = field(default=1)


@dataclass(frozen=True)
class Racer:
    """A side of a race: an interpreter and what it loads."""

    python: Path
    framework: str
    device: str = "auto"
    mode: str = ""
    fixture: str = "encoder"

    @property
    def command(self) -> list[str]:
        """The command of its process."""
        arguments = ["-m", "conformance.race.worker", self.framework, self.device, self.mode, self.fixture]
        return [str(self.python), *arguments]


class RaceProcess:
    """A process that waits for work; `started` makes one."""

    def __init__(self, side: str, process: subprocess.Popen[bytes], errors: IO[bytes]) -> None:
        self._side, self._process, self._errors = side, process, errors

    def ask(self, what: str, count: int = 1, limit_s: float = WORK_S) -> dict[str, Any]:
        """The answer to a question; the first line that the process prints answers "".

        Raises:
            RaceError: the process refused, died or took too long.
        """
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.write(f"{what} {count}\n".encode() if what else b"")
            self._process.stdin.flush()
        output = self._process.stdout
        assert output is not None
        if not select.select([output], [], [], limit_s)[0]:
            raise RaceError(f"{self._side}: no answer within {limit_s:.0f} s; choose a smaller --fixture")
        line = output.readline()
        if not line.endswith(b"\n"):
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(1.0)
            self._errors.seek(0)
            lines = self._errors.read().decode("utf-8", "replace").strip().splitlines()
            text = lines[-1] if lines else f"exit status {self._process.poll()}"
            raise RaceError(f"{self._side}: its process ended: {' '.join(text.split())[:300]}")
        answer: dict[str, Any] = json.loads(line)
        if "refused" in answer:
            raise RaceError(f"{self._side}: {what}: {answer['refused'][:300]}")
        return answer

    def value(self, what: str, count: int = 1, limit_s: float = WORK_S) -> int:
        """The number that answers a question; errors as of `ask`."""
        return int(self.ask(what, count, limit_s)["value"])


@contextmanager
def start_process(side: str, racer: Racer) -> Iterator[RaceProcess]:
    """A process within the context, which ends with it and has imported all but its framework.

    Raises:
        RaceError: it cannot be started.
    """
    variables = os.environ | dict.fromkeys(_THREADS, "1") | {"PYTHONHASHSEED": "0"}
    pipe = subprocess.PIPE
    with ExitStack() as stack:
        errors = stack.enter_context(tempfile.TemporaryFile())
        try:
            process = subprocess.Popen(
                racer.command, 0, cwd=ROOT, env=variables, stdin=pipe, stdout=pipe, stderr=errors, process_group=0
            )
        except OSError as error:
            why = f"{os_problem(error)}; name a Python that has the framework"
            raise RaceError(f"{side}: {racer.python}: {why}") from None
        stack.callback(_end, process)
        stack.enter_context(guard_group(process.pid))
        result = RaceProcess(side, process, errors)
        result.ask("", limit_s=START_S)
        yield result


def _end(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def race(
    old: Racer, new: Racer, pairs: int = PAIRS, rounds: int = ROUNDS, limit_s: float = LIMIT_S, watch: Watch = iter
) -> RaceSamples:
    """The samples of a race of two versions, with a second process of the old one in each pair.

    Args:
        limit_s: after so many seconds no pair begins, if there are FEWEST_PAIRS.

    Raises:
        RaceError: a side cannot be started or measured, or the sides differ in more than their version.
    """
    facts = {side: _probe(side, racer) for side, racer in ((OLD, old), (NEW, new))}
    if facts[OLD]["place"] != facts[NEW]["place"]:
        raise RaceError(f"the sides run on {facts[OLD]['place']} and {facts[NEW]['place']}; choose --device and --mode")
    kinds = [kind for kind in facts[OLD]["kinds"] if kind in facts[NEW]["kinds"]]
    count = min(max(1, math.ceil(SAMPLE_NS / facts[OLD]["step_ns"])), _MOST_STEPS)
    order = Random(0)
    start, load_before = time.monotonic(), os.getloadavg()[0]
    started = datetime.now(UTC).isoformat(timespec="seconds")
    samples: list[dict[str, SideSamples]] = []
    for _ in watch(range(pairs)):
        if len(samples) >= FEWEST_PAIRS and time.monotonic() - start > limit_s:
            break
        samples.append(_run_pair({OLD: old, NEW: new, TWIN: old}, kinds, count, rounds, order))
    return RaceSamples(
        framework=old.framework,
        place=facts[OLD]["place"],
        fixture=old.fixture,
        old=facts[OLD]["version"],
        new=facts[NEW]["version"],
        numpy=(facts[OLD]["numpy"], facts[NEW]["numpy"]),
        count=count,
        pairs=tuple(samples),
        load=(round(load_before, 2), round(os.getloadavg()[0], 2)),
        started=started,
    )


def _probe(side: str, racer: Racer) -> dict[str, Any]:
    """What a process says before the race, which also reads the files that later ones import."""
    with start_process(side, racer) as process:
        answer = process.ask("load", limit_s=START_S)
        process.value("first", limit_s=START_S)
        kinds = tuple(map(str, process.ask("kinds", limit_s=START_S)["kinds"]))
        texts = {name: str(answer[name]) for name in ("version", "numpy", "place")}
        return {**texts, "kinds": kinds, "step_ns": min(process.value("step") for _ in range(3))}


def _run_pair(
    sides: Mapping[str, Racer], kinds: list[str], count: int, rounds: int, order: Random
) -> dict[str, SideSamples]:
    """Starts the processes in a drawn order, and lets them take turns."""
    names = [*sides]
    counts = {"step": count, "optimizer": count, "yardstick": YARDSTICKS}
    processes: dict[str, RaceProcess] = {}
    once: dict[str, dict[str, float]] = {side: {} for side in names}
    times: dict[str, dict[str, list[float]]] = {side: {kind: [] for kind in kinds} for side in names}

    with ExitStack() as stack:
        for side in order.sample(names, len(names)):
            processes[side] = stack.enter_context(start_process(side, sides[side]))
            once[side]["import"] = processes[side].value("load", limit_s=START_S)
        for side in order.sample(names, len(names)):
            once[side]["first"] = processes[side].value("first", limit_s=START_S)
        for turn in range(-EVERY, rounds):
            for kind in kinds if turn % EVERY == 0 else kinds[:1]:
                for side in order.sample(names, len(names)):
                    spent = processes[side].value(kind, counts[kind])
                    if turn >= 0:
                        times[side][kind].append(spent)
        for side in names:
            once[side]["memory"] = processes[side].value("memory")
    return {side: SideSamples(times[side], once[side]) for side in names}


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
        ratio = f"{self.estimate:.4g} ({self.low:.4g} to {self.high:.4g}, {self.pairs} pairs of processes)"
        return self.refusal or ratio

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
