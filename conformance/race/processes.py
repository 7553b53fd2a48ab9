"""Runs a race: pairs of processes one after the other, and within each pair rounds in which the sides take turns."""

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
from pathlib import Path
from random import Random
from typing import IO, Any, Literal

from conformance.runner.subprocesses import guard_group
from results.record.files import os_problem

ROOT = Path(__file__).parents[2]

SAMPLE_NS = 5_000_000
"""What a sample of steps takes at least: far more than the clock's resolution, and so short that what slows the machine
slows the sides of a round alike."""

OLD, NEW, TWIN = "old", "new", "twin"
"""Sides: the twin is a second process of the old version."""

FEWEST_PAIRS = 5
"""Fewest pairs of processes."""

PAIRS = 8
ROUNDS = 240
LIMIT_S = 300.0

EVERY = 3
"""Rounds from one sample of the optimizer step and of NumPy work to the next."""

YARDSTICKS = 2
"""Rounds of NumPy work in a sample of it."""

START_S, WORK_S = 300.0, 120.0
"""Seconds in which a process has to start, to import its framework, and to make its first step; and for other work."""

FIXTURES = ("encoder", "digits-mlp", "small-mlp")
"""Models that can be raced; `conformance.race.worker` makes them."""

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


class RaceError(RuntimeError):
    """A race cannot be run; the message is one line."""


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
    start, load, when = time.monotonic(), os.getloadavg()[0], datetime.now(UTC).isoformat(timespec="seconds")
    taken: list[dict[str, SideSamples]] = []
    for _ in watch(range(pairs)):
        if len(taken) >= FEWEST_PAIRS and time.monotonic() - start > limit_s:
            break
        taken.append(_run_pair({OLD: old, NEW: new, TWIN: old}, kinds, count, rounds, order))
    return RaceSamples(
        framework=old.framework,
        place=facts[OLD]["place"],
        fixture=old.fixture,
        old=facts[OLD]["version"],
        new=facts[NEW]["version"],
        numpy=(facts[OLD]["numpy"], facts[NEW]["numpy"]),
        count=count,
        pairs=tuple(taken),
        load=(round(load, 2), round(os.getloadavg()[0], 2)),
        started=when,
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
