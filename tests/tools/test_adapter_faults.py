"""Faults of adapters name what exists; without the frameworks nothing imports them here."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MODULES = [path.relative_to(ROOT) for path in sorted((ROOT / "tools" / "faults" / "adapters").rglob("*.py"))]


def file_of(module: str) -> Path | None:
    """The file of a module of this checkout."""
    path = ROOT.joinpath(*module.split("."))
    files = (path / "__init__.py", path.with_suffix(".py"))
    return next((file for file in files if file.is_file()), None)


@cache
def names(file: Path) -> frozenset[str]:
    """Names that a module assigns, defines or imports, at any depth."""
    known: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            known.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            known |= {each.asname or each.name.partition(".")[0] for each in node.names}
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            known.add(node.id)
    return frozenset(known)


def missing(tree: ast.AST) -> Iterator[str]:
    """Names of this checkout's modules that a module imports or patches, and that are not there."""
    modules: dict[str, Path] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and file_of(node.module.partition(".")[0]):
            file = file_of(node.module)
            for each in node.names:
                inner = file_of(f"{node.module}.{each.name}")
                if inner is not None:
                    modules[each.asname or each.name] = inner
                elif file is None or each.name not in names(file):
                    yield f"{node.module}.{each.name}"
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules:
            file = modules[node.value.id]
            if node.attr not in names(file):
                yield f"{file.relative_to(ROOT)}: {node.attr}"


@pytest.mark.parametrize("path", MODULES, ids=str)
def test_what_a_fault_imports_and_patches_exists(path: Path) -> None:
    assert [*missing(ast.parse((ROOT / path).read_text("utf-8")))] == []


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("from frameworks.jax import in_place", "frameworks.jax.in_place"),
        ("from frameworks.jax.nowhere import network", "frameworks.jax.nowhere.network"),
        (
            "from frameworks.torch.core import network\nnetwork.checkpoint = print",
            "frameworks/torch/core/network.py: checkpoint",
        ),
    ],
)
def test_a_name_that_has_moved_is_reported(source: str, name: str) -> None:
    assert [*missing(ast.parse(source))] == [name]
