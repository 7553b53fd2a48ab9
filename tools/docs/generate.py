"""Generated text: the blocks between `<!-- NAME: begin -->` and `<!-- NAME: end -->`, and pages generated as a whole.

README's blocks, `SUMMARIES` and results/schema.json are committed, and so are blocks that only a measurement makes.
Every other block is filled when the documentation is built (`tools.docs.site`): the committed page has `PLACEHOLDER`
there. The source of a block is named MODULE:FUNCTION and imported on demand, because tests and benchmarks are layers
above this package.
"""

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from conformance.scenarios.definitions import SCENARIOS
from results.record.files import read, replace
from tools.docs.promises import PROMISES

ROOT = Path(__file__).parents[2]

PLACEHOLDER = "*Generated: `python -m tools docs --page {}` prints it.*"
"""The text of a committed page of docs in place of a block; the field is the page's name."""

SOURCES: Mapping[str, tuple[str, ...]] = {
    "tools.docs.summaries:failure": ("failure",),
    "tools.docs.summaries:blocks": ("techniques", "outcomes", "failing clauses"),
    "tools.docs.blocks:times_taken": ("seconds by family", "seconds by clause", "slowest tests"),
    "tools.docs.summaries:finding_blocks": ("finding counts", "silent defects"),
    "tools.docs.blocks:formats": ("formats",),
    "tools.docs.blocks:ranks": ("ranks",),
    "tools.docs.summaries:upgrade_blocks": ("upgrades", "change points"),
    "tools.docs.blocks:promises": tuple(PROMISES),
    "tools.docs.blocks:scenarios": tuple(f"scenario {name}" for name in SCENARIOS),
    "tools.docs.blocks:ways": ("ways",),
    "tools.docs.blocks:blocks": ("drawn", "left out of drawing", "beyond drawing"),
}
"""The blocks of each source, a function that returns the text of each block by its name."""

MEASURED = frozenset({"faults"})
"""Blocks that only a measurement makes; it writes them into the committed page."""

SUMMARIES = frozenset({"outcomes", "failing clauses", "finding counts", "silent defects", "upgrades", "change points"})
"""Blocks of docs that are committed like README's, for readers who build no site."""

README = "README.md"
COMMITTED: Mapping[str, str] = {"results/schema.json": "results.record.reading:schema_text"}
"""Files that are generated as a whole and committed, with the functions that return their text."""

_MARKER = re.compile(r"<!-- ([^\n:]+): begin -->")


class PageError(ValueError):
    """A page cannot be made; the message is one line that names it."""


def pages() -> list[Path]:
    """README and every page of docs."""
    return [ROOT / README, *sorted((ROOT / "docs").glob("*.md"))]


def markers(text: str) -> list[str]:
    """The names of the blocks whose markers a page has."""
    return _MARKER.findall(text)


def texts(names: Collection[str]) -> dict[str, str]:
    """The present texts of these blocks.

    Raises:
        PageError: a block has no source, or its source needs a missing package.
    """
    blocks: dict[str, str] = {}
    for source, blocks_of_source in SOURCES.items():
        if set(blocks_of_source) & set(names):
            blocks |= resolve(source)()
    if unknown := [name for name in names if name not in blocks]:
        known = sorted(name for blocks_of_source in SOURCES.values() for name in blocks_of_source)
        raise PageError(f"nothing makes a block {unknown[0]!r}; there are {', '.join(known)}")
    return {name: blocks[name] for name in names}


def place(contents: Mapping[str, str]) -> None:
    """Writes blocks into the committed pages, except where a page has the placeholder.

    Raises:
        PageError: no page has the markers of a block, or an end marker is missing.
        RecordError: a page cannot be read or written.
    """
    placed_names: set[str] = set()
    for page in pages():
        text = read(page).decode()
        present = {name: contents[name] for name in markers(text) if name in contents}
        placed_names |= present.keys()
        blank = PLACEHOLDER.format(page.stem)
        blocks = {name: block for name, block in present.items() if between(page, text, name) != blank}
        if (new := insert_blocks(page, text, blocks)) != text:
            replace(page, new.encode())
    if missing := sorted(contents.keys() - placed_names):
        raise PageError(f"no page has <!-- {missing[0]}: begin -->")


def stale(*, write: bool, report: Callable[[str], None] = lambda _: None) -> list[str]:
    """The pages and committed files that are out of date; `write`: they are written.

    Args:
        report: called with "NAME …" before each file is made.

    Raises:
        PageError: a block of a page has no source, or needs a missing package.
        RecordError: a file cannot be read or written.
    """
    changed: dict[str, str] = {}
    for page in (*pages(), *(ROOT / name for name in COMMITTED if (ROOT / name).exists())):
        text, file = read(page).decode(), page.relative_to(ROOT).as_posix()
        names = [name for name in markers(text) if file == README or name in SUMMARIES]
        if file in COMMITTED or names:
            report(f"{file} …")
            new = resolve(COMMITTED[file])() if file in COMMITTED else insert_blocks(page, text, texts(names))
            if new != text:
                changed[file] = new
    if write:
        for file, new in changed.items():
            replace(ROOT / file, new.encode())
    return list(changed)


def between(page: Path, text: str, name: str) -> str:
    """The text of a page between the markers of a block.

    Raises:
        PageError: a marker is missing.
    """
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    _, has_begin, rest = text.partition(begin)
    block, has_end, _ = rest.partition(end)
    if not has_begin or not has_end:
        raise PageError(f"{page}: there is no {begin} … {end}")
    return block.strip("\n")


def insert_blocks(page: Path, text: str, blocks: Mapping[str, str]) -> str:
    """The text of a page with these blocks between their markers.

    Raises:
        PageError: a marker is missing.
    """
    for name, block in blocks.items():
        between(page, text, name)
        before, begin, rest = text.partition(f"<!-- {name}: begin -->")
        _, end, after = rest.partition(f"<!-- {name}: end -->")
        text = f"{before}{begin}\n{block}\n{end}{after}"
    return text


def table(header: Sequence[str], rows: Iterable[Sequence[str]], right: int = 0) -> str:
    """A Markdown table of which the last `right` columns are aligned to the right."""
    rule = "|---" * (len(header) - right) + "|--:" * right + "|"
    top, *lines = (f"| {' | '.join(cells)} |" for cells in (header, *rows))
    return "\n".join((top, rule, *lines))


def resolve(source: str) -> Any:
    """The function that MODULE:FUNCTION names.

    Raises:
        PageError: a package that it needs is not installed.
    """
    try:
        return resolve_name(source)
    except ModuleNotFoundError as error:
        raise PageError(f"{error.name} is not installed: `tox -e dev --` and the command have it") from None
