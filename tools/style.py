"""Searches texts for the phrases, and names for the words, of `style.toml`; CONTRIBUTING.md explains them.

Searched are string literals and docstrings of Python, the prose of the documentation, TOML texts, and the report's
templates and scripts. Not searched are the programs of findings, faults, code, and what pages have between markers:
generated blocks, and the table of terms.
"""

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from conformance.spec.clauses import Kind, read_tables

ROOT = Path(__file__).parents[1]
FILE = Path(__file__).with_suffix(".toml")
PACKAGES = ("conformance", "frameworks", "results", "fixtures", "tools")
_SUFFIXES = (".py", ".toml", ".html", ".js", ".jinja", ".j2")
_NOT_PROSE = re.compile(r"```.*?```|<!-- ([\w' ]+): begin -->.*?<!-- \1: end -->|`[^`\n]*`|\]\([^)\n]*\)", re.DOTALL)

_WORD = re.compile("[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])")
_PARTICIPLE = re.compile(
    "_?(?!embed|exceed|feed|need|reseed|seed|speed)([a-z]+ed|made|taken|drawn|built|lost|sent|spent)"
)
_NAME = re.compile(r'"[^"\s]*"')
"""A string of TOML without spaces, such as an id; names in records do not change."""


@dataclass(frozen=True)
class Phrase:
    """A phrase in a text.

    Attributes:
        path: path of the file, relative to the checkout.
        line: its number, from 1.
        better: what to write instead.
    """

    path: str
    line: int
    phrase: str
    better: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.phrase!r}: write {self.better!r}"


@cache
def _tables() -> dict[str, dict[str, str]]:
    """The replacements for phrases, words of names, participles as names, and whole names, by table.

    Raises:
        ValueError: the file is invalid; the message is one line.
    """
    kind = Kind("find", frozenset({"find", "write"}))
    tables = read_tables(FILE, dict.fromkeys(("phrase", "word", "participle", "name"), kind))
    return {name: {entry.text("find"): entry.text("write") for entry in entries} for name, entries in tables.items()}


@cache
def _patterns() -> list[tuple[re.Pattern[str], str]]:
    spaced = ((find.replace(" ", r"\s+"), write) for find, write in _tables()["phrase"].items())
    return [(re.compile(rf"\b(?:{find})(?!\w)", re.IGNORECASE), write) for find, write in spaced]


def texts(root: Path = ROOT) -> Iterator[Path]:
    """The searched files of a checkout."""
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*")):
            if path.suffix in _SUFFIXES and not {"findings", "faults"} & {*path.parent.parts} and path != FILE:
                yield path
    yield from (root / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md"))
    yield from sorted((root / "docs").glob("*.md"))


def hits(paths: Iterable[Path], root: Path = ROOT) -> Iterator[Phrase]:
    """Every phrase in these files."""
    for path in paths:
        file, source = path.relative_to(root).as_posix(), path.read_text("utf-8")
        for first, text in _parts(path, source):
            for pattern, better in _patterns():
                for match in pattern.finditer(text):
                    line = first + text.count("\n", 0, match.start())
                    yield Phrase(file, line, " ".join(match[0].split()), better)
        if path.suffix == ".py":
            tree = ast.parse(source)
            yield from _find_in_names(file, tree)
            yield from _find_poor_names(file, tree)


def _find_in_names(file: str, tree: ast.Module) -> Iterator[Phrase]:
    """Words of the names that a module and its definitions, parameters and variables have.

    Also participles in names of a module, its classes, functions and variables, except in tests.
    """
    definitions, variables = [(1, Path(file).stem)], []
    for node in ast.walk(tree):
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name):
                definitions.append((node.lineno, name))
            case ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                variables.append((node.lineno, name))
    yield from _find_words(file, [*definitions, *variables], _tables()["word"])
    for statement in tree.body:
        if isinstance(statement, ast.Assign | ast.AnnAssign):
            names = (node for node in ast.walk(statement) if isinstance(node, ast.Name))
            definitions += [(node.lineno, node.id) for node in names if isinstance(node.ctx, ast.Store)]
    names_of_code = [(line, name) for line, name in definitions if not name.startswith(("test_", "held_out_"))]
    yield from _find_words(file, names_of_code, _tables()["participle"])


def _find_poor_names(file: str, tree: ast.Module) -> Iterator[Phrase]:
    """Variables and parameters with a name of the table, and functions that a bare participle names."""
    fields = {id(node) for owner in ast.walk(tree) if isinstance(owner, ast.ClassDef) for node in _targets(owner)}
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name, decorator_list=[]) if _PARTICIPLE.fullmatch(name):
                yield Phrase(file, node.lineno, name, "a verb")
            case ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store()) if id(node) not in fields:
                if better := _tables()["name"].get(name.strip("_")):
                    yield Phrase(file, node.lineno, name, better)


def _targets(owner: ast.ClassDef) -> Iterator[ast.expr]:
    for statement in owner.body:
        if isinstance(statement, ast.Assign | ast.AnnAssign):
            yield from statement.targets if isinstance(statement, ast.Assign) else [statement.target]


def _find_words(file: str, names: Iterable[tuple[int, str]], table: Mapping[str, str]) -> Iterator[Phrase]:
    """The names that contain a word of a table."""
    for line, name in names:
        for word in _WORD.findall(name):
            if better := table.get(word.lower()):
                yield Phrase(file, line, name, better)


def _parts(path: Path, source: str) -> Iterator[tuple[int, str]]:
    """Texts of a file, each with the number of its first line."""
    if path.suffix == ".py":
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
                yield node.lineno, _prose(node.value)
    elif path.suffix == ".md":
        yield 1, _prose(source)
    else:
        yield 1, _NAME.sub('""', source) if path.suffix == ".toml" else source


def _prose(text: str) -> str:
    return _NOT_PROSE.sub(lambda match: "\n" * match[0].count("\n"), text)
