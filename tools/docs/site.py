"""The documentation as a site that works offline, and the hooks by which MkDocs builds it (mkdocs.yml names this file).

The pages are those of docs, with their generated blocks filled, README as the page `project`, and `LISTS`. Links from
docs to other files of the checkout become the files' names. docs/README.md is the index, and the order of the
navigation.
"""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from results.record.files import read
from tools.docs import generate

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

LISTS = {
    "records": "tools.docs.blocks:records",
    "causes": "tools.docs.summaries:causes",
    "changes": "tools.docs.summaries:changes",
    "clauses": "tools.docs.blocks:page",
    "faults": "tools.faults.catalogue:page",
}
"""Pages of the site that are generated as a whole, with the functions that return their text."""

PROJECT, INDEX = "project", "README"
"""Names of the page made from the checkout's README, and of the index of docs."""

_OUTSIDE = re.compile(r"\[(?P<label>[^\[\]]*)\]\(\.\./(?P<path>[^)#\s]+)\)")
_PART = re.compile(r"^\*\*(?P<title>.+)\*\*$|^- \[(?P<label>[^\]]+)\]\((?P<page>[\w-]+\.md)\)", re.MULTILINE)


def names() -> list[str]:
    """The pages of the site, without the index."""
    return sorted({*(page.stem for page in _docs().glob("*.md")), *LISTS, PROJECT} - {INDEX})


def text(name: str) -> str:
    """The Markdown of a page, with every block that is not committed filled in.

    Raises:
        PageError: there is no such page, or a block cannot be made.
        RecordError: the page cannot be read.
    """
    if name in LISTS:
        return str(generate.resolve(LISTS[name])())
    path = generate.ROOT / generate.README if name == PROJECT else _docs() / f"{name}.md"
    if name not in {*names(), INDEX}:
        raise generate.PageError(f"there is no page {name!r}; there are {', '.join(names())}")
    result = read(path).decode()
    committed = generate.MEASURED | generate.SUMMARIES if name != PROJECT else set(generate.markers(result))
    blocks = [block for block in generate.markers(result) if block not in committed]
    return generate.insert_blocks(path, result, generate.texts(blocks))


def build(folder: Path) -> None:
    """Builds the site.

    Raises:
        PageError: MkDocs is not installed, or a link or a block of a page is wrong.
    """
    try:
        from mkdocs.commands.build import build as build_site
        from mkdocs.config import load_config
        from mkdocs.exceptions import Abort, MkDocsException
    except ModuleNotFoundError as error:
        raise generate.PageError(
            f"{error.name} is not installed: pip install mkdocs-material, or tox -e docs"
        ) from None
    warnings = _Warnings()
    logging.getLogger("mkdocs").addHandler(warnings)
    try:
        config = load_config(str(generate.ROOT / "mkdocs.yml"), site_dir=str(folder.absolute()), strict=True)
        build_site(config)
    except (Abort, MkDocsException) as error:
        raise generate.PageError(f"the site is not built: {'; '.join(warnings.messages) or error}") from None
    finally:
        logging.getLogger("mkdocs").removeHandler(warnings)


class _Warnings(logging.Handler):
    """Keeps the messages of warnings and errors."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


def _docs() -> Path:
    return generate.ROOT / "docs"


# ---------------------------------------------------------------- hooks of MkDocs


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Makes the navigation of the index's parts and of the generated pages."""
    nav: list[dict[str, Any]] = [{"Documentation": f"{INDEX}.md"}, {"Project": f"{PROJECT}.md"}]
    for part in _PART.finditer(read(_docs() / f"{INDEX}.md").decode()):
        if part["title"]:
            nav.append({part["title"]: []})
        else:
            next(iter(nav[-1].values())).append({part["label"]: part["page"]})
    config.nav = [*nav, {"Lists": [{name.capitalize(): f"{name}.md"} for name in LISTS]}]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages that are not in docs."""
    from mkdocs.structure.files import File

    for name in (*LISTS, PROJECT):
        files.append(File.generated(config, f"{name}.md", content=""))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Fills a page's blocks, and rewrites links that leave the site."""
    name = Path(page.file.src_uri).stem
    filled = text(name)
    if name == PROJECT:
        filled = re.sub(r"\]\((?!docs/|[a-z]+:|#)", "](../", filled).replace("](docs/", "](")
    pieces = re.split(r"(^```.*?^```$)", filled, flags=re.DOTALL | re.MULTILINE)
    return "".join(piece if piece.startswith("```") else _OUTSIDE.sub(_replace_link, piece) for piece in pieces)


def _replace_link(link: re.Match[str]) -> str:
    """The replacement of a link out of docs: the page of README, or the name of another file."""
    label, path = link["label"], link["path"]
    if path == generate.README:
        return f"[{label}]({PROJECT}.md)"
    return label if label.strip("`") == path else f"{label} (`{path}`)"
