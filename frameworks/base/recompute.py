"""Recomputation and activation offload for all adapters: segments, the cases of `Framework.recompute`, tensor files.

For a case, an adapter supplies the function, the framework's recomputation call, and a function whose second run fails.
It differentiates the result of `recomputed_call`, changes w after the forward pass in `WEIGHTS_CHANGE`, and passes an x
without gradient in `NO_GRAD_INPUT`.
"""

from __future__ import annotations

import random
import shutil
import tempfile
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import accumulate, count, pairwise
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from fixtures.recipe import Recompute, segment_sizes
from frameworks.contract import RecomputeCase

T = TypeVar("T")

NO_GRAD_INPUT: RecomputeCase = "no-grad-input"
"""The case in which x needs no gradient."""
WEIGHTS_CHANGE: RecomputeCase = "weights-changed"
"""The case in which w is multiplied by `FACTOR`, in place, between the forward and the backward pass."""
FACTOR = 3.0
CLOSED_OVER: tuple[RecomputeCase, ...] = (NO_GRAD_INPUT, WEIGHTS_CHANGE)
"""The cases in which the function takes only x and closes over w, as a module closes over its parameters."""


class FailingRerun:
    """Makes every run of a function but the first fail, for the case "raises"."""

    def __init__(self) -> None:
        self.runs = 0

    def begin(self) -> None:
        """Begins a run.

        Raises:
            RuntimeError: the run is not the first one.
        """
        self.runs += 1
        if self.runs > 1:
            raise RuntimeError("the second run of this function fails")


def draw_exponent(case: RecomputeCase) -> int:
    """Draws -3 to 3 from the process-wide generator that a case names."""
    return random.randint(-3, 3) if case == "draws-python" else int(np.random.randint(-3, 4))


def recomputed_call(
    case: RecomputeCase,
    run: Callable[..., T],
    value: Callable[[Any, Any], T],
    failing: Callable[[Any, Any], T],
    x: Any,
    w: Any,
) -> T:
    """Calls the function through the recomputation call, with the arguments of a case.

    Args:
        run: the framework's recomputation call: `run(function, *args, **named)`.
        value: the function of x (n, m) and w (m, k), tensors of the framework.
        failing: the same function, but its second run fails.

    Raises:
        ValueError: the case is unknown.
    """

    def of_sequence(pair: Sequence[Any]) -> T:
        return value(pair[0], pair[1])

    def of_mapping(pair: Mapping[str, Any]) -> T:
        return value(pair["x"], pair["w"])

    def of_x(inner: Any) -> T:
        return value(inner, w)

    def of_drawn(inner: Any, weight: Any) -> T:
        return value(inner * 2.0 ** draw_exponent(case), weight)

    match case:
        case "plain":
            return value(x, w)
        case "positional":
            return run(value, x, w)
        case "tuple":
            return run(of_sequence, (x, w))
        case "list":
            return run(of_sequence, [x, w])
        case "dict":
            return run(of_mapping, {"x": x, "w": w})
        case "keyword":
            return run(value, x=x, w=w)
        case "no-grad-input" | "weights-changed":
            return run(of_x, x)
        case "raises":
            return run(failing, x, w)
        case "draws-python" | "draws-numpy":
            return run(of_drawn, x, w)
        case _:
            raise ValueError(f"there is no recomputation case {case!r}")


Bounds = tuple[int, int]
"""Index of the first layer of a segment, and the index after its last layer."""


def segment_bounds(layers: int, recompute: Recompute | None) -> tuple[Bounds, ...]:
    """Bounds of every segment of a model of `layers` layers; without recomputation one segment has all of them."""
    return _cut(0, layers, recompute.segments) if recompute else ((0, layers),)


def inner_bounds(segment: Bounds) -> tuple[Bounds, ...]:
    """Bounds of the two halves of a segment, which nested recomputation recomputes separately."""
    start, stop = segment
    return _cut(start, stop, min(2, stop - start))


def _cut(start: int, stop: int, count: int) -> tuple[Bounds, ...]:
    return tuple(pairwise(accumulate(segment_sizes(stop - start, count), initial=start)))


Pack = Callable[[Any], Any]


class SavedActivations:
    """Saved activations of a run without offload; the base of `OffloadedActivations`."""

    def saving(self) -> AbstractContextManager[Any]:
        """The context of a forward pass."""
        return nullcontext()

    def take_bytes(self) -> int:
        """Bytes offloaded since the last call; a tensor saved by two operations counts twice."""
        return 0


class OffloadedActivations(SavedActivations):
    """Offload by saved-tensor hooks, with a count of the offloaded bytes.

    Args:
        hooks: the framework's context for a pair of hooks.
        pack, unpack: the hooks; a tensor is not offloaded if its packed value is it, or has it as its second part.
        size: returns the size of a tensor in bytes.
    """

    def __init__(
        self, hooks: Callable[[Pack, Pack], AbstractContextManager[Any]], pack: Pack, unpack: Pack, size: Pack
    ) -> None:
        self._hooks, self._pack, self._unpack, self._size = hooks, pack, unpack, size
        self._offloaded = 0

    def saving(self) -> AbstractContextManager[Any]:
        return self._hooks(self._pack_and_count, self._unpack)

    def take_bytes(self) -> int:
        offloaded, self._offloaded = self._offloaded, 0
        return offloaded

    def _pack_and_count(self, tensor: Any) -> Any:
        packed = self._pack(tensor)
        if not isinstance(packed, tuple) or packed[1] is not tensor:
            self._offloaded += self._size(tensor)
        return packed


class TensorFiles:
    """One file for each tensor, in a folder that is deleted with this object.

    Args:
        folder: parent of the folder; None for the temporary directory.
        save: writes a tensor to a path, with its strides, so that results computed from it have the same bits.
        load: reads such a file.
        suffix: suffix of the file names.
    Raises:
        OSError: the folder cannot be made.
    """

    def __init__(
        self, folder: str | None, save: Callable[[Any, Path], object], load: Callable[[Path], Any], suffix: str
    ) -> None:
        self._save, self._load, self._suffix = save, load, suffix
        self._folder = Path(tempfile.mkdtemp(prefix="run-", dir=folder))
        weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        self._numbers = count()

    def pack(self, tensor: Any) -> TensorFile:
        file = TensorFile(self._folder / f"{next(self._numbers)}{self._suffix}")
        self._save(tensor, file.path)
        weakref.finalize(file, file.path.unlink, missing_ok=True)
        return file

    def unpack(self, file: TensorFile) -> Any:
        return self._load(file.path)


@dataclass(frozen=True, eq=False)
class TensorFile:
    """Handle of a tensor file, which is deleted with this object when the graph is freed."""

    path: Path
