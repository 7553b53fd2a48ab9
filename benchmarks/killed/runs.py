"""One run of a selection of the suites, in which one process is killed, and what the run says of it."""

from __future__ import annotations

import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from benchmarks.killed.processes import KINDS, MARK, below, gone_after, kill, marked, of_kind
from benchmarks.kit.processes import ROOT, RunError, environment
from results.record.files import RecordError
from results.record.journal import journal_of, recover
from results.record.reading import Record, load

GONE_S = 10.0
"""How long processes may live on whose run, or whose worker, has been killed."""

LATE_S = 150.0
"""How much longer a run may take than without a kill: a test's limit, and the start of other ranks."""

WORDS = ("--numprocesses=1", "--max-worker-restart=1000", "--timeout=120", "-q", "-p", "no:cacheprovider")


@dataclass(frozen=True)
class Undisturbed:
    """A run in which nothing is killed: its seconds, and the outcome of each test."""

    seconds: float
    outcomes: Mapping[str, str]


@dataclass(frozen=True)
class Killed:
    """A run in which a process was killed.

    Attributes:
        moment: seconds from its start.
        kind: one of `KINDS`; "" where the run had ended before there was one.
        said: what the record or the journal says.
        gone_s: seconds until what has to go with the process was gone, after the kill or, for a rank, the run's end.
        left: processes that were still there `GONE_S` later.
        wrong: what is not as it should be, a line each.
    """

    moment: float
    kind: str
    said: str
    gone_s: float
    left: int
    wrong: tuple[str, ...]


def undisturbed(selection: Sequence[str]) -> Undisturbed:
    """Runs the selection to its end.

    Raises:
        RunError: it wrote no record, or left processes.
    """
    with tempfile.TemporaryDirectory() as folder:
        mark, record = uuid4().hex, Path(folder) / "run.json"
        began = time.monotonic()
        run = _started(selection, mark, record)
        run.wait()
        seconds = time.monotonic() - began
        if not record.exists():
            raise RunError(f"a run without a kill wrote no record: {_last_line(record)}")
        if gone_after(mark, None, GONE_S)[1]:
            raise RunError("a run without a kill left processes")
        return Undisturbed(seconds, _outcomes(load(record)))


def killed(selection: Sequence[str], plain: Undisturbed, moments: int, seed: int) -> Iterator[Killed]:
    """Runs the selection again and again, and kills a process of each kind in turn, at random moments."""
    draw = random.Random(seed)
    for number in range(moments):
        yield _killed(selection, plain, KINDS[number % len(KINDS)], draw.uniform(0.0, plain.seconds), draw)


def _killed(selection: Sequence[str], plain: Undisturbed, kind: str, delay_s: float, draw: random.Random) -> Killed:
    with tempfile.TemporaryDirectory() as folder:
        mark, record = uuid4().hex, Path(folder) / "run.json"
        began = time.monotonic()
        run = _started(selection, mark, record)
        try:
            time.sleep(delay_s)
            victim, goes = _victim(kind, run, mark, draw)
            moment = time.monotonic() - began
            kill([] if victim is None else [victim])
            gone_s, left = gone_after(mark, goes, GONE_S)
            wrong = [f"{left} of its processes live on"] if left else []
            try:
                run.wait(plain.seconds + LATE_S)
            except subprocess.TimeoutExpired:
                wrong.append(f"the run did not end within {plain.seconds + LATE_S:.0f} s")
                run.kill()
                run.wait()
            last_s, last = gone_after(mark, None, GONE_S)
            wrong += [f"{last} processes outlive the run"] if last else []
            said, more = _said(record, plain, kind if victim is not None else "")
        finally:
            kill(marked(mark))
            run.wait()
        return Killed(
            moment,
            kind if victim is not None else "",
            said,
            max(gone_s, last_s) if kind != "rank" else last_s,
            max(left, last),
            (*wrong, *more),
        )


def _victim(
    kind: str, run: subprocess.Popen[bytes], mark: str, draw: random.Random
) -> tuple[int | None, frozenset[int]]:
    """The process to kill, as soon as there is one, None if the run ends before; and those that have to go with it."""
    while run.poll() is None:
        processes = marked(mark)
        if found := of_kind(kind, run.pid, processes):
            victim = draw.choice(found)
            return victim, frozenset({victim} if kind == "rank" else {victim, *below(victim, processes)})
        time.sleep(0.02)
    return None, frozenset()


def _started(selection: Sequence[str], mark: str, record: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "pytest", *WORDS, f"--record={record}", *selection]
    with record.with_suffix(".log").open("wb") as log:
        return subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment({MARK: mark}),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def _said(record: Path, plain: Undisturbed, kind: str) -> tuple[str, Sequence[str]]:
    """What the record or the journal of a run says, and what is wrong with it."""
    whole = record.exists()
    if not whole and not journal_of(record).exists():
        return "nothing yet", [] if kind == "pytest" else [f"no record: {_last_line(record)}"]
    try:
        found = load(record) if whole else recover(journal_of(record))
    except RecordError as error:
        empty = not whole and not journal_of(record).stat().st_size
        return ("nothing yet", []) if empty and kind == "pytest" else ("unreadable", [str(error)])
    outcomes = _outcomes(found)
    other = {test: outcome for test, outcome in outcomes.items() if outcome != plain.outcomes.get(test)}
    words = [f"{count} {outcome}" for outcome, count in Counter(outcomes.values()).items()]
    said = f"{'record' if whole else 'journal'}, {found.status}: {' · '.join(words) or 'no test'}"
    cost = [f"{test.partition('/')[2]}: {outcome}" for test, outcome in other.items()]
    wrong = [f"the kill cost more than one test: {', '.join(cost)}"] if len(cost) > 1 else []
    if outcomes and not whole and kind != "pytest":  # xdist gives up where a worker dies before it has begun
        wrong.append("a run that was not killed wrote no record")
    if whole and plain.outcomes.keys() != outcomes.keys():
        wrong.append(f"{len(plain.outcomes.keys() - outcomes.keys())} tests have no verdict")
    return f"{said}{'; ' if cost else ''}{', '.join(cost)}", wrong


def _outcomes(found: Record) -> dict[str, str]:
    """Outcome and signature of each test."""
    signed = {v.test: f" ({v.signature})" if v.outcome.bad and v.signature else "" for v in found.verdicts}
    return {v.test: f"{v.outcome}{signed[v.test]}" for v in found.verdicts}


def _last_line(record: Path) -> str:
    lines = [line for line in record.with_suffix(".log").read_text("utf-8", "replace").splitlines() if line.strip()]
    return lines[-1] if lines else "it printed nothing"
