"""The history of a clause in a line of versions: its word in each, runs of equal words, the changes, and their reasons.

Two versions are compared by the tests that both judged, with equal identity and training runs. So a test that only some
records have, or that abstains or is unstable somewhere, changes nothing; partial records count for the tests that they
judged. A version is compared with the nearest older one. If that one lacks some of its tests, the next older ones that
have them are compared too, and a difference is a change within that wider interval. Upstream changes that explain a
change are in `explanations.toml`, written by hand.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cache, cached_property
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from results.history.versions import (
    STATEMENTS,
    CaseState,
    CaseWord,
    ClauseFacts,
    VersionColumn,
    VersionLine,
    comparable,
    gravest,
)
from results.show.portability import age

PointKind = Literal["outcome", "failure", "support"]
"""outcome: another word. failure: it fails before and after, but in other tests or with another signature. support: it
passes before and after, and a test of it became supported, or no longer is."""


@dataclass(frozen=True)
class ChangePoint:
    """A difference between two versions of a line.

    Attributes:
        before, after: places of the versions in the line; the change came after the one and by the other.
        old, new: words of the clause by the compared tests.
        compared: number of tests that both versions judged.
        fails, passes, refused: tests that newly fail, newly pass, and are newly unsupported.
        otherwise: tests that fail in both, with the old and the new signature.
        links: reason and web address of the findings that the failing tests of either side rest on.
    """

    clause: str
    before: int
    after: int
    kind: PointKind
    old: CaseWord
    new: CaseWord
    compared: int
    fails: tuple[str, ...] = ()
    passes: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    otherwise: tuple[tuple[str, str, str], ...] = ()
    links: tuple[tuple[str, str], ...] = ()

    @property
    def worse(self) -> bool:
        """Whether a test newly fails or is no longer supported."""
        return bool(self.fails or self.refused)


@dataclass(frozen=True)
class VersionRun:
    """Neighbouring versions with one word, every one of them judged.

    Attributes:
        first, last: places in the line.
        other_tests: the word before differs, but only by tests that were not judged in both versions.
        point: the change that begins it, or None.
    """

    first: int
    last: int
    word: CaseWord
    other_tests: bool = False
    point: ChangePoint | None = None


@dataclass(frozen=True)
class ClauseHistory:
    """A clause in a line of versions.

    Attributes:
        words: by version; None where no record has the clause.
        runs: of the versions in which something was judged, in order.
        points: every change.
    """

    clause: str
    facts: ClauseFacts
    words: tuple[CaseWord | None, ...]
    runs: tuple[VersionRun, ...]
    points: tuple[ChangePoint, ...]


@dataclass(frozen=True)
class LineHistory:
    """Every clause of a line, by name."""

    line: VersionLine
    clauses: Mapping[str, ClauseHistory]

    def only(self, clause: str) -> LineHistory | None:
        """The history of one clause; None if no record of the line has it."""
        return LineHistory(self.line, {clause: self.clauses[clause]}) if clause in self.clauses else None

    @cached_property
    def points(self) -> tuple[ChangePoint, ...]:
        """Every change of every clause, the newest version first."""
        result = [point for clause in self.clauses.values() for point in clause.points]
        return tuple(sorted(result, key=lambda point: (-point.after, not point.worse, point.clause)))


def history(line: VersionLine) -> LineHistory:
    """The history of every clause that a record of the line has."""
    facts = {name: text for column in line.columns for one in column.records for name, text in one.clauses.items()}
    judged = sorted({name for column in line.columns for one in column.records for name in one.cases})
    sets = frozenset[str]().union(*(one.instruction_sets for column in line.columns for one in column.records))
    return LineHistory(line, {name: _clause(name, facts[name], line.columns, sets) for name in judged})


def _clause(name: str, facts: ClauseFacts, columns: Sequence[VersionColumn], sets: frozenset[str]) -> ClauseHistory:
    tables = [_merged(name, column, sets) for column in columns]
    words = tuple(gravest(case.state.word for case in table.values()) if table else None for table in tables)
    points = _points(name, columns, tables)
    return ClauseHistory(name, facts, words, tuple(_runs(words, points)), tuple(points))


@dataclass(frozen=True, slots=True)
class _Case:
    state: CaseState
    tells_runs: bool


_Table = Mapping[str, _Case]


def _merged(clause: str, column: VersionColumn, sets: frozenset[str]) -> _Table:
    """The states of a clause's tests in one version; those in which its records disagree are unstable."""
    table: dict[str, _Case] = {}
    for one in column.records:
        lacking = sets - one.instruction_sets if one.instruction_sets else frozenset[str]()
        for test, state in one.cases.get(clause, {}).items():
            if lacking & state.reason:
                state = replace(state, word="abstain")
            new, old = _Case(state, one.tells_runs), table.get(test)
            table[test] = new if old is None else _agreed(old, new)
    return table


