"""Change points of a line as Markdown; texts of records have no meaning in it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from results.history.changes import ChangePoint, LineHistory
from results.history.explanations import explained
from results.history.lines import VersionLine
from results.history.statements import DOT, NOT_JUDGED, alongside, between, change, interval, segments, signatures
from results.show.clauses import number
from results.show.marks import code, cut, source, words

_GAPS = 12


def markdown(histories: Sequence[LineHistory]) -> str:
    """Every line of several versions: these, and its change points from the newest version back."""
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
    for _, points in _by_interval(one.points):
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


def _by_interval(points: Iterable[ChangePoint]) -> list[tuple[tuple[int, int], list[ChangePoint]]]:
    result: dict[tuple[int, int], list[ChangePoint]] = {}
    for point in points:
        result.setdefault((point.before, point.after), []).append(point)
    return sorted(result.items(), key=lambda pair: (-pair[0][1], -pair[0][0]))


def _counted(points: Sequence[ChangePoint]) -> str:
    worse = sum(point.worse for point in points)
    return f"{number(len(points), 'clause')} changed, {worse} for the worse."


def _point(line: VersionLine, one: LineHistory, point: ChangePoint) -> str:
    text = "; ".join((change(point), *signatures(point)))
    why = explained(line, point)
    because = "; ".join(f"{words(text)}{source(link)}" for text, link in why) if why else "*unexplained*"
    stretches = segments(line, one.clauses[point.clause])
    history = words(DOT.join(str(stretch) for stretch in stretches if stretch.word != NOT_JUDGED))
    return f"{code(point.clause)} {words(text)}. History: {history}. {because}"
