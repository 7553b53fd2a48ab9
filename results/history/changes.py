"""The history of a clause in a line of versions: its word in each, runs of equal words, the changes, and their reasons.

Two versions are compared by the tests that both judged, with equal identity and training runs. So a test that only some
records have, or that abstains or is unstable somewhere, changes nothing; partial records count for the tests that they
judged. A version is compared with the nearest older one. If that one lacks some of its tests, the next older ones that
have them are compared too, and a difference is a change within that wider interval. Upstream changes that explain a
change are in `explanations.toml`, written by hand.

In words it is `≤2.6.0 fail · 2.7.0–2.12.0 pass (2.7.0: 2025-04-23) · 2.13.0 fail`. `≤V` is the first judged version:
what older versions do is unknown. A run names judged versions alone; those between them that were not judged stand
apart, with the reason.
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
from results.show.clauses import code, cut, number, source, words
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
    words = tuple(gravest(state.word for state in table.values()) if table else None for table in tables)
    points = _points(name, columns, tables)
    return ClauseHistory(name, facts, words, tuple(_runs(words, points)), tuple(points))


_Table = Mapping[str, CaseState]


def _merged(clause: str, column: VersionColumn, sets: frozenset[str]) -> _Table:
    """The states of a clause's tests in one version; those in which its records disagree are unstable."""
    table: dict[str, CaseState] = {}
    for one in column.records:
        lacking = sets - one.instruction_sets if one.instruction_sets else frozenset[str]()
        for test, state in one.cases.get(clause, {}).items():
            if lacking & state.reason:
                state = replace(state, word="abstain")
            table[test] = state if test not in table else _agreed(table[test], state)
    return table


def _agreed(old: CaseState, new: CaseState) -> CaseState:
    if new.identity != old.identity:
        return max(old, new, key=lambda state: state.identity)
    if old.word == new.word or old.word not in STATEMENTS:
        return new
    return replace(new, word="unstable") if new.word in STATEMENTS else old


def _points(clause: str, columns: Sequence[VersionColumn], tables: Sequence[_Table]) -> list[ChangePoint]:
    result: list[ChangePoint] = []
    for after, table in enumerate(tables):
        left = {test for test, state in table.items() if state.word in STATEMENTS}
        for before in range(after - 1, -1, -1):
            if not left:
                break
            common = {test: (tables[before][test], new) for test, new in table.items() if test in tables[before]}
            common = {test: pair for test, pair in common.items() if comparable(*pair)}
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


def _point(
    clause: str, before: int, after: int, common: Mapping[str, tuple[CaseState, CaseState]]
) -> ChangePoint | None:
    states = dict(sorted(common.items()))
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
            state = tables[place][test]
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


DOT = " · "
UNTESTED = "not tested"
NOT_JUDGED = "not judged"

_LONGEST_REASON = 80
_GAPS = 12


@dataclass(frozen=True)
class Stretch:
    """A stretch of versions in a statement.

    Attributes:
        versions: such as "≤2.6.0" or "2.7.0–2.12.0".
        word: what it says; of versions without a record, "not judged".
        since: date of the first of its versions, or "".
        note: what kind of change began it, or why nothing was judged; "" for none.
    """

    versions: str
    word: str
    since: str = ""
    note: str = ""

    def __str__(self) -> str:
        note = f" ({self.note})" if self.note else ""
        since = f" (from {self.since})" if self.since else ""
        return f"{self.versions} {self.word}{note}{since}"


def statement(line: VersionLine, clause: ClauseHistory, *, gaps: bool = True) -> str:
    """The history of a clause in one line of text.

    Args:
        gaps: whether versions that were not judged are named.
    """
    return DOT.join(str(stretch) for stretch in segments(line, clause) if gaps or stretch.word != NOT_JUDGED)


def segments(line: VersionLine, clause: ClauseHistory) -> Iterator[Stretch]:
    """The runs of a clause, and the versions between and around them without a judgement."""
    place, first = 0, True
    for run in clause.runs:
        yield from _apart(line.columns[place : run.first])
        begins = first and run.word in STATEMENTS
        yield Stretch(
            f"{'≤' if begins else ''}{_range(line.columns[run.first : run.last + 1])}",
            run.word,
            "" if first or run.word not in STATEMENTS else line.columns[run.first].released,
            _note(run),
        )
        place, first = run.last + 1, first and not begins
    yield from _apart(line.columns[place:])


def _apart(columns: Sequence[VersionColumn]) -> Iterator[Stretch]:
    """Neighbouring versions without a judgement, those of one reason together."""
    first = 0
    for place in range(1, len(columns) + 1):
        if place == len(columns) or columns[place].gap != columns[first].gap:
            gap = columns[first].gap
            word = NOT_JUDGED if gap else UNTESTED
            yield Stretch(_range(columns[first:place]), word, note=_short(gap))
            first = place


def _short(reason: str) -> str:
    return reason if len(reason) <= _LONGEST_REASON else f"{reason[: _LONGEST_REASON - 1]}…"


def _range(columns: Sequence[VersionColumn]) -> str:
    first, last = columns[0].version, columns[-1].version
    return first if len(columns) == 1 else f"{first}–{last}"


def _note(run: VersionRun) -> str:
    if run.other_tests:
        return "by other tests"
    return _manner(run.point) if run.point and run.point.kind != "outcome" else ""


def _manner(point: ChangePoint) -> str:
    """How a clause with the same word before and after differs."""
    if point.kind == "support":
        return "with other support"
    gone = point.passes or point.refused
    if point.otherwise or bool(point.fails) == bool(gone):
        return "otherwise"
    return "in more tests" if point.fails else "in fewer tests"


