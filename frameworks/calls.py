"""Records which parameters of a framework's public callables the suites set, without touching the framework.

`conformance surface` explains the use. `start` sets a profile function, which Python calls at the start of every
function. No object is wrapped and no module imported, so a recorded run computes what any other computes.
"""

from __future__ import annotations

import json
import os
import re
import sys
import threading
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager, suppress
from enum import Enum
from pathlib import Path
from types import FrameType, FunctionType
from typing import Any

FOLDER = "CONFORMANCE_SURFACE"
"""Environment variable with the folder of a recording; processes without it record nothing."""

WATCHED, LINES = "watched.json", "calls.txt"
"""Files of that folder: what is watched, and one line "callable TAB parameter TAB class of value" for each use."""

TEXT = re.compile(r"[\w.+:/-]{1,24}")
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
_LONGEST = 300
"""Characters of a default's text."""
_MOST = 12
"""Largest number of classes that a process records of one parameter."""
_TENSORS = frozenset({"Tensor", "Parameter", "EagerTensor", "ArrayImpl", "ndarray", "Variable", "KerasVariable"})
_FUNCTIONS = frozenset({"function", "builtin_function_or_method", "method", "partial", "PjitFunction"})
_BETWEEN = frozenset({"contextlib", "functools"})
"""Standard modules between a caller and the function that it calls."""


def class_of(value: object) -> str:
    """The class of an argument: None, bool, number, a short string itself, callable, tensor, or the type's name."""
    kind = type(value)
    if value is None or kind is bool:
        return "None" if value is None else "bool"
    if kind in (int, float, complex) or (kind.__module__ == "numpy" and kind.__name__ != "ndarray"):
        return "dtype" if "dtype" in kind.__name__.lower() else "number"
    if isinstance(value, str):
        return f"'{value}'" if TEXT.fullmatch(value) else "str"
    if isinstance(value, Enum):
        return f"{kind.__name__}.{value.name}"
    names = {each.__name__ for each in kind.__mro__}
    if names & _TENSORS or kind.__name__.endswith("Tracer"):
        return "tensor"
    if kind.__name__ in _FUNCTIONS or issubclass(kind, type):
        return "callable"
    return kind.__name__


def default_text(value: object) -> str:
    """A default as text that is the same in every process."""
    if isinstance(value, (FunctionType, type)):
        return f"{value.__module__}.{value.__qualname__}"
    if isinstance(value, Enum):
        return class_of(value)
    try:
        return _ADDRESS.sub("", " ".join(repr(value).split()))[:_LONGEST]
    except Exception:
        return kind_of(value)


def kind_of(value: object) -> str:
    """The name of a value's type."""
    return type(value).__name__


def is_default(value: object, default: str, kind: str) -> bool:
    """Whether a value is a parameter's default, which is known by its text and its type."""
    if kind_of(value) == kind:
        return default_text(value) == default
    if isinstance(value, (int, float)) and kind in ("int", "float"):
        return float(value) == float(default)
    return False


