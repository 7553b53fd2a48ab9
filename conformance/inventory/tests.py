"""Which tests the suites hold, read from their source without importing it: clause and code hash of each."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from conformance.inventory.dependencies import Tree, code_hash

ROOT = Path(__file__).parents[2]
SUITES = ROOT / "conformance" / "suites"


@dataclass(frozen=True)
class TestCode:
    """One test function.

    Attributes:
        clause: the clause that it names.
        code_hash: hash of its code and of all that it depends on, the same whatever comments and layout.
        parameters: names of its parameters: what the plugin gives it and what it is parametrized with.
    """

    __test__ = False
    clause: str
    code_hash: str
    parameters: tuple[str, ...] = ()


@cache
def inventory() -> dict[tuple[str, str], TestCode]:
    """Every test by file name and function name.

    Raises:
        ValueError: a test names no clause.
    """
    return read_inventory(ROOT)


def read_inventory(root: Path) -> dict[tuple[str, str], TestCode]:
    """The tests of a checkout by file name and function name.

    Raises:
        ValueError: a test names no clause.
    """
    tree, tests = Tree(root), {}
    for path in sorted((root / "conformance" / "suites").glob("test_*.py")):
        module = tree.module(("conformance", "suites", path.stem))
        for name, definition in module.definitions.items() if module else ():
            node = definition.nodes[-1]
            if module and isinstance(node, ast.FunctionDef) and name.startswith("test_"):
                parameters = tuple(argument.arg for argument in node.args.args)
                tests[path.name, name] = TestCode(_clause(path, node), code_hash(module, node), parameters)
    return tests


def _clause(path: Path, node: ast.FunctionDef) -> str:
    for mark in node.decorator_list:
        match mark:
            case ast.Call(func=ast.Name(id="clause"), args=[ast.Constant(value=str(name))]):
                return name
    raise ValueError(f"{path.name}: {node.name} names no clause")


def split(node_id: str) -> tuple[str, str, str]:
    """File name, function name and case ("function[parameters]") of a pytest node id."""
    path, _, case = node_id.partition("::")
    return path.rsplit("/", 1)[-1], case.split("[", 1)[0], case


def code_of(node_id: str) -> TestCode | None:
    """The test that a node id names, None if it is none of the suites'."""
    file, function, _ = split(node_id)
    return inventory().get((file, function))
