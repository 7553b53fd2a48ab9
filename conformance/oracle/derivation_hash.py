"""The oracle's source modules, and their hash."""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from conformance.test_ids.syntax import read, statements

ROOT = Path(__file__).parents[2]
_FIRST = ("conformance.oracle.errormodel", "frameworks.reference")
_OWN = ("fixtures", "frameworks", "conformance")
_CACHE = frozenset(f"conformance.oracle.{name}" for name in ("bounds_cache", "stored_spreads", "derivation_hash"))
"""Modules that store derivations without changing them."""
_ATTEMPTS = re.compile(r"frameworks\.base\.(introspection|\w+_attempts)")
"""Modules of attempts: they say what an adapter supports and do not change a number of a derivation."""


@cache
def code_hash(root: Path = ROOT) -> str:
    """SHA-256 of every module of the suite that a derivation imports and uses.

    Comments, docstrings, annotations, error messages, the place of the checkout and the version of NumPy do not count.
    """
    digest = hashlib.sha256()
    for name, tree in sorted(modules(root).items()):
        text = read(statements(_WithoutErrors().visit(tree).body)).text
        digest.update(f"{name}\n{text}\n".encode())
    return digest.hexdigest()


class _WithoutErrors(ast.NodeTransformer):
    """Replaces what is raised: a derivation that succeeds does not depend on it."""

    def visit_Raise(self, node: ast.Raise) -> ast.Raise:
        return ast.copy_location(ast.Raise(), node)


def modules(root: Path = ROOT) -> dict[str, ast.Module]:
    """Those modules by dotted name."""
    trees: dict[str, ast.Module] = {}
    pending = list(_FIRST)
    while pending:
        name = pending.pop()
        path = _file(root, name)
        if path is None or name in trees or name in _CACHE or _ATTEMPTS.fullmatch(name):
            continue
        trees[name] = ast.parse(path.read_text("utf-8"))
        pending += name.rpartition(".")[:1]
        pending += _imports(trees[name])
    return trees


def _imports(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(module=str(module), names=names):
                yield from (module, *(f"{module}.{alias.name}" for alias in names))


def _file(root: Path, name: str) -> Path | None:
    if name.partition(".")[0] not in _OWN:
        return None
    place = root.joinpath(*name.split("."))
    return next((path for path in (place.with_suffix(".py"), place / "__init__.py") if path.is_file()), None)
