"""README and docs are short, complete and in plain technical English."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import ROOT

DOCS = ROOT / "docs"
PAGES = (*(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")), *sorted(DOCS.glob("*.md")))
SHOWN = ("conformance/cli", "results/show", "results/report")
"""Packages whose texts users read."""

PRIVATE = {
    r"told": "reported, named",
    r"tells?(?! apart)": "reports, shows, says",
    r"besides?": "next to",
    r"lest": "so that ... not",
    r"founding (?:document|example)s?": "the publication or guide, by its name",
    r"the rooms?": "the packages, by their names",
    r"(?:comes?|came|coming) to(?! (?:nothing|an end|be))": "results in, is",
    r"anew": "again",
    r"mended": "fixed",
    r"lays? claim": "takes the name",
    r"held (?:against|beside)": "compared with",
    r"seen to": "observed to",
    r"the house": "the suite",
}
"""Words that an outside engineer would have to translate, and what to write instead."""

_WORDS = re.compile(rf"\b(?:{'|'.join(f'(?:{pattern})' for pattern in PRIVATE)})\b", re.IGNORECASE)


def prose(page: Path) -> str:
    """A page without code, addresses, and blocks that a command generates from records."""
    text = re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.DOTALL)
    text = re.sub(r"<!-- ([\w' ]+): begin -->.*?<!-- \1: end -->", "", text, flags=re.DOTALL)
    return re.sub(r"`[^`]*`|\]\([^)]*\)", "", text)


def literals(source: str) -> Iterator[str]:
    """Texts of a module: what it prints, the help of its commands, docstrings."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def test_the_readme_has_at_most_130_lines() -> None:
    assert len((ROOT / "README.md").read_text("utf-8").splitlines()) <= 130


def test_the_index_names_every_page_and_no_other() -> None:
    named = set(re.findall(r"\]\(([\w-]+\.md)\)", (DOCS / "README.md").read_text("utf-8")))
    assert named == {page.name for page in DOCS.glob("*.md")} - {"README.md"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_within_the_checkout_lead_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.DOTALL)
    for target in re.findall(r"\]\(((?!https?:)[^)#\s]*(?:#[^)\s]*)?)\)", text):
        path, _, anchor = target.partition("#")
        linked = (page.parent / path).resolve() if path else page
        assert linked.exists(), target
        if anchor and linked.suffix == ".md":
            headings = re.findall(r"^#+ (.+)$", linked.read_text("utf-8"), re.MULTILINE)
            anchors = {re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", "-") for heading in headings}
            assert anchor in anchors or f'id="{anchor}"' in linked.read_text("utf-8"), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pages_use_no_private_words(page: Path) -> None:
    assert _WORDS.findall(prose(page)) == []


@pytest.mark.parametrize("package", SHOWN)
def test_messages_use_no_private_words(package: str) -> None:
    used = []
    for path in sorted((ROOT / package).rglob("*")):
        if path.suffix == ".py":
            texts = literals(path.read_text("utf-8"))
        elif path.suffix in (".html", ".js", ".jinja", ".j2"):
            texts = iter([path.read_text("utf-8")])
        else:
            continue
        used += [f"{path.relative_to(ROOT)}: {word}" for text in texts for word in _WORDS.findall(text)]
    assert used == []


def test_a_private_word_is_noticed() -> None:
    assert _WORDS.findall("What it comes to is told beside the founding document, lest the rooms ...") == [
        "comes to",
        "told",
        "beside",
        "founding document",
        "lest",
        "the rooms",
    ]
    assert _WORDS.findall("to tell apart; it came to nothing") == []
