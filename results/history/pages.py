"""The history as pages that need no network: a start page, and one for each clause, each with its JSON next to it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup

from results.history.changes import ChangePoint, ClauseHistory, LineHistory
from results.history.documents import clause_document, compact, is_history, load
from results.history.explanations import explained
from results.history.lines import VersionLine
from results.history.statements import Stretch, alongside, between, change, interval, segments, signatures
from results.history.states import GRAVITY
from results.record.files import RecordError, os_problem, replace
from results.report.assets import asset, environment, policy
from results.report.text import MESSAGE, NAME, VALUE, clean, href

CLAUSES = "clauses"
"""Folder of the pages of clauses."""

_NAMED = 20
"""Tests of a change that a page names."""


@dataclass(frozen=True)
class StretchView:
    """A stretch of versions as cleaned texts; `slug` is its word for a style."""

    versions: str
    word: str
    slug: str
    extra: str


@dataclass(frozen=True)
class PointView:
    """A change as cleaned texts.

    Attributes:
        why: text and address of what explains it, "" for no address.
        moved: heading, and names of tests.
    """

    clause: str
    interval: str
    inside: str
    change: str
    worse: bool
    signatures: tuple[str, ...]
    alongside: str
    why: tuple[tuple[str, str], ...]
    moved: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class RowView:
    """A clause in a line.

    Attributes:
        line, framework: names of the line and of its framework.
        family: of the clause.
        word: of the newest version that says something, "" if none does.
    """

    clause: str
    line: str
    framework: str
    family: str
    word: str
    segments: tuple[StretchView, ...]
    points: tuple[PointView, ...]


@dataclass(frozen=True)
class NewestChanges:
    """What changed in the newest judged version of a line."""

    line: str
    version: str
    released: str
    before: str
    points: tuple[PointView, ...]


def write(histories: Sequence[LineHistory], folder: Path) -> int:
    """Writes the pages below a folder, in place of those of an earlier history, and returns how many bytes they have.

    Raises:
        RecordError: the folder or a file cannot be written.
    """
    try:
        (folder / CLAUSES).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RecordError(folder, f"cannot be made ({os_problem(error)})", "choose another folder") from None
    old = _pages_of_clauses(folder)
    size = 0
    for name, text in documents(histories):
        content = text.encode("utf-8")
        replace(folder / name, content)
        size += len(content)
        old.discard(folder / name)
    for path in old:
        path.unlink()
    return size


def _pages_of_clauses(folder: Path) -> set[Path]:
    """Pages and data of the clauses that the history in a folder has; none if there is no history."""
    index = folder / "index.json"
    try:
        names = {name for one in load(index) for name in one.clauses} if is_history(index) else set()
    except RecordError:
        return set()
    return {path for path in (folder / CLAUSES).glob("*") if path.stem in names and path.suffix in (".html", ".json")}


def documents(histories: Sequence[LineHistory]) -> Iterator[tuple[str, str]]:
    """Name and text of every file, the start page first."""
    rows = _rows(histories)
    yield "index.html", _start_page(histories, _rows([one for one in histories if len(one.line.columns) > 1]))
    yield "index.json", compact(histories)
    by_clause: dict[str, list[RowView]] = {}
    for row in rows:
        by_clause.setdefault(row.clause, []).append(row)
    for name, having in by_clause.items():
        yield f"{CLAUSES}/{name}.html", _clause_page(name, histories, having)
        yield f"{CLAUSES}/{name}.json", clause_document(name, histories)


def _start_page(histories: Sequence[LineHistory], rows: Sequence[RowView]) -> str:
    newest = [each for each in map(_newest, histories) if each is not None]
    words = {row.word for row in rows}
    return _page(
        "index.html",
        ("history.js",),
        newest=newest,
        alone=[clean(one.line.name, VALUE) for one in histories if _newest(one) is None],
        rows=rows,
        changed=any(row.points for row in rows),
        frameworks=list(dict.fromkeys(row.framework for row in rows)),
        families=sorted({row.family for row in rows}),
        words=[word for word in GRAVITY if word in words],
        versions=sum(column.judged for one in histories for column in one.line.columns),
    )


def _clause_page(name: str, histories: Sequence[LineHistory], rows: Sequence[RowView]) -> str:
    facts = next(one.clauses[name].facts for one in reversed(histories) if name in one.clauses)
    return _page(
        "clause.html", (), name=name, level=clean(facts.level), requirement=clean(facts.requirement, MESSAGE), rows=rows
    )


def _page(template: str, scripts: Sequence[str], **values: object) -> str:
    style = asset("results.report", "style.css") + asset(__package__, "history.css")
    theme = asset("results.report", "theme.js")
    code = [asset(__package__, name) for name in scripts]
    given = {**values, "policy": policy(style, [theme, *code]), "scripts": [Markup(each) for each in code]}
    page = environment(__package__).get_template(template)
    return str(page.render(style=Markup(style), theme=Markup(theme), **given))


def _rows(histories: Sequence[LineHistory]) -> list[RowView]:
    """Rows by clause, then by line."""
    result = [_row(one.line, clause) for one in histories for clause in one.clauses.values()]
    return sorted(result, key=lambda row: row.clause)


def _row(line: VersionLine, clause: ClauseHistory) -> RowView:
    said = [run.word for run in clause.runs]
    return RowView(
        clause=clause.clause,
        line=clean(line.name, VALUE),
        framework=clean(line.framework),
        family=clean(clause.facts.family),
        word=said[-1] if said else "",
        segments=tuple(map(_segment, segments(line, clause))),
        points=tuple(_point(line, point) for point in clause.points[::-1]),
    )


def _segment(segment: Stretch) -> StretchView:
    extra = "; ".join(filter(None, (segment.note, f"from {segment.since}" if segment.since else "")))
    return StretchView(clean(segment.versions), segment.word, segment.word.replace(" ", "-"), clean(extra, VALUE))


def _point(line: VersionLine, point: ChangePoint) -> PointView:
    moved = (
        ("Newly failing", point.fails),
        ("Newly passing", point.passes),
        ("Newly unsupported", point.refused),
        ("With another signature", tuple(test for test, _, _ in point.otherwise)),
    )
    return PointView(
        clause=point.clause,
        interval=clean(interval(line, point)),
        inside=clean(", ".join(column.version for column in between(line, point)), VALUE),
        change=change(point),
        worse=point.worse,
        signatures=tuple(clean(each, VALUE) for each in signatures(point)),
        alongside=clean(", ".join(alongside(line, point)), VALUE),
        why=tuple((clean(text, VALUE), href(link)) for text, link in explained(line, point)),
        moved=tuple((title, _named(tests)) for title, tests in moved if tests),
    )


def _named(tests: Sequence[str]) -> str:
    more = f" and {len(tests) - _NAMED} more" if len(tests) > _NAMED else ""
    return ", ".join(clean(test.partition("/")[2], 2 * NAME) for test in tests[:_NAMED]) + more


def _newest(one: LineHistory) -> NewestChanges | None:
    """The newest version of a line with an older judged one; None if there is none."""
    place = one.newest
    judged = [number for number, column in enumerate(one.line.columns) if column.judged]
    if place is None or len(judged) < 2:
        return None
    column, before = one.line.columns[place], one.line.columns[judged[-2]]
    points = tuple(_point(one.line, point) for point in one.points if point.after == place)
    return NewestChanges(
        clean(one.line.name, VALUE), clean(column.version), column.released, clean(before.version), points
    )