def _agreed(old: _Case, new: _Case) -> _Case:
    if new.state.identity != old.state.identity:
        return max(old, new, key=lambda case: case.state.identity)
    if old.state.word == new.state.word or old.state.word not in STATEMENTS:
        return new
    if new.state.word not in STATEMENTS:
        return old
    return replace(new, state=replace(new.state, word="unstable"))


def _points(clause: str, columns: Sequence[VersionColumn], tables: Sequence[_Table]) -> list[ChangePoint]:
    result: list[ChangePoint] = []
    for after, table in enumerate(tables):
        left = {test for test, case in table.items() if case.state.word in STATEMENTS}
        for before in range(after - 1, -1, -1):
            if not left:
                break
            common = {test: (tables[before][test], case) for test, case in table.items() if test in tables[before]}
            common = {
                test: (old, new)
                for test, (old, new) in common.items()
                if comparable(old.state, new.state, old.tells_runs and new.tells_runs)
            }
            if left.isdisjoint(common):
                continue
            left -= common.keys()
            point = _point(clause, before, after, common)
            if point is not None and not _known(point, result):
                result.append(replace(point, links=tuple(_links(point, columns, tables))))
    return result


def _known(point: ChangePoint, points: Iterable[ChangePoint]) -> bool:
    """Whether changes inside the interval say all that the point says."""
    inside = [each for each in points if point.before <= each.before and each.after <= point.after]
    fails = {test for each in inside for test in each.fails}
    passes = {test for each in inside for test in each.passes}
    refused = {test for each in inside for test in each.refused}
    otherwise = {test for each in inside for test, _, _ in each.otherwise}
    return (
        fails >= {*point.fails}
        and passes >= {*point.passes}
        and refused >= {*point.refused}
        and otherwise | fails >= {test for test, _, _ in point.otherwise}
    )


def _point(clause: str, before: int, after: int, common: Mapping[str, tuple[_Case, _Case]]) -> ChangePoint | None:
    states = {test: (old.state, new.state) for test, (old, new) in sorted(common.items())}
    moved = {test: pair for test, pair in states.items() if pair[0].word != pair[1].word}
    otherwise = tuple(
        (test, old.signature, new.signature)
        for test, (old, new) in states.items()
        if old.word == new.word == "fail" and old.signature != new.signature
    )
    if not moved and not otherwise:
        return None
    old, new = (gravest(pair[side].word for pair in states.values()) for side in (0, 1))
    to = {each: tuple(test for test, pair in moved.items() if pair[1].word == each) for each in STATEMENTS}
    kind: PointKind = "outcome" if old != new else "failure" if old == "fail" else "support"
    return ChangePoint(
        clause, before, after, kind, old, new, len(states), to["fail"], to["pass"], to["unsupported"], otherwise
    )


