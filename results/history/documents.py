"""Histories as JSON: compact, so that they can be committed, and whole, so that they can be read again.

Versions are numbered by their place in the line, and words have one letter (`LETTERS`). A run is [first, last, word],
of judged versions alone. docs/history.md describes the fields.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, field, to_builtins

from results.history.changes import (
    ChangePoint,
    ClauseHistory,
    LineHistory,
    PointKind,
    VersionRun,
    alongside,
    find_explanations,
)
from results.history.versions import CaseWord, ClauseFacts, VersionLine
from results.record.files import RecordError, read
from results.record.values import ClauseId, parse, plain, to_line

VERSION = 2

_Letter = Literal["p", "f", "u", "a", "s", "n"]

LETTERS: dict[CaseWord, _Letter] = {
    "pass": "p",
    "fail": "f",
    "unsupported": "u",
    "abstain": "a",
    "unstable": "s",
    "not offered": "n",
}
_WORDS = {letter: word for word, letter in LETTERS.items()}

_START = b'{"version":'
_OTHER_TESTS = "other tests"

_Place = Annotated[int, Meta(ge=0)]


class _Point(Struct, forbid_unknown_fields=True, omit_defaults=True):
    between: tuple[_Place, _Place]
    kind: PointKind
    words: tuple[_Letter, _Letter]
    compared: int
    explained: tuple[tuple[str, str], ...]
    fails: tuple[str, ...] = ()
    passes: tuple[str, ...] = ()
    unsupported: tuple[str, ...] = ()
    otherwise: tuple[tuple[str, str, str], ...] = ()
    alongside: tuple[str, ...] = field(default=(), name="with")


class _Clause(Struct, forbid_unknown_fields=True, omit_defaults=True):
    runs: tuple[tuple[Any, ...], ...]
    points: tuple[_Point, ...] = ()


class _Line(VersionLine, frozen=True, forbid_unknown_fields=True):
    clauses: dict[ClauseId, _Clause]


class _Document(Struct, forbid_unknown_fields=True):
    version: Literal[2]
    words: dict[str, str]
    clauses: dict[ClauseId, ClauseFacts]
    lines: tuple[_Line, ...]


def compact(histories: Sequence[LineHistory]) -> str:
    """All lines as one document, in a line for each clause so that a difference of two documents is short."""
    facts = {name: clause.facts for one in histories for name, clause in one.clauses.items()}
    texts = ",\n".join(f"{_text(name)}:{_text(fact)}" for name, fact in sorted(facts.items()))
    lines = ",\n".join(_line(history) for history in histories)
    return f'{{"version":{VERSION},"words":{to_line(_WORDS)},"clauses":{{\n{texts}\n}},"lines":[\n{lines}\n]}}\n'


def _line(one: LineHistory) -> str:
    head = _text(VersionLine(*(getattr(one.line, name) for name in VersionLine.__struct_fields__)))[:-1]
    clauses = ",\n".join(
        f"{_text(name)}:{_text(_clause(one.line, clause))}" for name, clause in sorted(one.clauses.items())
    )
    return f'{head},"clauses":{{\n{clauses}\n}}}}'


def _text(part: object) -> str:
    return to_line(plain(to_builtins(part)))


def _clause(line: VersionLine, clause: ClauseHistory) -> _Clause:
    runs = tuple(
        (run.first, run.last, LETTERS[run.word], *([_OTHER_TESTS] if run.other_tests else [])) for run in clause.runs
    )
    return _Clause(runs, tuple(_point(line, point) for point in clause.points))


def _point(line: VersionLine, point: ChangePoint) -> _Point:
    return _Point(
        between=(point.before, point.after),
        kind=point.kind,
        words=(LETTERS[point.old], LETTERS[point.new]),
        compared=point.compared,
        explained=find_explanations(line, point),
        fails=point.fails,
        passes=point.passes,
        unsupported=point.refused,
        otherwise=point.otherwise,
        alongside=alongside(line, point),
    )


def is_history(path: Path) -> bool:
    """Whether a path is a file that begins as `compact` begins it; no record does."""
    if not path.is_file():
        return False
    with path.open("rb") as stream:
        return stream.read(len(_START)) == _START


def load(path: Path) -> tuple[LineHistory, ...]:
    """The lines of a file that `compact` made; the web pages that explain a point are those known now, else the file's.

    Raises:
        RecordError: the file cannot be read, or is no history.
    """
    content = read(path)
    try:
        whole: _Document = parse(content, _Document)
        return tuple(_read_line(one, whole.clauses) for one in whole.lines)
    except (ValueError, KeyError, TypeError) as error:
        raise RecordError(path, f"is no history ({error})", "make it again by `conformance history`") from None


def _read_line(line: _Line, facts: Mapping[str, ClauseFacts]) -> LineHistory:
    count, clauses = len(line.columns), {}
    for name, clause in line.clauses.items():
        points = tuple(_read_point(name, point, count) for point in clause.points)
        clauses[name] = ClauseHistory(facts[name], tuple(_read_run(run, count) for run in clause.runs), points)
    return LineHistory(line, clauses)


def _read_run(run: tuple[Any, ...], count: int) -> VersionRun:
    first, last, letter, *rest = run
    if not 0 <= first <= last < count:
        raise ValueError(f"a run from version {first} to {last} of {count}")
    return VersionRun(first, last, _WORDS[letter], rest == [_OTHER_TESTS])


def _read_point(clause: str, point: _Point, count: int) -> ChangePoint:
    before, after = point.between
    if not before < after < count:
        raise ValueError(f"{clause} changes between versions {before} and {after} of {count}")
    old, new = (_WORDS[letter] for letter in point.words)
    moved = point.fails, point.passes, point.unsupported, point.otherwise
    return ChangePoint(clause, before, after, point.kind, old, new, point.compared, *moved, point.explained)
