"""The source modules that the oracle's derivations use, and their hash."""

import ast
import hashlib
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
_FIRST = ("conformance.oracle.errormodel", "frameworks.reference")
OWN = ("fixtures", "frameworks", "conformance")
_CACHE = frozenset(f"conformance.oracle.{name}" for name in ("bounds_cache", "derivation_hash"))
"""Modules that store derivations and do not change them; they are left out of the hash."""
_ATTEMPTS = re.compile(r"frameworks\.base\.(introspection|\w+_attempts)")
"""Modules that find out which capabilities an adapter supports; they change no number of a derivation."""
_LEFT_OUT = frozenset({"annotation", "returns", "type_comment", "type_params", "ctx", "kind", "simple", "type_ignores"})


@cache
def code_hash(root: Path = ROOT) -> str:
    """Return the SHA-256 of the syntax of all modules in `modules`.

    Comments, docstrings, annotations, error messages, the path of the checkout and the version of NumPy do not count.
    """
    digest = hashlib.sha256()
    for name, tree in sorted(modules(root).items()):
        digest.update(f"{name}\n{normalise(_WithoutErrors().visit(tree))}\n".encode())
    return digest.hexdigest()


def normalise(tree: ast.Module) -> str:
    """Return the syntax of a module as text that is the same in every version of Python.

    Comments, docstrings, annotations and layout are left out.
    """
    return " ".join(part for node in _statements(tree.body) for part in _normalise(node))


class _WithoutErrors(ast.NodeTransformer):
    """Removes the exceptions of `raise` statements: a derivation that succeeds does not depend on them."""

    def visit_Raise(self, node: ast.Raise) -> ast.Raise:
        return ast.copy_location(ast.Raise(), node)


def modules(root: Path = ROOT) -> dict[str, ast.Module]:
    """Return the syntax trees of the suite's modules that a derivation imports, directly or not, by dotted name."""
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
    if name.partition(".")[0] not in OWN:
        return None
    base = root.joinpath(*name.split("."))
    return next((path for path in (base.with_suffix(".py"), base / "__init__.py") if path.is_file()), None)


def _statements(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements of a body without docstrings and `pass`."""
    for node in body:
        match node:
            case ast.Pass() | ast.Expr(value=ast.Constant(value=str())):
                pass
            case _:
                yield node


def _normalise(node: ast.AST) -> Iterator[str]:
    """Yield the words of a node's syntax, the same in every version of Python."""
    match node:
        case ast.Name(id=name):
            yield name
        case ast.Constant(value=value):
            yield f"{type(value).__name__} {value!r}"
        case ast.Attribute(value=base, attr=name):
            yield from _normalise(base)
            yield f".{name}"
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.Lambda():
            yield from _normalise_function(node)
        case ast.ClassDef():
            for part in (*node.decorator_list, *node.bases, *(keyword.value for keyword in node.keywords)):
                yield from _normalise(part)
            yield f"class {node.name} {[keyword.arg for keyword in node.keywords]} ("
            yield from _normalise_list(node.body)
            yield ")"
        case ast.AnnAssign():
            yield "Assign("
            yield from _normalise(node.target)
            yield from _normalise(node.value) if node.value is not None else ()
            yield ")"
        case ast.Import() | ast.ImportFrom():
            yield f"import {sorted(_bindings(node))}"
        case ast.Global() | ast.Nonlocal():
            pass
        case _:
            yield f"{type(node).__name__}("
            for name in node._fields:
                value = getattr(node, name, None)
                if name not in _LEFT_OUT and value is not None and value != []:
                    yield name
                    yield from _normalise_list(value if isinstance(value, list) else [value])
            yield ")"


def _normalise_function(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> Iterator[str]:
    arguments = node.args
    for value in (*getattr(node, "decorator_list", ()), *arguments.defaults, *filter(None, arguments.kw_defaults)):
        yield from _normalise(value)
    if not isinstance(node, ast.Lambda):
        yield node.name
    kinds = (arguments.posonlyargs, arguments.args, [arguments.vararg], arguments.kwonlyargs, [arguments.kwarg])
    names = [[argument.arg for argument in kind if argument is not None] for kind in kinds]
    keyword_only = [default is not None for default in arguments.kw_defaults]
    yield f"{type(node).__name__} {names} {len(arguments.defaults)} {keyword_only} ("
    yield from _normalise(node.body) if isinstance(node, ast.Lambda) else _normalise_list(node.body)
    yield ")"


def _normalise_list(values: Iterable[object]) -> Iterator[str]:
    for value in values:
        if isinstance(value, ast.stmt):
            for statement in _statements([value]):
                yield from _normalise(statement)
        elif isinstance(value, ast.AST):
            yield from _normalise(value)
        else:
            yield repr(value)


def _bindings(node: ast.Import | ast.ImportFrom) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the names that an import binds, each with the imported module or attribute."""
    for alias in node.names:
        if isinstance(node, ast.ImportFrom):
            yield alias.asname or alias.name, (*(node.module or "").split("."), alias.name)
        else:
            name = alias.name if alias.asname else alias.name.split(".")[0]
            yield alias.asname or name, tuple(name.split("."))
