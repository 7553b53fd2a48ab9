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
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from types import CodeType, FrameType
from typing import Any, Literal

from fixtures.recipe import TECHNIQUES
from frameworks.adapter_file import folder_of
from frameworks.registry import UnknownFramework, path_of

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
    """

    technique: str
    name: str
    calls: Mapping[str, Mapping[str, Any]]
    link: str
    modes: tuple[str, ...]
    limits: str = ""

    def __post_init__(self) -> None:
        if self.technique not in TECHNIQUES:
            raise ValueError(f"technique: got {self.technique!r}, want one of {', '.join(TECHNIQUES)}")
        if not self.calls:
            raise ValueError(f"{self}: name the calls that it uses")

    def __str__(self) -> str:
        return f"{self.technique}.{self.name}"


@cache
def declared(framework: str) -> tuple[Way, ...]:
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
        raise UnknownFramework(f"{path}: {error}; see docs/ways.md") from None


def offered(framework: str, mode: str) -> tuple[Way, ...]:
    """The ways of a mode whose calls the installed version has; imports the framework."""
    here = (way for way in declared(framework) if mode in way.modes)
    return tuple(way for way in here if all(resolved(name) is not None for name in way.calls))


def sets(ways: Sequence[Way]) -> tuple[tuple[Way, ...], ...]:
    """The ways in as few sets as can be, none with two of one technique: the first of each, the second of each, ..."""
    places = Counter[str]()
    found: list[tuple[Way, ...]] = []
    for way in ways:
        place = places[way.technique]
        places[way.technique] += 1
        found += [()] if place == len(found) else []
        found[place] += (way,)
    return tuple(found)


def resolved(name: str) -> Any:
    """What a dotted name leads to, None without it: attributes first, for packages may hide modules of that name."""
    first, *rest = name.split(".")
    try:
        found: Any = import_module(first)
        for place, part in enumerate(rest, 1):
            if not hasattr(found, part):
                import_module(".".join([first, *rest[:place]]))
            found = getattr(found, part)
    except Exception:  # missing, or not importable here
        return None
    return found


@dataclass
class WatchedCalls:
    """Which of a way's calls have been made, with their arguments."""

    due: dict[CodeType, tuple[str, Mapping[str, Any]]] = field(default_factory=dict)

    @property
    def missing(self) -> tuple[str, ...]:
        """The names of the others."""
        return tuple(name for name, _ in self.due.values())


@contextmanager
def watched(way: Way) -> Iterator[WatchedCalls]:
    """Notes the way's calls in this thread, by a profile function until all have been made."""
    calls = WatchedCalls({code: (name, given) for name, given in way.calls.items() for code in _codes(resolved(name))})
    before = sys.getprofile()

    def profile(frame: FrameType, event: _Event, argument: object) -> None:
        if event == "call" and frame.f_code in calls.due:
            _, given = calls.due[frame.f_code]
            if all(frame.f_locals.get(key, given) == value for key, value in given.items()):
                del calls.due[frame.f_code]
                if not calls.due:
                    sys.setprofile(before)
                    return
        if before is not None:
            before(frame, event, argument)

    sys.setprofile(profile)
    try:
        yield calls
    finally:
        sys.setprofile(before)


def _codes(member: Any) -> Iterator[CodeType]:
    """The code of a function or of a class' constructor, if it is Python's."""
    function = inspect.unwrap(vars(member).get("__init__", member) if isinstance(member, type) else member)
    code = getattr(function, "__code__", None)
    if isinstance(code, CodeType):
        yield code
