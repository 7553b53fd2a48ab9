"""A test's dependencies, read from source without importing it.

These are the suite's definitions that the test names, and all that they name in turn: helpers, constants, strategies,
fixtures, recipes, models, the automaton. A class contributes its fields, its special methods, and the methods whose
name occurs in these definitions. A class in `fixtures` contributes all methods, since adapters call them, but a field
that is optional and off by default, `frozen: ... = optional(())`, only where it is named. The subject, the oracle and
the container of results do not count: versions, derived bounds and schema identify them. The baseline loops of each
framework, which adapters are compared with, count completely.
"""

from __future__ import annotations

import ast
import hashlib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from conformance.test_ids.syntax import Chain, Reading, imported, read, statements

COUNTED = ("conformance", "fixtures")
"""Folders of the suite's definitions."""

CONTROL = ("frameworks", "native_loop")
"""The module of baseline loops; modules of the same name in the adapters' folders count too."""

UNCOUNTED = ("conformance", "oracle", "bounds_cache")
"""The oracle's cache, which affects the cost of a bound but not its value."""

WHOLE = "fixtures"
"""The folder whose classes contribute all methods."""

PROVIDED = {
    "subject": ("conformance", "checks", "subject", "Subject"),
    "verdict": ("conformance", "checks", "evidence", "Verdict"),
    "row": ("conformance", "checks", "covering_array", "rows"),
    "dropping_row": ("conformance", "checks", "covering_array", "rows"),
    "workaround": ("conformance", "spec", "findings", "Workaround"),
    "excluded": ("conformance", "known_failures", "entries", "Exclusion"),
}
"""Classes of the plugin's fixtures, by name."""

_PLAIN = frozenset({"property", "cached_property", "classmethod", "staticmethod", "contextmanager", "override"})
_MAIN, _ALWAYS = "__main__", "*"
"""Names of the code that runs when a module is executed, and of statements on which all its definitions depend."""


@dataclass(frozen=True, eq=False)
class Definition:
    """One name of a module, or one method of a class in it.

    Attributes:
        name: as in the source, "Class.method" for a method.
        nodes: what defines it; several if it is defined more than once.
        members: methods that count only if an attribute names them, by name.
        fields: fields that count only if an attribute, a keyword or a string names them, by name.
    """

    module: Module
    name: str
    nodes: tuple[ast.stmt, ...]
    members: tuple[tuple[str, Definition], ...] = ()
    fields: tuple[tuple[str, Definition], ...] = ()

    @cached_property
    def reading(self) -> Reading:
        """The reading of its source, without the members."""
        return read(self.nodes)

    @cached_property
    def digest(self) -> str:
        """Hash of its text and name."""
        return hashlib.sha256(f"{self.name}\n{self.reading.text}".encode()).hexdigest()

    @cached_property
    def named(self) -> tuple[Definition, ...]:
        """Definitions that it names."""
        tree, local = self.module.tree, dict(self.reading.imports)
        chains = [tree.resolve((*local[c[0]], *c[1:])) for c in self.reading.names if c[0] in local]
        chains += [self.module.resolve(chain) for chain in self.reading.names if chain[0] not in local]
        chains += [tree.started(text) for text in self.reading.strings]
        if self.module.name == CONTROL and ("import_module",) in self.reading.names:
            chains += [module.everything for module in tree.controls()]
        return tuple({definition: None for chain in chains for definition in chain})


class Module:
    """The definitions and imports of one source file."""

    def __init__(self, tree: Tree, name: Chain, path: Path) -> None:
        self.tree, self.name = tree, name
        self.imports: dict[str, Chain] = {}
        self._nodes: defaultdict[str, list[ast.stmt]] = defaultdict(list)
        self._resolved: dict[Chain, tuple[Definition, ...]] = {}
        for node in statements(ast.parse(path.read_text("utf-8")).body):
            self._take(node)

    def _take(self, node: ast.stmt) -> None:
        match node:
            case ast.Import() | ast.ImportFrom():
                self.imports.update(imported(node))
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                self._nodes[node.name].append(node)
            case ast.If(test=ast.Name(id="TYPE_CHECKING")):
                for inner in node.body:
                    self._take(inner)
            case ast.If(test=ast.Compare(left=ast.Name(id="__name__"))):
                self._nodes[_MAIN].append(node)
            case _:
                for name in sorted(self._bound(node)) or [_ALWAYS]:
                    self._nodes[name].append(node)

    def _bound(self, node: ast.stmt) -> Iterator[str]:
        """Names that a statement of the module binds; imports are recorded."""
        for part in ast.walk(node):
            if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store):
                yield part.id
            elif isinstance(part, ast.FunctionDef | ast.ClassDef):
                yield part.name
            elif isinstance(part, ast.Import | ast.ImportFrom):
                self.imports.update(imported(part))

    @cached_property
    def definitions(self) -> dict[str, Definition]:
        """Every definition by its name."""
        return {name: self._definition(name, tuple(nodes)) for name, nodes in self._nodes.items()}

    def _definition(self, name: str, nodes: tuple[ast.stmt, ...]) -> Definition:
        node = nodes[0]
        if len(nodes) > 1 or not isinstance(node, ast.ClassDef):
            return Definition(self, name, nodes)
        if self.name[0] == WHOLE:
            return self._with_fields(name, node)
        methods: defaultdict[str, list[ast.stmt]] = defaultdict(list)
        body: list[ast.stmt] = []
        for part in node.body:
            if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef) and _waits(part):
                methods[part.name].append(part)
            else:
                body.append(part)
        head = ast.ClassDef(node.name, node.bases, node.keywords, body, node.decorator_list)
        members = ((key, Definition(self, f"{name}.{key}", tuple(parts))) for key, parts in methods.items())
        return Definition(self, name, (head,), tuple(members))

    def _with_fields(self, name: str, node: ast.ClassDef) -> Definition:
        fields = {part: field for part in node.body if (field := _off_by_default(part))}
        body = [part for part in node.body if part not in fields]
        head = ast.ClassDef(node.name, node.bases, node.keywords, body, node.decorator_list)
        own = ((field, Definition(self, f"{name}.{field}", (part,))) for part, field in fields.items())
        return Definition(self, name, (head,), fields=tuple(own))

    @cached_property
    def everything(self) -> tuple[Definition, ...]:
        """Every definition, with every method."""
        own = self.definitions.values()
        return (*own, *(part for definition in own for _, part in (*definition.members, *definition.fields)))

    def resolve(self, chain: Chain) -> tuple[Definition, ...]:
        """Definitions behind a name in this module; none for a name from outside the suite."""
        if chain not in self._resolved:
            self._resolved[chain] = ()
            self._resolved[chain] = self._resolve(chain)
        return self._resolved[chain]

    def _resolve(self, chain: Chain) -> tuple[Definition, ...]:
        meant = self.own(chain[0])
        if chain[0] in self.imports:
            meant += self.tree.resolve((*self.imports[chain[0]], *chain[1:]))
        return meant

    def own(self, name: str) -> tuple[Definition, ...]:
        """The module's own definition of a name, if there is one."""
        return (self.definitions[name],) if name in self.definitions else ()


