"""Repetition of a run's regressions, twice and each time in a new process: those that do not repeat are unstable.

A regression is a verdict that needs action, or one that is worse than in the baseline of its series: it newly fails,
fails in another way, or is newly not judged. A test that timed out is repeated alone, and is a timeout only if it times
out again. The record is rewritten before anything is reported.
"""

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from conformance.runner.baselines import former
from conformance.runner.subprocesses import run_to_end
from conformance.test_ids import ROOT, node_of
from results.compare.changes import ChangeKind
from results.compare.comparison import compare
from results.compare.verdicts import came_to
from results.record.files import RecordError, one_line
from results.record.model import REFUSED, Outcome
from results.record.reading import Record, TestVerdict, journal_of, load, write
from results.show.clauses import number

TIMES = 2
"""Number of repetitions of each regression."""

MOST = 200
"""Largest number of verdicts of a run to repeat, those that need action first."""

_WORSE = frozenset({ChangeKind.NEWLY_FAILING, ChangeKind.FAILING_OTHERWISE, ChangeKind.NEWLY_UNJUDGED})
_NAMED = 3


@dataclass(frozen=True)
class RepeatResults:
    """The results of the repetitions.

    Attributes:
        record: the run's record, with the repeats.
        tests: tests to repeat.
        unstable: tests whose regression did not repeat.
        late: tests that timed out in the run and then got the verdict of their repetitions.
        omitted: number of regressions beyond `MOST`, which were not repeated.
    """

    record: Record
    tests: tuple[str, ...] = ()
    unstable: tuple[str, ...] = ()
    late: tuple[str, ...] = ()
    omitted: int = 0

    @property
    def lines(self) -> list[str]:
        """The report: one line for stable tests, one for unstable ones."""
        stable = [test for test in self.tests if test not in self.unstable + self.late and self._repeats(test)]
        result = []
        if stable:
            result.append(f"regressions that repeated in {TIMES} new processes: {_some(stable)}")
        if self.unstable:
            result.append(f"unstable, regressions that did not repeat in {TIMES} new processes: {_some(self.unstable)}")
        if self.late:
            result.append(f"timed out while other tests ran, and not when repeated alone: {_some(self.late)}")
        if unrepeated := [test for test in self.tests if not self._repeats(test)]:
            result.append(f"could not be repeated: {_some(unrepeated)}")
        if self.omitted:
            result.append(f"not repeated, beyond the limit of {MOST}: {self.omitted} more")
        return [one_line(line) for line in result]

    def _repeats(self, test: str) -> tuple[str, ...]:
        return next(verdict.repeats for verdict in self.record.verdicts if verdict.test == test)


def _some(tests: Sequence[str]) -> str:
    names = ", ".join(test.partition("/")[2] for test in tests[:_NAMED])
    return f"{len(tests)} ({names}{', ...' if tests[_NAMED:] else ''})"


def due(record: Record) -> list[str]:
    """Return the tests of a record to repeat, those that need action first, without timeouts that the baseline has too.

    Raises:
        RecordError: a baseline cannot be read.
    """
    if record.status == "interrupted":
        return []
    baseline = former(record)
    hanging = _timeouts(baseline[1]) if baseline is not None else frozenset()
    bad = [verdict.test for verdict in record.verdicts if verdict.outcome.bad]
    bad = [test for test in bad if test not in hanging & _timeouts(record)]
    changes = compare(baseline[1], record).changes if baseline is not None else ()
    worse = {change.subject: None for change in changes if change.kind in _WORSE}
    return [test for test in dict.fromkeys((*bad, *worse)) if node_of(test) is not None]


def _timeouts(record: Record) -> frozenset[str]:
    return frozenset(verdict.test for verdict in record.verdicts if verdict.outcome is Outcome.TIMEOUT)


def _to_end(command: Sequence[str]) -> object:
    return run_to_end(command, ROOT, silent=True)


