"""The public callables of an installed framework, by introspection."""

from __future__ import annotations

import inspect
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from fnmatch import fnmatchcase
from functools import partial
from importlib.metadata import packages_distributions, version
from types import BuiltinFunctionType, FunctionType, ModuleType, SimpleNamespace
from typing import Any

import msgspec

from conformance.surface.scope import SurfaceScope
from frameworks.calls import default_text, kind_of
from frameworks.registry import UnknownFramework
from frameworks.ways import resolved


class Parameter(msgspec.Struct, frozen=True):
    """A parameter: kind as in `inspect`, text and type of the default, None and "" without one."""

    kind: str
    default: str | None = None
    of: str = ""


class PublicCallable(msgspec.Struct, frozen=True):
    """A public callable.

    Attributes:
        parameters: by name, "*" or "**" before those that take any number; None without a signature.
        place: "module:qualified name" of its code, "" if it has none in Python.
        owner: "module:qualified name" of its class, "" for a function.
        through: the same of decorators that call it.
    """

    technique: str
    parameters: dict[str, Parameter] | None = None
    place: str = ""
    owner: str = ""
    through: list[str] = []


class Listing(msgspec.Struct, frozen=True):
    """The callables of a version, and the classes of values that recordings gave to their parameters.

    Attributes:
        versions: of the packages, by name.
        absent: names of the scope that these versions do not have.
        used: by callable and parameter; parameter "" stands for the call itself.
    """

    framework: str
    versions: dict[str, str]
    callables: dict[str, PublicCallable]
    absent: list[str] = []
    used: dict[str, dict[str, list[str]]] = {}


def listed(scope: SurfaceScope) -> Listing:
    """The callables in a scope; imports its modules, so far as they are installed.

    Raises:
        UnknownFramework: nothing of the scope is installed.
    """
    result: dict[str, PublicCallable] = {}
    absent: list[str] = []
    seen: set[int] = set()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        general = [each for each in map(resolved, scope.general) if each is not None]
        public = {technique: [*_public(names, absent)] for technique, names in scope.techniques.items()}
        if not any(public.values()):
            name = scope.framework
            raise UnknownFramework(
                f"framework {name!r} is not installed: install it, or use the environment of tox -e {name}"
            )
        classes = {id(each) for each in general}
        classes |= {id(each) for members in public.values() for _, each in members if isinstance(each, type)}
        for technique, members in public.items():
            for name, member in members:
                if id(member) not in seen:  # an alias
                    seen.add(id(member))
                    result |= _entries(technique, name, member, classes, scope)
    return Listing(scope.framework, _versions(scope), dict(sorted(result.items())), sorted(absent))


def _versions(scope: SurfaceScope) -> dict[str, str]:
    of = packages_distributions()
    return {name: version(of[name][0]) for name in sorted(scope.packages & of.keys()) if name in sys.modules}


def _public(names: list[str], absent: list[str]) -> Iterator[tuple[str, Any]]:
    left_out = [name[1:] for name in names if name[0] == "!"]
    for name in (name for name in names if name[0] != "!"):
        place = name.rpartition(".")[0] if "*" in name else name
        result = resolved(place)
        if result is None:
            absent.append(name)
        elif isinstance(result, (ModuleType, SimpleNamespace)):
            public = dir(result) if "*" in name else getattr(result, "__all__", None) or dir(result)
            for each, member in _members(place, result, public):
                if not any(fnmatchcase(each, out) for out in left_out) and ("*" not in name or fnmatchcase(each, name)):
                    yield each, member
        else:
            yield name, result


def _members(place: str, module: object, public: Iterable[str]) -> Iterator[tuple[str, Any]]:
    root = place.partition(".")[0]
    for name in sorted(public):
        member = getattr(module, name, None)
        home = str(getattr(member, "__module__", None) or "")
        if name[0] != "_" and callable(member) and home.partition(".")[0] == root:
            yield f"{place}.{name}", member


def _entries(
    technique: str, name: str, member: Any, classes: set[int], scope: SurfaceScope
) -> Iterator[tuple[str, PublicCallable]]:
    if not isinstance(member, type):
        above = resolved(name.rpartition(".")[0])
        owner = _place(above) if isinstance(above, type) else ""
        if _code_of(member)[0] or isinstance(member, BuiltinFunctionType):  # else an object, or an alias of types
            yield name, _entry(technique, member, owner, bound=bool(owner))
        return
    if issubclass(member, (Enum, BaseException)) or hasattr(member, "_fields") or vars(member).get("_is_protocol"):
        return
    yield name, _constructor(technique, member)
    overridden: set[str] = set()
    for base in member.__mro__:
        if (base is not member and id(base) in classes) or base.__module__.partition(".")[0] not in scope.packages:
            break
        own = {method: raw for method, raw in vars(base).items() if method not in overridden}
        overridden |= own.keys()
        for method, raw in own.items():
            function = raw.__func__ if isinstance(raw, (classmethod, staticmethod)) else raw
            if (method == "__call__" or method[0] != "_") and _code_of(function)[0]:
                owner = "" if isinstance(raw, staticmethod) else _place(member)
                yield f"{name}.{method}", _entry(technique, function, owner, bound=bool(owner))


def _place(made: type) -> str:
    return f"{made.__module__}:{made.__qualname__}"


def _constructor(technique: str, made: type) -> PublicCallable:
    for special in ("__init__", "__new__"):
        if _code_of(function := getattr(made, special))[0]:
            return _entry(technique, function, _place(made), bound=True)
    return PublicCallable(technique, _parameters(made, 0), owner=_place(made))


def _entry(technique: str, function: Callable[..., Any], owner: str = "", *, bound: bool = False) -> PublicCallable:
    place, through = _code_of(function)
    return PublicCallable(technique, _parameters(function, int(bound)), place, owner, through)


def _parameters(function: Callable[..., Any], begin: int) -> dict[str, Parameter] | None:
    try:
        parameters = [*inspect.signature(function).parameters.values()][begin:]
    except (ValueError, TypeError):
        return None
    stars: dict[Any, str] = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    return {
        stars.get(each.kind, "") + each.name: Parameter(each.kind.name.lower())
        if each.default is each.empty
        else Parameter(each.kind.name.lower(), default_text(each.default), kind_of(each.default))
        for each in parameters
        if each.name[0] != "_" or each.kind in stars
    }


def _code_of(function: Any) -> tuple[str, list[str]]:
    """Where the innermost code of a callable is, and that of its decorators; "" if it is not written in Python."""
    through: list[str] = []
    while True:
        plain = function.func if isinstance(function, partial) else getattr(function, "__func__", function)
        written = isinstance(plain, FunctionType)
        here = f"{plain.__globals__.get('__name__')}:{plain.__code__.co_qualname}" if written else ""
        inner = plain if plain is not function else getattr(plain, "__wrapped__", None)
        if inner is None:
            return here, through
        through += [here] if here else []
        function = inner


def watched(listing: Listing, scope: SurfaceScope) -> dict[str, Any]:
    """What `frameworks.calls.CallRecorder` needs of a listing."""
    functions: dict[str, dict[str, Any]] = {}
    for name, entry in listing.callables.items():
        if entry.place:
            parameters = {key: (p.kind, p.default, p.of) for key, p in (entry.parameters or {}).items()}
            it = {"name": name, "through": entry.through, "parameters": parameters}
            functions.setdefault(entry.place, {}).setdefault(entry.owner, it)
    passed = {entry.owner or entry.place: name for name, entry in reversed(listing.callables.items())}
    return {"packages": sorted(scope.packages), "between": scope.between, "functions": functions, "passed": passed}