class CallRecorder:
    """The calls of one process.

    Args:
        watched: `packages`, the top-level packages whose own calls do not count; `between`, modules and functions
            ("module:qualified name") that stand between a caller and its call; `functions`, the public callables by
            "module:qualified name" of their code and by their class ("" for a function); `passed`, the names of
            functions and classes that may be passed, likewise.
        write: takes each new line.
    """

    def __init__(self, watched: Mapping[str, Any], write: Callable[[str], object]) -> None:
        self._packages = frozenset(watched["packages"])
        self._between = _BETWEEN | frozenset(watched["between"])
        self._functions: Mapping[str, Mapping[str, Mapping[str, Any]]] = watched["functions"]
        self._passed: Mapping[str, str] = watched["passed"]
        self._names = frozenset(place.rpartition(":")[2].rpartition(".")[2] for place in self._functions)
        self._classes_of: dict[tuple[str, str], set[str]] = {}
        self._write = write

    def profile(self, frame: FrameType, event: str, _: object) -> None:
        """The function for `sys.setprofile`."""
        if event == "call" and frame.f_code.co_name in self._names:
            with suppress(Exception):  # an exception here would end the test
                self._note(frame)

    def _note(self, frame: FrameType) -> None:
        code = frame.f_code
        classes = self._functions.get(f"{frame.f_globals.get('__name__')}:{code.co_qualname}")
        if classes is None:
            return
        values = frame.f_locals
        first = values.get(code.co_varnames[0]) if code.co_varnames else None
        owner = first if isinstance(first, type) else type(first)
        entry = next((classes[name] for name in _ancestors(owner) if name in classes), None)
        if entry is None or not self._direct(frame.f_back, owner, entry["through"]):
            return
        self._add(entry["name"], "", "called")
        for name, (kind, default, of_kind) in entry["parameters"].items():
            value = values.get(name.lstrip("*"))
            value_class = {*_classes(kind, value, default, of_kind)}
            for each in value_class:
                self._add(entry["name"], name, each)
            if value_class and isinstance(value, (FunctionType, type)):
                passed = self._passed.get(f"{value.__module__}:{value.__qualname__}")
                if passed is not None:
                    self._add(passed, "", "passed")

    def _direct(self, frame: FrameType | None, owner: type, through: Iterable[str]) -> bool:
        """Whether code outside the framework made the call, possibly by a decorator or a metaclass."""
        while frame is not None:
            module, code = str(frame.f_globals.get("__name__")), frame.f_code
            place = f"{module}:{code.co_qualname}"
            if module not in self._between and place not in self._between and place not in through:
                if module.partition(".")[0] not in self._packages:
                    return True
                if code.co_name not in ("__call__", "__new__") or not _creates(frame, owner):
                    return False
            frame = frame.f_back
        return False

    def _add(self, name: str, parameter: str, value_class: str) -> None:
        classes = self._classes_of.setdefault((name, parameter), set())
        if value_class not in classes and len(classes) < _MOST:
            classes.add(value_class)
            self._write(f"{name}\t{parameter}\t{value_class}\n")


def _ancestors(owner: type) -> Iterable[str]:
    yield from (f"{each.__module__}:{each.__qualname__}" for each in owner.__mro__)
    yield ""


def _creates(frame: FrameType, owner: type) -> bool:
    names = frame.f_code.co_varnames
    made = frame.f_locals.get(names[0]) if names else None
    return isinstance(made, type) and issubclass(owner, made)


def _classes(kind: str, value: object, default: str | None, of_kind: str) -> Iterable[str]:
    if kind == "var_positional":
        return {class_of(each) for each in value} if isinstance(value, tuple) else ()
    if kind == "var_keyword":
        return {f"{key}={class_of(each)}" for key, each in value.items()} if isinstance(value, dict) else ()
    return () if default is not None and is_default(value, default, of_kind) else (class_of(value),)


def start() -> None:
    """Records the calls of this process and of its later threads, if the environment names a folder for it."""
    if (folder := os.environ.get(FOLDER)) and sys.getprofile() is None:
        watched = json.loads(Path(folder, WATCHED).read_text("utf-8"))
        lines = os.open(Path(folder, LINES), os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        calls = CallRecorder(watched, lambda line: os.write(lines, line.encode("utf-8", "replace")))
        threading.setprofile(calls.profile)
        sys.setprofile(calls.profile)


def stop() -> None:
    """Ends the recording in this process and in those that it starts later."""
    if os.environ.pop(FOLDER, None):
        threading.setprofile(None)
        sys.setprofile(None)


@contextmanager
def paused() -> Generator[None]:
    """Inside, this thread records nothing and loses no time by it."""
    profile = sys.getprofile()
    sys.setprofile(None)
    try:
        yield
    finally:
        sys.setprofile(profile)
