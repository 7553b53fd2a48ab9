"""Saves of named values, in the background too, whose writer a test can hold."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import numpy as np

from fixtures.arrays import Array
from frameworks.contract.capabilities import Capability
from frameworks.contract.quantization import register_rule

Point = Literal["data", "commit"]
"""Where a writer can be held: before the first value is written, or before the written save counts as whole."""

Kind = Literal["tensor", "view", "array", "list", "number"]
"""The type of a live value: the framework's array, a view into a larger one, a NumPy array, a list of Python numbers
inside a dictionary, or one Python number."""

NUMBERS = "numbers"
"""Key of a list of Python numbers in its dictionary."""

LIMIT_S = 60.0
"""Longest wait at a gate, in seconds."""


class Gate:
    """Holds the thread that writes one save, at one point, until the gate is opened.

    Args:
        point: None holds nowhere.
        error: raised by the writer at the point, once the gate is open.
    """

    def __init__(self, point: Point | None = None, error: Exception | None = None) -> None:
        self.point, self.error = point, error
        self.reached, self._opened = threading.Event(), threading.Event()

    def open(self) -> None:
        """Lets the writer go on."""
        self._opened.set()

    def hold(self, point: Point) -> None:
        """Waits here, in the writer's thread, if this is the gate's point.

        Raises:
            TimeoutError: nobody opened the gate within `LIMIT_S`.
            Exception: the gate's error.
        """
        if point != self.point:
            return
        self.reached.set()
        if not self._opened.wait(LIMIT_S):
            raise TimeoutError(f"gate at {point}: not opened within {LIMIT_S:.0f} s")
        if self.error is not None:
            raise self.error


@register_rule(Capability.BACKGROUND_SAVES)
class LiveValues:
    """Named values in objects of NumPy and Python; an adapter extends it by the framework's own.

    The entries of an added value are equal float32 numbers. The view of a trainer is the tree that its saves hold.

    Attributes:
        tree: the objects by name.
        kinds: the kinds of the objects by name.
    """

    def __init__(self, tree: Mapping[str, Any] = MappingProxyType({})) -> None:
        self.tree: dict[str, Any] = dict(tree)
        self.kinds: dict[str, Kind] = dict.fromkeys(tree, "array")

    def add(self, name: str, kind: Kind, value: float, size: int = 4) -> None:
        """Adds a value, of shape (size,); a number has no shape."""
        self.tree[name], self.kinds[name] = self.make(kind, value, size), kind

    def fill(self, value: float) -> None:
        """Overwrites all entries of all values: in place, or as the framework replaces or donates its arrays."""
        for name, kind in self.kinds.items():
            self.tree[name] = self.overwrite(kind, self.tree[name], value)

    def read(self) -> dict[str, Array]:
        """Copies of the present values."""
        return {name: self.to_array(kind, self.tree[name]) for name, kind in self.kinds.items()}

    def make(self, kind: Kind, value: float, size: int) -> Any:
        """A new object of a kind."""
        match kind:
            case "list":
                return {NUMBERS: [value] * size}
            case "number":
                return value
            case "view":
                return np.full(3 * size, value, np.float32)[size : 2 * size]
            case _:
                return np.full(size, value, np.float32)

    def overwrite(self, kind: Kind, current: Any, value: float) -> Any:
        """The object after all its entries were overwritten; the same one, if that is done in place."""
        if kind == "number":
            return value
        entries = current[NUMBERS] if kind == "list" else current
        entries[:] = [value] * len(entries)
        return current

    def to_array(self, kind: Kind, current: Any) -> Array:
        """A copy of an object's entries."""
        return np.array(current[NUMBERS] if kind == "list" else current, np.float32)


class SaveSeries(ABC):
    """Saves of the same live values into numbered places of one folder, by the same objects of the framework.

    All methods but `load` raise the framework's own errors, also those of earlier saves in the background.
    """

    @abstractmethod
    def save(self, step: int, gate: Gate | None = None) -> None:
        """Saves the values as `step`, replacing an older save of that step.

        Args:
            gate: begins a save in the background, whose writer the gate can hold; None for the framework's plain save.
        """

    @abstractmethod
    def load(self, step: int, target: LiveValues) -> None:
        """Loads a save into other values, whose names, kinds and sizes are expected.

        Raises:
            ValueError: the framework refuses the save.
        """

    def wait(self) -> None:  # noqa: B027
        """Waits for the saves in the background, by the call that the documentation names."""

    def latest(self) -> int | None:
        """The step that the framework names as its latest; None for none, or if the framework names no latest."""
        return None

    def close(self) -> None:  # noqa: B027
        """Ends the series by the framework's own call, if there is one."""


@dataclass(frozen=True)
class BackgroundRule:
    """The documented rules of saves in the background.

    Attributes:
        told_at: the calls that raise the error of a save: "future", the wait for it alone; "next-save", the next save
            alone; "wait", the next save or wait, whichever comes first; "never", none.
        parallel_saves: a second save while one is running: it runs at the same time if the two share no object
            ("own-objects"), waits for the first, or is refused.
        latest: the save that the framework names as its latest while one is running: the last finished one, or the
            running one; "none" if it names no latest.
        end_of_process: the fate of a running save if the process returns or ends by an exception.
    """

    told_at: Literal["future", "next-save", "wait", "never"]
    parallel_saves: Literal["own-objects", "waits", "refused"]
    latest: Literal["finished", "running", "none"]
    end_of_process: Literal["finishes", "loses"]


@register_rule(Capability.SAVED_VALUES)
@dataclass(frozen=True)
class ValueSaver:
    """A framework's saves of values that no model and no optimizer holds.

    Attributes:
        values: makes live values, none at first.
        series: begins a series in a folder, which may have saves already, of these values and by one of `objects`.
        kinds: the kinds of values that a save may hold.
        objects: names of the objects that the saves of a series share, such as "stager"; the default first.
        points: the points at which a writer in the background can be held by public means.
        background: the rules of saves in the background (BACKGROUND_SAVES), None without them.
    """

    values: Callable[[], LiveValues]
    series: Callable[[Path, LiveValues, str], SaveSeries]
    kinds: tuple[Kind, ...]
    objects: tuple[str, ...]
    points: tuple[Point, ...] = ()
    background: BackgroundRule | None = None