def repeat(
    path: Path,
    command: Sequence[str],
    tell: Callable[[str], object] = print,
    run: Callable[[Sequence[str]], object] = _to_end,
) -> RepeatResults:
    """Repeat the regressions of a record, and rewrite its file with the results.

    Args:
        command: runs pytest on the same framework, device and mode, in one worker; the tests are added to it.
        tell: called with one line before the repetitions begin.
        run: runs a command in the checkout to its end.

    Raises:
        RecordError: the record or a baseline cannot be read, or the record cannot be written; the file stays as it was.
    """
    record = load(path)
    tests = due(record)
    selected = tuple(tests[:MOST])
    if not selected:
        return RepeatResults(record)
    tell(f"repeating {number(len(selected), 'verdict')} that got worse, {TIMES} times, in new processes")
    rounds = [_round([*command, f"--seed={record.seed}"], selected, run) for _ in range(TIMES)]
    reruns = [{verdict.test: verdict for verdict in rerun.verdicts} if rerun else {} for rerun in rounds]
    settled = tuple(
        settle(verdict, [verdicts.get(verdict.test) for verdicts in reruns]) if verdict.test in selected else verdict
        for verdict in record.verdicts
    )
    unstable = tuple(verdict.test for verdict in settled if verdict.outcome is Outcome.UNSTABLE)
    timed_out = _timeouts(record)
    record = replace(record, verdicts=settled)
    late = tuple(sorted(timed_out.intersection(selected) - _timeouts(record) - {*unstable}))
    if late:
        record = _with_parts(record, next(rerun for rerun in reversed(rounds) if rerun), late)
    write(path, record)
    return RepeatResults(record, selected, unstable, late, len(tests) - len(selected))


def _with_parts(record: Record, other: Record, tests: Sequence[str]) -> Record:
    """Return the record with another record's observations, measurements, traces and tensors of these tests."""
    cases = {test.partition("/")[2] for test in tests}
    parts: dict[str, Any] = {
        name: (
            *(part for part in getattr(record, name) if part.case not in cases),
            *(part for part in getattr(other, name) if part.case in cases),
        )
        for name in ("observations", "measurements", "traces", "tensors")
    }
    return replace(record, findings={**other.findings, **record.findings}, **parts).sort_parts()


def _round(command: Sequence[str], tests: Sequence[str], run: Callable[[Sequence[str]], object]) -> Record | None:
    """Run the tests in a new process and return their record, complete or not; None if there is no record."""
    with tempfile.TemporaryDirectory(prefix="conformance-") as folder:
        path = Path(folder) / "repeat.json"
        nodes = filter(None, map(node_of, tests))
        run([*command, "-q", f"--record={path}", *nodes])
        for written in (path, journal_of(path)):
            if written.exists():
                try:
                    return load(written)
                except RecordError:
                    return None
    return None


def settle(verdict: TestVerdict, repeats: Sequence[TestVerdict | None]) -> TestVerdict:
    """Return a verdict after its repetitions: as it was, or unstable. A repetition without a verdict is None.

    A timeout stays if each repetition times out; if none does and they agree, it becomes the last repetition's verdict.
    Another verdict that needs action stays if each repetition needs action too, in whatever way. A refusal stays if
    each repetition is a refusal, and any other verdict if each repetition has the same outcome.
    """

    def as_before(again: TestVerdict) -> bool:
        if verdict.outcome is Outcome.TIMEOUT:
            return again.outcome is Outcome.TIMEOUT
        if verdict.outcome.bad:
            return again.outcome.bad
        return {verdict.outcome, again.outcome} <= REFUSED or came_to(again) == came_to(verdict)

    completed = [repeated for repeated in repeats if repeated is not None]
    outcomes = tuple(came_to(repeated) for repeated in completed)
    if all(map(as_before, completed)):
        return replace(verdict, repeats=outcomes)
    if verdict.outcome is Outcome.TIMEOUT and _agree(completed):
        return replace(completed[-1], repeats=outcomes)
    story = f"{came_to(verdict)} in the run, {' and '.join(outcomes)} when repeated in a new process"
    message = f"{story}: {verdict.message}" if verdict.message else story
    return replace(verdict, outcome=Outcome.UNSTABLE, message=message, repeats=outcomes)


def _agree(repeats: Sequence[TestVerdict]) -> bool:
    if any(verdict.outcome is Outcome.TIMEOUT for verdict in repeats):
        return False
    return len({came_to(verdict) for verdict in repeats}) == 1 or all(verdict.outcome.bad for verdict in repeats)


def repeatable(arguments: Sequence[str]) -> bool:
    """Return whether a run with these pytest arguments can be repeated: not with new generated cases."""
    return not any("nightly" in word for word in arguments)