def _links(point: ChangePoint, columns: Sequence[VersionColumn], tables: Sequence[_Table]) -> Iterator[tuple[str, str]]:
    """Reasons and addresses of the findings behind the failures that came, went or differ."""
    sides = ((point.after, (*point.fails, *(test for test, _, _ in point.otherwise))), (point.before, point.passes))
    listed = set()
    for place, tests in sides:
        texts = {name: text for one in columns[place].records for name, text in one.findings.items()}
        for test in tests:
            state = tables[place][test].state
            reason, link = texts.get(state.finding, ("", ""))
            link = state.link or link
            if state.word == "fail" and (reason or link) and (reason, link) not in listed:
                listed.add((reason, link))
                yield reason, link


def _runs(words: Sequence[CaseWord | None], points: Sequence[ChangePoint]) -> Iterator[VersionRun]:
    begins = {point.after: point for point in reversed(points)}
    run: VersionRun | None = None
    for place, word in enumerate(words):
        if word is None:
            if run is not None:
                yield run
            run = None
            continue
        point = begins.get(place)
        if run is not None and run.word == word and point is None:
            run = replace(run, last=place)
            continue
        if run is not None:
            yield run
        earlier = next((each for each in reversed(words[:place]) if each in STATEMENTS), None)
        other = point is None and word in STATEMENTS and earlier not in (None, word)
        run = VersionRun(place, place, word, other, point)
    if run is not None:
        yield run


EXPLANATIONS = Path(__file__).with_name("explanations.toml")

_Text = Annotated[str, Meta(min_length=1)]


class Explanation(Struct, frozen=True, forbid_unknown_fields=True):
    """An upstream change.

    Attributes:
        package: the one that changed: the framework, or a companion.
        clauses: patterns of clause ids. tests: a pattern of test ids, "*" for all.
        between: versions of the package; the change came after the one and by the other.
        link: of the change, its release notes or its issue.
    """

    framework: _Text
    package: _Text
    clauses: Annotated[tuple[_Text, ...], Meta(min_length=1)]
    between: tuple[_Text, _Text]
    text: _Text
    link: Annotated[str, Meta(pattern="^https://")]
    tests: _Text = "*"

    def explains(self, line: VersionLine, point: ChangePoint) -> bool:
        """Whether the point is about one of the clauses, and its interval of versions contains part of this one."""
        if line.framework != self.framework or not any(fnmatchcase(point.clause, each) for each in self.clauses):
            return False
        moved = (*point.fails, *point.passes, *point.refused, *(test for test, _, _ in point.otherwise))
        if not any(fnmatchcase(test, self.tests) for test in moved):
            return False
        sides = [_version(line, place, self.package) for place in (point.before, point.after)]
        after, by = self.between
        return all(sides) and age(sides[0]) < age(by) and age(after) < age(sides[1])


class _Explanations(Struct, forbid_unknown_fields=True):
    explanation: tuple[Explanation, ...] = ()


def _version(line: VersionLine, place: int, package: str) -> str:
    column = line.columns[place]
    return (
        column.version if package == line.package else column.companions.get(package, dict(line.fixed).get(package, ""))
    )


@cache
def explanations(path: Path = EXPLANATIONS) -> tuple[Explanation, ...]:
    """The entries of a file.

    Raises:
        ValueError: an entry lacks a key, has another, or a value of another kind.
    """
    try:
        return msgspec.toml.decode(path.read_bytes(), type=_Explanations).explanation
    except msgspec.MsgspecError as error:
        raise ValueError(f"{path.name}: {error}") from None


def explained(
    line: VersionLine, point: ChangePoint, known: Iterable[Explanation] | None = None
) -> tuple[tuple[str, str], ...]:
    """Text and link of what explains a point: entries of the file, else findings with a link; none if nothing does."""
    entries = explanations() if known is None else known
    listed = tuple((each.text, each.link) for each in entries if each.explains(line, point))
    return listed or tuple((text, link) for text, link in point.links if link.startswith(("http://", "https://")))
