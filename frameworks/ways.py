"""Ways: the public calls and options by which a framework offers one technique.

`ways.toml`, next to the module of an adapter's entry, declares those that the adapter does not use by default.
A recipe chooses them by name (`Recipe.ways`).
"""

from __future__ import annotations

import inspect
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from types import BuiltinFunctionType, CodeType, FrameType
from typing import Any, Literal

from fixtures.recipe import TECHNIQUES, Recipe
from frameworks.registry import UnknownFramework, folder_of, path_of

FILE = "ways.toml"
_Event = Literal["call", "return", "c_call", "c_return", "c_exception"]


@dataclass(frozen=True)
class Way:
    """One public way to a technique.

    Attributes:
        technique: one of `TECHNIQUES`.
        name: what the adapter calls it.
        calls: dotted names of the public callables that it uses, with the arguments that set it apart.
        link: the page that documents it.
        modes: modes of the adapter that have it.
        limits: what the documentation says that it does not do; "" for nothing.
        levels: levels of ranks that differ in it, of a technique of ranks; () for the technique's usual one.
    """

    technique: str
    name: str
    calls: Mapping[str, Mapping[str, Any]]
    link: str
    modes: tuple[str, ...]
    limits: str = ""
    levels: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.technique not in TECHNIQUES:
            raise ValueError(f"technique: got {self.technique!r}, want one of {', '.join(TECHNIQUES)}")
        if not self.calls:
            raise ValueError(f"{self}: name the calls that it uses")

    def __str__(self) -> str:
        return f"{self.technique}.{self.name}"


@cache
def load_ways(framework: str) -> tuple[Way, ...]:
    """Every way that the adapter `framework` (a name or an import path) declares, without importing its framework.

    Raises:
        UnknownFramework: there is no such adapter, or its file cannot be read.
    """
    folder = folder_of(path_of(framework))
    path = None if folder is None else folder / FILE
    if path is None or not path.is_file():
        return ()
    try:
        tables = tomllib.loads(path.read_text("utf-8"))
        modes = tables.pop("modes")
        return tuple(
            Way(technique, name, **{"modes": modes} | values)
            for technique, ways in tables.items()
            for name, values in ways.items()
        )
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise UnknownFramework(f"{path}: {error}; see docs/adapters.md") from None


def find_installed_ways(framework: str, mode: str) -> tuple[Way, ...]:
    """The ways of a mode whose calls the installed version has; imports the framework."""
    here = (way for way in load_ways(framework) if mode in way.modes)
    return tuple(way for way in here if all(resolve(name) is not None for name in way.calls))


def sets(ways: Sequence[Way]) -> tuple[tuple[Way, ...], ...]:
    """The ways in as few sets as can be, none with two of one technique: the first of each, the second of each, ..."""
    places = Counter[str]()
    result: list[tuple[Way, ...]] = []
    for way in ways:
        index = places[way.technique]
        places[way.technique] += 1
        result += [()] if index == len(result) else []
        result[index] += (way,)
    return tuple(result)


def resolve(name: str) -> Any:
    """What a dotted name leads to, None without it: attributes first, for packages may hide modules of that name."""
    first, *rest = name.split(".")
    try:
        value: Any = import_module(first)
        for end, part in enumerate(rest, 1):
            if not hasattr(value, part):
                import_module(".".join([first, *rest[:end]]))
            value = getattr(value, part)
    except Exception:  # missing, or not importable here
        return None
    return value


GIVEN = "*"
"""Value of a declared argument that only has to differ from the callable's default."""


@dataclass
class WatchedCalls:
    """Which of a way's calls have been made, with their arguments; a callable without Python code is its own key."""

    due: dict[Any, tuple[str, Mapping[str, Any]]] = field(default_factory=dict)

    @property
    def missing(self) -> tuple[str, ...]:
        """The names of the others."""
        return tuple(name for name, _ in self.due.values())

    def note_call(self, key: Any, arguments: Mapping[str, Any]) -> None:
        """Notes a call with arguments by their names, which a callable without Python code does not show."""
        name, wanted = self.due[key]
        if not isinstance(key, CodeType) or all(_fits(name, own, arguments, wanted[own]) for own in wanted):
            del self.due[key]


def _fits(call: str, argument: str, arguments: Mapping[str, Any], wanted: Any) -> bool:
    if wanted != GIVEN:
        return bool(arguments.get(argument, wanted) == wanted)
    default = inspect.signature(resolve(call)).parameters[argument].default
    return arguments.get(argument, default) is not default


@contextmanager
def watch_calls(way: Way) -> Iterator[WatchedCalls]:
    """Notes the way's calls in this thread, by a profile function until all have been made.

    Raises:
        TypeError: a call can be noted by neither its code nor itself.
    """
    calls = WatchedCalls({_key(name): (name, arguments) for name, arguments in way.calls.items()})
    before = sys.getprofile()

    def profile(frame: FrameType, event: _Event, argument: object) -> None:
        if event == "call" and frame.f_code in calls.due:
            calls.note_call(frame.f_code, frame.f_locals)
        elif event == "c_call" and id(argument) in natives and argument in calls.due:
            calls.note_call(argument, {})
        if not calls.due:
            sys.setprofile(before)
        elif before is not None:
            before(frame, event, argument)

    natives = {id(key) for key in calls.due if not isinstance(key, CodeType)}
    sys.setprofile(profile)
    try:
        yield calls
    finally:
        sys.setprofile(before)


@contextmanager
def require_calls(framework: str, recipe: Recipe, *techniques: str) -> Iterator[None]:
    """Checks that calls of the recipe's ways of these techniques are made within the context.

    Raises:
        RuntimeError: one was not.
    """
    chosen = [way for way in load_ways(framework) if recipe.way(way.technique) == way.name]
    with ExitStack() as stack:
        calls = [(way, stack.enter_context(watch_calls(way))) for way in chosen if way.technique in techniques]
        yield
    for way, watch in calls:
        if watch.missing:
            raise RuntimeError(f"{way}: {', '.join(watch.missing)} was not called as declared")


_STORES = ("cache_info", "get_concrete_function", "lower")
"""Attributes of functions that store results or programs: of functools.cache, tf.function and jax.jit."""


def _key(name: str) -> Any:
    """The code of a function, a class' constructor or a property's setter, or a function without Python code itself."""
    member: Any = resolve(name)
    if isinstance(member, type):
        member = vars(member).get("__init__", member)
    if isinstance(member, property):
        member = member.fset
    function: Any = inspect.unwrap(member)
    if any(hasattr(member, attribute) for attribute in _STORES):
        raise TypeError(f"{name} runs its code for new arguments alone, if at all; name another call of the way")
    code = getattr(function, "__code__", None)
    if isinstance(code, CodeType):
        return code
    if isinstance(function, BuiltinFunctionType):
        return function
    raise TypeError(f"{name}: a call of {type(function).__name__} cannot be noted; name another call of the way")
