"""The public callables of namespaces, their signatures, and what documentation says of a parameter."""

import ast
import functools
import importlib
import inspect
import re
import types
import typing
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

TEXT = 60
"""Number of characters kept of a text."""
_QUOTED = re.compile(r"""(?<![\w])["'`]{1,2}([A-Za-z][\w-]{1,30})["'`]{1,2}""")
_DOC_SIGNATURE = re.compile(r"^\s*[\w.]+\(([^()]*(?:\([^()]*\)[^()]*)*)\)\s*(?:->|$)", re.MULTILINE)
_ADDRESS = re.compile(r" at 0x[0-9a-f]+|0x[0-9a-f]{6,}|/[\w./-]*/|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_FOREIGN = ("abc", "builtins", "collections", "contextlib", "dataclasses", "enum", "functools", "numpy", "typing")
_NOT_STRINGS = frozenset({"None", "True", "False", "int", "float", "bool", "str", "tuple", "list", "dict", "Tensor"})


@dataclass(frozen=True)
class Parameter:
    """A parameter of a signature: `default` is `inspect.Parameter.empty` where a call must name it."""

    name: str
    default: Any
    annotation: str
    is_positional: bool
    strings: tuple[str, ...] = ()

    @property
    def is_required(self) -> bool:
        return self.default is inspect.Parameter.empty


@dataclass(frozen=True)
class PublicCallable:
    """A public callable.

    Attributes:
        name: its path from the package on.
        signature: parameters with defaults, as text.
        is_first: no other name of the same object precedes it; the others have no calls of their own.
    """

    name: str
    value: Any
    signature: str
    parameters: tuple[Parameter, ...]
    is_first: bool = field(default=True)


def find_callables(namespaces: Sequence[str]) -> list[PublicCallable]:
    """Return the public callables of modules and methods of classes that exist, without those of other packages."""
    found: dict[str, PublicCallable] = {}
    known: set[int] = set()
    for namespace in namespaces:
        try:
            module = _import(namespace)
        except Exception:
            continue
        for name in sorted(getattr(module, "__all__", None) or dir(module)):
            value = _load(module, name)
            if name.startswith("_") or not _is_own(value, namespace.partition(".")[0]):
                continue
            path = f"{namespace}.{name}"
            text, parameters = read_signature(value)
            if not text and name.endswith("_"):
                _, parameters = read_signature(_load(module, name.removesuffix("_")))
            found.setdefault(path, PublicCallable(path, value, text, parameters, id(value) not in known))
            known.add(id(value))
    return list(found.values())


def _import(namespace: str) -> Any:
    """Return a module or a class; where a package binds a name to another module than its file, the bound one."""
    package, _, name = namespace.rpartition(".")
    bound = getattr(_import(package), name, None) if package else None
    return bound if isinstance(bound, types.ModuleType | type) else importlib.import_module(namespace)


def _load(module: Any, name: str) -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return getattr(module, name)
    except Exception:
        return None


def _is_own(value: Any, package: str) -> bool:
    """Return whether a value is a callable of a package, and neither a module nor an abstract or error class."""
    if value is None or isinstance(value, types.ModuleType) or not callable(value) or inspect.isabstract(value):
        return False
    if isinstance(value, type) and issubclass(value, BaseException):
        return False
    root = str(getattr(value, "__module__", None) or package).partition(".")[0].lstrip("_")
    return root not in _FOREIGN


def read_signature(value: Any) -> tuple[str, tuple[Parameter, ...]]:
    """Return the signature of a callable as text and its parameters, from its documentation if Python has none."""
    signature = _find_signature(value)
    if signature is None:
        return "", ()
    documentation = inspect.getdoc(value) or ""
    if isinstance(value, type):
        initializer: Any = vars(value).get("__init__")
        documentation += f"\n{inspect.getdoc(initializer) or ''}"
    kinds = inspect.Parameter
    is_open = any(parameter.kind is kinds.VAR_POSITIONAL for parameter in signature.parameters.values())
    parameters = tuple(
        Parameter(
            parameter.name,
            parameter.default,
            "" if parameter.annotation is kinds.empty else str(parameter.annotation),
            parameter.kind is kinds.POSITIONAL_ONLY
            or (is_open and parameter.kind is kinds.POSITIONAL_OR_KEYWORD and parameter.default is kinds.empty),
            documented_strings(parameter.name, f"{parameter.annotation}", documentation),
        )
        for parameter in signature.parameters.values()
        if parameter.kind not in (kinds.VAR_POSITIONAL, kinds.VAR_KEYWORD)
    )
    stars: dict[Any, str] = {kinds.VAR_POSITIONAL: "*", kinds.VAR_KEYWORD: "**"}
    text = ", ".join(
        stars.get(parameter.kind, "")
        + parameter.name
        + ("" if parameter.default is kinds.empty else f"={show_default(parameter.default)}")
        for parameter in signature.parameters.values()
    )
    return f"({text})", parameters


def _find_signature(value: Any) -> inspect.Signature | None:
    try:
        signature = inspect.signature(value)
        if [parameter.kind.name for parameter in signature.parameters.values()] != ["VAR_POSITIONAL", "VAR_KEYWORD"]:
            return signature
        initializer: Any = vars(value).get("__init__") if isinstance(value, type) else None
        if initializer and (overloads := typing.get_overloads(initializer)):
            return inspect.signature(functools.partial(overloads[0], None))
        return _documented_signature(value) or signature
    except Exception:
        return _documented_signature(value)


def _documented_signature(value: Any) -> inspect.Signature | None:
    """Return the signature in the first lines of a docstring, as builtin functions have it."""
    match = _DOC_SIGNATURE.search(str(getattr(value, "__doc__", None) or "")[:400])
    if match is None:
        return None
    try:
        text = match[1].replace("\\", "")
        tree = ast.parse(f"def f({text}): pass").body[0]
        assert isinstance(tree, ast.FunctionDef)
        names = [argument.arg for argument in (*tree.args.posonlyargs, *tree.args.args)]
        defaults = [_read_default(node) for node in tree.args.defaults]
        empty = [inspect.Parameter.empty] * (len(names) - len(defaults))
        kinds = [inspect.Parameter.POSITIONAL_ONLY] * len(empty) + [inspect.Parameter.POSITIONAL_OR_KEYWORD] * len(
            defaults
        )
        entries = zip(names, kinds, [*empty, *defaults], strict=True)
        parameters = [inspect.Parameter(name, kind, default=default) for name, kind, default in entries]
        keyword = inspect.Parameter.KEYWORD_ONLY
        for argument, node in zip(tree.args.kwonlyargs, tree.args.kw_defaults, strict=True):
            if node is not None and argument.arg != "out":
                parameters.append(inspect.Parameter(argument.arg, keyword, default=_read_default(node)))
        return inspect.Signature(parameters)
    except (SyntaxError, ValueError):
        return None


def _read_default(node: ast.expr) -> Any:
    """Return a literal, or an object whose name is the expression."""
    try:
        return ast.literal_eval(node)
    except ValueError:
        return types.SimpleNamespace(name=ast.unparse(node))


def shorten(text: str) -> str:
    """Remove addresses, folders, identifiers and separators from a text, and cut it."""
    return _ADDRESS.sub("", text).replace(";", ",")[:TEXT]


def show_default(default: Any) -> str:
    """Return a default as text that is the same in every process."""
    if isinstance(default, (int, float, str, bytes, type(None))):
        return repr(default)
    if isinstance(default, (tuple, list)):
        return f"({', '.join(map(show_default, default))})"
    name = getattr(default, "__qualname__", None) or getattr(default, "name", None)
    return str(name) if isinstance(name, str) else shorten(f"{type(default).__name__} {default}")


def documented_strings(name: str, annotation: str, documentation: str) -> tuple[str, ...]:
    """Return the texts that a documentation or a Literal annotation offers for a parameter, at most eight."""
    if "Literal[" in annotation:
        return tuple(dict.fromkeys(_QUOTED.findall(annotation)))[:8]
    lines = documentation.splitlines()
    for number, line in enumerate(lines):
        if re.match(rf"\s*[-*:]?\s*(?:param\s+)?[`*]*{re.escape(name)}[`*]*\s*[(:]", line):
            indent = len(line) - len(line.lstrip())
            end = number + 1
            while end < len(lines) and (not lines[end].strip() or len(lines[end]) - len(lines[end].lstrip()) > indent):
                end += 1
            strings = _QUOTED.findall("\n".join(lines[number:end]))
            return tuple(dict.fromkeys(text for text in strings if text not in _NOT_STRINGS and text != name))[:8]
    return ()
