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
    """One public way to use a technique.

    Attributes:
        technique: one of `TECHNIQUES`.
        name: the adapter's name of the way.
        calls: dotted names of the public callables that the way uses, with the arguments that identify it.
        link: address of the page that documents the way.
        modes: modes of the adapter that have the way.
        limits: documented limits of the way; "" for none.
        levels: for a technique of ranks, the sharding levels that differ under this way; () for the usual level.
    """

    technique: str
    name: str
    calls: Mapping[str, Mapping[str, Any]] = field(hash=False)
    link: str
    modes: Sequence[str] = field(hash=False)
    limits: str = ""
    levels: Sequence[str] = field(default=(), hash=False)

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
    """Splits ways into as few sets as possible: the first way of each technique, the second of each, and so on."""
    places = Counter[str]()
    result: list[tuple[Way, ...]] = []
    for way in ways:
        index = places[way.technique]
        places[way.technique] += 1
        result += [()] if index == len(result) else []
        result[index] += (way,)
    return tuple(result)


def resolve(name: str) -> Any:
    """The object of a dotted name, or None. Attributes precede modules: a package may hide a module by its name."""
    first, *rest = name.split(".")
    try:
        value: Any = import_module(first)
        for end, part in enumerate(rest, 1):
            if not hasattr(value, part):
                import_module(".".join([first, *rest[:end]]))
            value = getattr(value, part)
    except Exception:  # the module is missing, or its import may raise anything
        return None
    return value


GIVEN = "*"
"""Value of a declared argument that only has to differ from the callable's default."""


@dataclass
class WatchedCalls:
    """Records the calls of a way that were made. Key of a callable: its code object, or itself if it has no code."""

    due: dict[Any, tuple[str, Mapping[str, Any]]] = field(default_factory=dict)

    @property
    def missing(self) -> tuple[str, ...]:
        """Names of the calls that were not made."""
        return tuple(name for name, _ in self.due.values())

    def note_call(self, key: Any, arguments: Mapping[str, Any]) -> None:
        """Records a call and its arguments by name; arguments of a callable without Python code are unknown."""
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
    """Records the way's calls in this thread, by a profile function that is removed once all have been made.

    Raises:
        TypeError: a callable caches its results, or is neither Python code nor a built-in function.
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
        RuntimeError: a call was not made.
    """
    chosen = [way for way in load_ways(framework) if recipe.way(way.technique) == way.name]
    with ExitStack() as stack:
        calls = [(way, stack.enter_context(watch_calls(way))) for way in chosen if way.technique in techniques]
        yield
    for way, watch in calls:
        if watch.missing:
            raise RuntimeError(f"{way}: {', '.join(watch.missing)} was not called as declared")


_STORES = ("cache_info", "get_concrete_function", "lower")
"""An attribute of each kind of caching function: functools.cache, tf.function and jax.jit."""


def _key(name: str) -> Any:
    """The code object of a function, constructor or property setter; the callable itself if it has no Python code."""
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
