"""Normalised source: its text without layout, and the names that it reads."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

Chain = tuple[str, ...]
"""A name that is read, with the attributes that follow it: `errormodel.envelope` is ("errormodel", "envelope")."""

_LEFT_OUT = frozenset({"annotation", "returns", "type_comment", "type_params", "ctx", "kind", "simple", "type_ignores"})
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass
class _Scope:
    """Names read and names bound in one function, class body or comprehension."""

    read: set[Chain] = field(default_factory=set)
    bound: set[str] = field(default_factory=set)
    outer: set[str] = field(default_factory=set)

    def free(self) -> Iterator[Chain]:
        """Names read from outer scopes."""
        own = self.bound - self.outer
        return (chain for chain in self.read if chain[0] not in own)


@dataclass(frozen=True)
class Reading:
    """A normalised piece of source.

    Attributes:
        text: its syntax in one form, the same in every version of Python, whatever its comments, docstrings,
            annotations and layout.
        names: the names that it reads from outside.
        attributes: names of every attribute that it reads, sets or matches.
        strings: its string constants.
        keywords: names of the arguments in its calls.
        imports: imports within functions, by bound name.
    """

    text: str
    names: frozenset[Chain]
    attributes: frozenset[str]
    strings: frozenset[str]
    keywords: frozenset[str]
    imports: tuple[tuple[str, Chain], ...]


def read(nodes: Iterable[ast.AST]) -> Reading:
    """The union of these pieces."""
    reader = _Reader()
    for node in nodes:
        reader.visit(node)
    names = frozenset(reader.scope.read)
    attributes, strings, keywords = map(frozenset, (reader.attributes, reader.strings, reader.keywords))
    return Reading(" ".join(reader.parts), names, attributes, strings, keywords, tuple(reader.imports))


def statements(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements of a body without docstrings and `pass`."""
    for node in body:
        if not isinstance(node, ast.Pass) and not (isinstance(node, ast.Expr) and _is_text(node.value)):
            yield node


def imported(node: ast.Import | ast.ImportFrom) -> Iterator[tuple[str, Chain]]:
    """The names that an import binds, each with the imported module or attribute."""
    for alias in node.names:
        if isinstance(node, ast.ImportFrom):
            yield alias.asname or alias.name, (*(node.module or "").split("."), alias.name)
        elif alias.asname:
            yield alias.asname, tuple(alias.name.split("."))
        else:
            first = alias.name.split(".")[0]
            yield first, (first,)


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


class _Reader:
    def __init__(self) -> None:
        self.parts: list[str] = []
        self.attributes: set[str] = set()
        self.strings: set[str] = set()
        self.keywords: set[str] = set()
        self.imports: list[tuple[str, Chain]] = []
        self.scope = _Scope()

    def visit(self, node: ast.AST) -> None:
        match node:
            case ast.Name():
                self._name(node)
            case ast.Constant():
                self._constant(node)
            case ast.Attribute():
                self._attribute(node)
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.Lambda():
                self._function(node)
            case ast.ClassDef():
                self._class(node)
            case ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
                self._inside(lambda: self._fields(node))
            case ast.AnnAssign():
                self._annotated(node)
            case ast.Import() | ast.ImportFrom():
                self.imports.extend(imported(node))
                self.parts.append(f"import {sorted(imported(node))}")
            case ast.Global() | ast.Nonlocal():
                self.scope.outer.update(node.names)
            case _:
                self._binds(node)
                self._fields(node)

    def _fields(self, node: ast.AST) -> None:
        self.parts.append(f"{type(node).__name__}(")
        for name in node._fields:
            value = getattr(node, name, None)
            if name in _LEFT_OUT or value is None or value == []:
                continue
            self.parts.append(name)
            if isinstance(value, list):
                self._list(value)
            elif isinstance(value, ast.AST):
                self.visit(value)
            else:
                self.parts.append(repr(value))
        self.parts.append(")")

    def _list(self, values: list[object]) -> None:
        for value in values:
            if isinstance(value, ast.stmt):
                for statement in statements([value]):
                    self.visit(statement)
            elif isinstance(value, ast.AST):
                self.visit(value)
            else:
                self.parts.append(repr(value))

    def _name(self, node: ast.Name) -> None:
        self.parts.append(node.id)
        if isinstance(node.ctx, ast.Load):
            self.scope.read.add((node.id,))
        else:
            self.scope.bound.add(node.id)

    def _constant(self, node: ast.Constant) -> None:
        self.parts.append(f"{type(node.value).__name__} {node.value!r}")
        if isinstance(node.value, str):
            self.strings.add(node.value)

    def _attribute(self, node: ast.Attribute) -> None:
        behind: list[str] = []
        base: ast.expr = node
        while isinstance(base, ast.Attribute):
            behind.append(base.attr)
            base = base.value
        self.attributes.update(behind)
        if isinstance(base, ast.Name):
            self.parts.append(base.id)
            self.scope.read.add((base.id, *reversed(behind)))
        else:
            self.visit(base)
        self.parts.extend(f".{name}" for name in reversed(behind))

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> None:
        arguments = node.args
        for value in (*getattr(node, "decorator_list", ()), *arguments.defaults, *filter(None, arguments.kw_defaults)):
            self.visit(value)
        if isinstance(node, _FUNCTIONS):
            self.scope.bound.add(node.name)
            self.parts.append(node.name)
        kinds = (arguments.posonlyargs, arguments.args, [arguments.vararg], arguments.kwonlyargs, [arguments.kwarg])
        names = [[each.arg for each in kind if each is not None] for kind in kinds]
        keyword_only = [default is not None for default in arguments.kw_defaults]
        self.parts.append(f"{type(node).__name__} {names} {len(arguments.defaults)} {keyword_only} (")

        def body() -> None:
            self.scope.bound.update(name for kind in names for name in kind)
            if isinstance(node, ast.Lambda):
                self.visit(node.body)
            else:
                self._list(list(node.body))

        self._inside(body)
        self.parts.append(")")

    def _class(self, node: ast.ClassDef) -> None:
        for value in (*node.decorator_list, *node.bases, *(keyword.value for keyword in node.keywords)):
            self.visit(value)
        self.scope.bound.add(node.name)
        self.parts.append(f"class {node.name} {[keyword.arg for keyword in node.keywords]} (")
        self._inside(lambda: self._list(list(node.body)))
        self.parts.append(")")

    def _inside(self, visit: Callable[[], None]) -> None:
        outside, self.scope = self.scope, _Scope()
        visit()
        outside.read.update(self.scope.free())
        self.scope = outside

    def _annotated(self, node: ast.AnnAssign) -> None:
        self.parts.append("Assign(")
        self.visit(node.target)
        if node.value is not None:
            self.visit(node.value)
        self.parts.append(")")

    def _binds(self, node: ast.AST) -> None:
        match node:
            case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                self.scope.bound.add(name)
            case ast.MatchMapping(rest=str(name)):
                self.scope.bound.add(name)
            case ast.MatchClass():
                self.attributes.update(node.kwd_attrs)
            case ast.keyword(arg=str(name)):
                self.keywords.add(name)
            case _:
                pass