def _counts(name: Chain) -> bool:
    """Whether definitions of a module count, by its dotted name."""
    if (name[:1], name[-1:]) == (CONTROL[:1], CONTROL[1:]):
        return True
    return name[:1] != () and name[0] in COUNTED and name != UNCOUNTED


def _waits(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether a method counts only if it is named: neither Python nor a decorator calls it."""
    if node.name.startswith("__") and node.name.endswith("__"):
        return False
    return all(_last(mark) in _PLAIN or _last(mark) in ("setter", "abstractmethod") for mark in node.decorator_list)


def _off_by_default(node: ast.stmt) -> str:
    """The name of a field that `optional` leaves unset, such as None, False, 0 or (); "" for any other statement."""
    match node:
        case ast.AnnAssign(
            target=ast.Name(id=name),
            value=ast.Call(
                func=ast.Name(id="optional"), args=[ast.Constant(value=None | False | 0) | ast.Tuple(elts=[])]
            ),
        ):
            return name
        case _:
            return ""


def _last(mark: ast.expr) -> str:
    match mark:
        case ast.Call(func=called):
            return _last(called)
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return str(name)
        case _:
            return ""


class Tree:
    """The source files of a checkout, each read once."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._modules: dict[Chain, Module | None] = {}

    def module(self, name: Chain) -> Module | None:
        """A module by its dotted name, None if it does not count."""
        if name not in self._modules:
            path = self._path(name)
            self._modules[name] = None if path is None else Module(self, name, path)
        return self._modules[name]

    def _path(self, name: Chain) -> Path | None:
        if not _counts(name) or not all(part.isidentifier() for part in name):
            return None
        place = self._root.joinpath(*name)
        return next((p for p in (place.with_suffix(".py"), place / "__init__.py") if p.is_file()), None)

    def controls(self) -> Iterator[Module]:
        """The modules of baseline loops."""
        folder, name = CONTROL
        for path in sorted(self._root.joinpath(folder).glob(f"*/{name}.py")):
            module = self.module((folder, path.parent.name, name))
            if module is not None:
                yield module

    def resolve(self, chain: Chain) -> tuple[Definition, ...]:
        """Definitions behind an absolute dotted name: of one name in a module, or of the whole module."""
        for length in range(len(chain), 0, -1):
            module = self.module(chain[:length])
            if module is not None:
                behind = chain[length:]
                return module.resolve(behind) if behind else module.everything
        return ()

    def started(self, text: str) -> tuple[Definition, ...]:
        """Code that runs if a process executes the module that a string names."""
        module = self.module(tuple(text.split("."))) if text.startswith(COUNTED) else None
        return () if module is None else module.own(_MAIN)


def closure(roots: Sequence[Definition]) -> set[Definition]:
    """The definitions and all their dependencies."""
    reached: set[Definition] = set()
    named: set[tuple[str, str]] = set()
    waiting: defaultdict[tuple[str, str], list[Definition]] = defaultdict(list)
    pending = list(roots)
    while pending:
        definition = pending.pop()
        if definition in reached:
            continue
        reached.add(definition)
        pending += definition.named
        pending += definition.module.own(_ALWAYS)
        for kind, parts in (("member", definition.members), ("field", definition.fields)):
            for name, part in parts:
                (pending if (kind, name) in named else waiting[kind, name]).append(part)
        reading = definition.reading
        here = {("member", name) for name in reading.attributes}
        here |= {("field", name) for name in reading.attributes | reading.keywords | reading.strings}
        for key in here - named:
            pending += waiting.pop(key, ())
        named |= here
    return reached


def code_hash(module: Module, test: ast.FunctionDef) -> str:
    """Hash of a test and its dependencies, independent of where the definitions are."""
    reached = closure([module.definitions[test.name], *_given(module, test)])
    parts = "\n".join(sorted(definition.digest for definition in reached))
    return hashlib.sha256(parts.encode()).hexdigest()[:16]


def _given(module: Module, test: ast.FunctionDef) -> Iterator[Definition]:
    """Inputs that pytest passes to a test: fixtures by parameter name, and the module's marks."""
    for argument in (*test.args.args, *test.args.kwonlyargs):
        yield from module.resolve((argument.arg,))
        if argument.arg in PROVIDED:
            yield from module.tree.resolve(PROVIDED[argument.arg])
    yield from module.resolve(("pytestmark",))
