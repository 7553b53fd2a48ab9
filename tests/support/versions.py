"""Records of several versions, with tests and outcomes as a test of histories wants them."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from results.history.changes import LineHistory, history
from results.history.versions import FolderContents, JudgedVersion, PlannedCell, VersionLine, condense, lines
from results.record.reading import ClauseText, Outcome, Record, Series, Suite, TestVerdict, Variant
from tests.support.small_record import DATE

CLAUSE = "scaling.skip"


def record(version: str, tests: Mapping[str, str], revision: int = 1, **changes: Any) -> Record:
    """A record of a version; `tests` are outcomes, or "fail: SIGNATURE", by test of the clause or CLAUSE/TEST."""
    named = {(name if "/" in name else f"{CLAUSE}/{name}"): outcome for name, outcome in tests.items()}
    verdicts = []
    for name, said in named.items():
        outcome, _, signature = said.partition(": ")
        verdicts.append(TestVerdict(name, name.partition("/")[0], Outcome(outcome), signature))
    clauses = {v.clause: ClauseText("MUST", "…", "", (), v.clause.partition(".")[0], revision) for v in verdicts}
    variant = Variant(version, {"libc": "glibc 2.36", "machine": "x86_64", "python": "3.11.7"})
    series = Series("torch", "cpu", "cpu", "eager")
    suite = Suite("1", areas={"judging": "0"})
    whole = Record(suite, series, variant, DATE, 0, "", clauses, DATE, 1.0, "complete", tuple(verdicts))
    return replace(whole, **changes).sorted()


def judged(version: str, tests: Mapping[str, str], revision: int = 1, **changes: Any) -> JudgedVersion:
    """The same, condensed."""
    return condense(record(version, tests, revision, **changes))


def gathered(
    *members: JudgedVersion, planned: Sequence[tuple[PlannedCell, JudgedVersion | None]] = ()
) -> FolderContents:
    """Records without a plan, and cells of a plan."""
    return FolderContents(members, tuple(planned))


def only_line(*members: JudgedVersion, planned: Sequence[tuple[PlannedCell, JudgedVersion | None]] = ()) -> VersionLine:
    """Their line, which is one."""
    (line,) = lines(gathered(*members, planned=planned))
    return line


def history_of(*versions: tuple[str, Mapping[str, str]]) -> LineHistory:
    """The history of records of these versions."""
    return history(only_line(*(judged(version, tests) for version, tests in versions)))
