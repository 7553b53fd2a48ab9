"""The history as pages that need no network: a start page, and one for each clause, each with its JSON next to it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from markupsafe import Markup

from results.history.changes import ChangePoint, ClauseHistory, LineHistory
from results.history.documents import clause_document, compact, is_history, load
from results.history.explanations import explained
from results.history.lines import VersionLine
from results.history.statements import Stretch, alongside, between, change, interval, segments, signatures
from results.history.states import GRAVITY
from results.record.files import RecordError, inside, os_problem, replace
from results.report.assets import asset, environment, policy
from results.report.text import MESSAGE, NAME, VALUE, clean, href

CLAUSES = "clauses"
"""Folder of the pages of clauses."""

_NAMED = 20
"""Tests of a change that a page names."""


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
        path, content = inside(folder, name), text.encode("utf-8")
        replace(path, content)
        size += len(content)
        old.discard(path)
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
    for name, group in groupby(rows, key=lambda row: str(row["clause"])):
        yield f"{CLAUSES}/{name}.html", _clause_page(name, histories, list(group))
        yield f"{CLAUSES}/{name}.json", clause_document(name, histories)


def _start_page(histories: Sequence[LineHistory], rows: Sequence[dict[str, Any]]) -> str:
    newest = [each for each in map(_newest, histories) if each is not None]
    words = {row["word"] for row in rows}
    return _page(
        "index.html",
        ("history.js",),
        newest=newest,
        alone=[clean(one.line.name, VALUE) for one in histories if _newest(one) is None],
        rows=rows,
        changed=any(row["points"] for row in rows),
        frameworks=list(dict.fromkeys(row["framework"] for row in rows)),
        families=sorted({row["family"] for row in rows}),
        words=[word for word in GRAVITY if word in words],
        versions=sum(column.judged for one in histories for column in one.line.columns),
    )


def _clause_page(name: str, histories: Sequence[LineHistory], rows: Sequence[dict[str, Any]]) -> str:
    facts = next(one.clauses[name].facts for one in reversed(histories) if name in one.clauses)
    return _page(
        "clause.html", (), name=name, level=clean(facts.level), requirement=clean(facts.requirement, MESSAGE), rows=rows
    )


def _page(template: str, scripts: Sequence[str], **values: object) -> str:
    style = asset("results.report", "style.css") + asset(__package__, "history.css")
    code = [asset(__package__, name) for name in scripts]
    given = {**values, "policy": policy(style, code), "scripts": [Markup(each) for each in code]}
    page = environment(__package__).get_template(template)
    return str(page.render(style=Markup(style), **given))


def _rows(histories: Sequence[LineHistory]) -> list[dict[str, Any]]:
    """Rows by clause, then by line."""
    result = [_row(one.line, clause) for one in histories for clause in one.clauses.values()]
    return sorted(result, key=lambda row: str(row["clause"]))


def _row(line: VersionLine, clause: ClauseHistory) -> dict[str, Any]:
    """A clause in a line; `word` is that of the newest version that says something, "" if none does."""
    said = [run.word for run in clause.runs]
    return {
        "clause": clause.clause,
        "line": clean(line.name, VALUE),
        "framework": clean(line.framework),
        "family": clean(clause.facts.family),
        "word": said[-1] if said else "",
        "segments": [_segment(segment) for segment in segments(line, clause)],
        "points": [_point(line, point) for point in clause.points[::-1]],
    }


def _segment(segment: Stretch) -> dict[str, str]:
    """A stretch of versions as cleaned texts; `slug` is its word for a style."""
    extra = "; ".join(filter(None, (segment.note, f"from {segment.since}" if segment.since else "")))
    return {
        "versions": clean(segment.versions),
        "word": segment.word,
        "slug": segment.word.replace(" ", "-"),
        "extra": clean(extra, VALUE),
    }


def _point(line: VersionLine, point: ChangePoint) -> dict[str, Any]:
    """A change as cleaned texts; `why` has text and address of what explains it, `moved` heading and names of tests."""
    moved = (
        ("Newly failing", point.fails),
        ("Newly passing", point.passes),
        ("Newly unsupported", point.refused),
        ("With another signature", tuple(test for test, _, _ in point.otherwise)),
    )
    return {
        "clause": point.clause,
        "interval": clean(interval(line, point)),
        "inside": clean(", ".join(column.version for column in between(line, point)), VALUE),
        "change": change(point),
        "worse": point.worse,
        "signatures": [clean(each, VALUE) for each in signatures(point)],
        "alongside": clean(", ".join(alongside(line, point)), VALUE),
        "why": [(clean(text, VALUE), href(link)) for text, link in explained(line, point)],
        "moved": [(title, _named(tests)) for title, tests in moved if tests],
    }


def _named(tests: Sequence[str]) -> str:
    more = f" and {len(tests) - _NAMED} more" if len(tests) > _NAMED else ""
    return ", ".join(clean(test.partition("/")[2], 2 * NAME) for test in tests[:_NAMED]) + more


def _newest(one: LineHistory) -> dict[str, Any] | None:
    """What changed in the newest version of a line with an older judged one; None if there is none."""
    judged = [place for place, column in enumerate(one.line.columns) if column.judged]
    if len(judged) < 2:
        return None
    before, newest = (one.line.columns[place] for place in judged[-2:])
    return {
        "line": clean(one.line.name, VALUE),
        "version": clean(newest.version),
        "released": newest.released,
        "before": clean(before.version),
        "points": [_point(one.line, point) for point in one.points if point.after == judged[-1]],
    }
