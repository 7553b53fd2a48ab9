"""Which tests the suites hold, read from their source without importing it: clause and code hash of each."""

from __future__ import annotations

import ast
import hashlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

SUITES = Path(__file__).parent / "suites"


@dataclass(frozen=True)
class TestCode:
    """One test function.

    Attributes:
        clause: the clause that it names.
        code_hash: hash of its syntax tree, the same whatever its comments and layout.
    """

    __test__ = False
    clause: str
    code_hash: str


@cache
def inventory() -> dict[tuple[str, str], TestCode]:
    """Every test by file name and function name.

    Raises:
        ValueError: a test names no clause.
    """
    found: dict[tuple[str, str], TestCode] = {}
    for path in sorted(SUITES.glob("test_*.py")):
        for node in ast.parse(path.read_text("utf-8")).body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                found[path.name, node.name] = TestCode(_clause(path, node), _hash(node))
    return found


def _clause(path: Path, node: ast.FunctionDef) -> str:
    for mark in node.decorator_list:
        match mark:
            case ast.Call(func=ast.Name(id="clause"), args=[ast.Constant(value=str(name))]):
                return name
    raise ValueError(f"{path.name}: {node.name} names no clause")


def _hash(node: ast.FunctionDef) -> str:
    return hashlib.sha256(ast.dump(node).encode()).hexdigest()[:16]


def split(node_id: str) -> tuple[str, str, str]:
    """File name, function name and case ("function[parameters]") of a pytest node id."""
    path, _, case = node_id.partition("::")
    return path.rsplit("/", 1)[-1], case.split("[", 1)[0], case


def code_of(node_id: str) -> TestCode | None:
    """The test that a node id names, None if it is none of the suites'."""
    file, function, _ = split(node_id)
    return inventory().get((file, function))