def interval(line: VersionLine, point: ChangePoint) -> str:
    """The two versions of a point, such as "2.6.0 → 2.13.0", with the newer one's date where it is known."""
    before, after = line.columns[point.before], line.columns[point.after]
    return f"{before.version} → {after.version}{f' ({after.released})' if after.released else ''}"


def between(line: VersionLine, point: ChangePoint) -> tuple[VersionColumn, ...]:
    """Versions inside a point's interval, in which the change may have come too."""
    return line.columns[point.before + 1 : point.after]


def alongside(line: VersionLine, point: ChangePoint) -> tuple[str, ...]:
    """Companions that differ between the two versions, such as "optax 0.2.5 → 0.2.8"."""
    before, after = line.columns[point.before], line.columns[point.after]
    names = sorted((before.companions.keys() | after.companions.keys()) - {line.package})
    steps = [(name, before.companions.get(name, "none"), after.companions.get(name, "none")) for name in names]
    return tuple(f"{name} {old} → {new}" for name, old, new in steps if old != new)


def change(point: ChangePoint) -> str:
    """What changed: the words, and how many of the compared tests moved."""
    same = {"pass": "passes", "fail": "fails", "unsupported": "unsupported"}.get(point.new, point.new)
    step = f"{point.old} → {point.new}" if point.kind == "outcome" else f"{same} {_manner(point)}"
    parts = [
        f"{len(tests)} newly {what}"
        for tests, what in ((point.fails, "failing"), (point.passes, "passing"), (point.refused, "unsupported"))
        if tests
    ]
    if point.otherwise:
        parts.append(f"{len(point.otherwise)} with another signature")
    return f"{step}: {', '.join(parts)} of {number(point.compared, 'test')}"


def signatures(point: ChangePoint) -> tuple[str, ...]:
    """Old and new signature of the tests that fail otherwise, each pair once."""
    pairs = dict.fromkeys((old or "none", new or "none") for _, old, new in point.otherwise)
    return tuple(f"{old} → {new}" for old, new in pairs)


def summary(one: LineHistory) -> str:
    """The judged versions of a line, and how many clauses changed."""
    judged = [column.version for column in one.line.columns if column.judged]
    changed = sum(bool(clause.points) for clause in one.clauses.values())
    counted = f"{changed} of {number(len(one.clauses), 'clause')} changed"
    return f"{number(len(judged), 'judged version')} ({', '.join(judged)}), {counted}"


def rows(one: LineHistory, *, unchanged: bool = False) -> Iterator[tuple[str, str, str]]:
    """Clause, history, and what explains its changes, of each clause that changed.

    Args:
        unchanged: whether clauses that did not change have a row too.
    """
    for name, clause in sorted(one.clauses.items()):
        if clause.points or unchanged:
            reasons = dict.fromkeys(reason for point in clause.points for reason in explained(one.line, point))
            texts = [f"{text} {link}".strip() for text, link in reasons]
            yield (
                name,
                statement(one.line, clause, gaps=False),
                "; ".join(texts) or ("unexplained" if clause.points else ""),
            )


def markdown(histories: Sequence[LineHistory]) -> str:
    """Every line of several versions: these, and its change points from the newest version back.

    Texts of records have no meaning in it.
    """
    several = [one for one in histories if len(one.line.columns) > 1]
    left = len(histories) - len(several)
    last = [f"{number(left, 'line')} with one version: nothing to compare."] if left else []
    return cut([line for one in several for line in (*_titled(one), "")] + last)


def _titled(one: LineHistory) -> Iterator[str]:
    yield f"## {words(one.line.name)}"
    yield ""
    yield from line_markdown(one)


def line_markdown(one: LineHistory) -> Iterator[str]:
    """The versions and the change points of one line, without a title."""
    line = one.line
    judged = [column.version for column in line.columns if column.judged]
    yield f"{number(len(judged), 'judged version')}: {words(', '.join(judged))}."
    gaps = [column for column in line.columns if not column.judged]
    if gaps:
        named = ", ".join(f"{column.version} ({column.gap})" for column in gaps[:_GAPS])
        more = f" and {len(gaps) - _GAPS} more" if len(gaps) > _GAPS else ""
        yield f"Not judged: {words(named)}{more}."
    yield ""
    if not one.points:
        yield "No change point." if len(judged) > 1 else "Nothing to compare."
        return
    for points in by_interval(one.points):
        yield f"**{words(interval(line, points[0]))}**: {_counted(points)}"
        inside = [column.version for column in between(line, points[0])]
        if inside:
            yield f"(versions between that cannot decide: {words(', '.join(inside))})"
        also = alongside(line, points[0])
        if also:
            yield f"(with {words(', '.join(also))})"
        yield ""
        for point in points:
            yield f"- {_item(line, one, point)}"
        yield ""


def by_interval(points: Iterable[ChangePoint]) -> list[list[ChangePoint]]:
    """The change points between the same two versions together, the newest first."""
    result: dict[tuple[int, int], list[ChangePoint]] = {}
    for point in points:
        result.setdefault((point.before, point.after), []).append(point)
    return [result[pair] for pair in sorted(result, key=lambda pair: (-pair[1], -pair[0]))]


def _counted(points: Sequence[ChangePoint]) -> str:
    worse = sum(point.worse for point in points)
    return f"{number(len(points), 'clause')} changed, {worse} for the worse."


def _item(line: VersionLine, one: LineHistory, point: ChangePoint) -> str:
    text = "; ".join((change(point), *signatures(point)))
    why = explained(line, point)
    because = "; ".join(f"{words(text)}{source(link)}" for text, link in why) if why else "*unexplained*"
    history = words(statement(line, one.clauses[point.clause], gaps=False))
    return f"{code(point.clause)} {words(text)}. History: {history}. {because}"
