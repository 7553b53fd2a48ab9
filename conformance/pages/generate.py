"""Every generated part of README and docs, by the markers `<!-- NAME: begin -->` and `<!-- NAME: end -->`.

A block may stand in any page. What makes one is named as MODULE:FUNCTION, for tests and benchmarks lie above this
package, and is imported when it is asked for.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from conformance.pages.promises import PROMISES
from conformance.scenarios import SCENARIOS
from results.record.files import read, replace

ROOT = Path(__file__).parents[2]

SOURCES: Mapping[str, tuple[str, ...]] = {
    "conformance.pages.blocks:clauses": ("clauses",),
    "conformance.pages.blocks:failure": ("failure",),
    "conformance.pages.blocks:tables": ("baselines", "seconds by family", "seconds by clause", "slowest tests"),
    "conformance.pages.blocks:known_failures": ("finding counts", "findings", "workarounds"),
    "conformance.pages.blocks:of_formats": ("formats", "formats in short"),
    "conformance.pages.blocks:with_ranks": ("ranks", "ranks in short"),
    "conformance.pages.blocks:changes": ("upgrades", "example", "changes"),
    "conformance.pages.blocks:promises": tuple(PROMISES),
    "conformance.pages.blocks:scenarios": ("scenario times", *(f"scenario {name}" for name in SCENARIOS)),
    "conformance.pages.laws:blocks": ("drawn", "left out of drawing", "beyond drawing"),
    "tests.faults.rounds:blocks": ("scores", "rounds", "rounds by family", "missed faults"),
    "benchmarks.overhead.tables:blocks": ("overhead",),
    "benchmarks.encoder.tables:blocks": ("encoder in eight bits",),
    "benchmarks.roofline.tables:blocks": ("roofline",),
}
"""The blocks by what makes them, a function that returns the text of each by its name."""

WHOLE: Mapping[str, str] = {
    "docs/clauses.md": "conformance.pages.clauses:page",
    "docs/faults.md": "tests.faults.catalogue:page",
    "results/schema.json": "results.record.schema:text",
}
"""Pages that are made as a whole, with what returns their text."""

MEASURED = frozenset({"faults"})
"""Blocks that only a run makes, and puts there: `conformance self faults --write`."""

_MARKER = re.compile(r"<!-- ([^\n:]+): begin -->")


class PageError(ValueError):
    """A page cannot be made; the message is one line that names it."""


def pages() -> list[Path]:
    """README, every page of docs, and what else is made as a whole."""
    whole = [page for name in WHOLE if (page := ROOT / name).exists()]
    return [ROOT / "README.md", *sorted({*(ROOT / "docs").glob("*.md"), *whole})]


def markers(page: Path) -> list[str]:
    """The names of the blocks that a page has a place for.

    Raises:
        RecordError: it cannot be read.
    """
    return _MARKER.findall(read(page).decode())


def texts(names: Collection[str], called: dict[str, Mapping[str, str]] | None = None) -> dict[str, str]:
    """These blocks, made now.

    Args:
        called: the blocks of each source that was called already, to which those of this call are added.

    Raises:
        PageError: nothing makes one, or what makes it lacks a package.
    """
    made: dict[str, str] = {}
    called = {} if called is None else called
    for source, theirs in SOURCES.items():
        if set(theirs) & set(names):
            if source not in called:
                called[source] = _call(source)
            made |= called[source]
    if unknown := [name for name in names if name not in made]:
        raise PageError(f"nothing makes a block {unknown[0]!r}; there are {', '.join(sorted(_all_names()))}")
    return {name: made[name] for name in names}


def place(made: Mapping[str, str]) -> list[Path]:
    """Puts blocks into the pages that have a place for them; returns those that changed.

    Raises:
        PageError: no page has a place for one, or an end is missing.
        RecordError: a page cannot be read or written.
    """
    changed: list[Path] = []
    placed_names: set[str] = set()
    for page in pages():
        text = read(page).decode()
        here = {name: made[name] for name in _MARKER.findall(text) if name in made}
        placed_names |= here.keys()
        if (new := placed(page, text, here)) != text:
            replace(page, new.encode())
            changed.append(page)
    if missing := sorted(made.keys() - placed_names):
        raise PageError(f"no page has <!-- {missing[0]}: begin -->")
    return changed


def stale(wanted: Sequence[Path] = (), *, write: bool, report: Callable[[Path], None] | None = None) -> list[Path]:
    """The pages, of `wanted` or of all, that are not as they would be made now; they are written if `write`.

    Args:
        report: called with each page before it is made.

    Raises:
        PageError: a page has no generated part, or one that nothing makes, or a package is missing for it.
        RecordError: a page cannot be read or written.
    """
    wanted = [page.resolve() for page in wanted]
    chosen = wanted or pages()
    names = {page: [name for name in markers(page) if name not in MEASURED] for page in chosen}
    if nothing := [page for page in wanted if not names[page] and not _whole(page)]:
        raise PageError(f"{nothing[0]}: has no generated part")
    called: dict[str, Mapping[str, str]] = {}
    changed: dict[Path, str] = {}
    for page in chosen:
        if report is not None:
            report(page)
        text, source = read(page).decode(), _whole(page)
        new = resolve(source)() if source else placed(page, text, texts(names[page], called))
        if new != text:
            changed[page] = new
    if write:
        for page, new in changed.items():
            replace(page, new.encode())
    return list(changed)


def placed(page: Path, text: str, made: Mapping[str, str]) -> str:
    """The text of a page with these blocks between their markers.

    Raises:
        PageError: a marker is missing.
    """
    for name, block in made.items():
        begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
        before, has_begin, rest = text.partition(begin)
        _, has_end, after = rest.partition(end)
        if not has_begin or not has_end:
            raise PageError(f"{page}: there is no {begin} … {end}")
        text = f"{before}{begin}\n{block}\n{end}{after}"
    return text


def resolve(source: str) -> Any:
    """The function that MODULE:FUNCTION names.

    Raises:
        PageError: a package that it needs is not installed.
    """
    try:
        return resolve_name(source)
    except ModuleNotFoundError as error:
        raise PageError(f"{error.name} is missing: run `tox -e dev -- self pages`") from None


def _call(source: str) -> Mapping[str, str]:
    blocks: Mapping[str, str] = resolve(source)()
    return blocks


def _all_names() -> Iterable[str]:
    return (name for names in SOURCES.values() for name in names)


def _whole(page: Path) -> str:
    return WHOLE.get(page.relative_to(ROOT).as_posix(), "") if page.is_relative_to(ROOT) else ""
