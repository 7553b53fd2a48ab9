"""Histories in words and as Markdown: `≤2.6.0 fail · 2.7.0–2.12.0 pass (2.7.0: 2025-04-23) · 2.13.0 fail`.

`≤V` is the first judged version: what older versions do is unknown. A run names judged versions alone; those between
them that were not judged stand apart, with the reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from results.history.changes import ChangePoint, ClauseHistory, LineHistory, VersionRun, explained
from results.history.versions import STATEMENTS, VersionColumn, VersionLine
from results.show.clauses import number
from results.show.marks import code, cut, source, words

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
            yield f"- {_point(line, one, point)}"
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


def _point(line: VersionLine, one: LineHistory, point: ChangePoint) -> str:
    text = "; ".join((change(point), *signatures(point)))
    why = explained(line, point)
    because = "; ".join(f"{words(text)}{source(link)}" for text, link in why) if why else "*unexplained*"
    history = words(statement(line, one.clauses[point.clause], gaps=False))
    return f"{code(point.clause)} {words(text)}. History: {history}. {because}"
