"""Recomputation, shared by all adapters: segments, and the cases of `Framework.recompute` with arguments and errors.

An adapter gives the few operations that a case is made of: the function, the framework's recomputation call, and a
function whose second run fails. It differentiates what `recomputed_call` returns, and does between the forward and the
backward pass what `WEIGHTS_CHANGE` and `NO_GRAD_INPUT` ask for.
"""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import accumulate, count, pairwise
from pathlib import Path
from typing import Any, TypeVar

from fixtures.recipe import Recompute, segment_sizes
from frameworks.contract import RecomputeCase

T = TypeVar("T")

NO_GRAD_INPUT: RecomputeCase = "no-grad-input"
"""The case in which x asks for no gradient."""
WEIGHTS_CHANGE: RecomputeCase = "weights-changed"
"""The case in which w is multiplied by `FACTOR`, in place, between the forward and the backward pass."""
FACTOR = 3.0
CLOSED_OVER: tuple[RecomputeCase, ...] = (NO_GRAD_INPUT, WEIGHTS_CHANGE)
"""The cases in which the function takes x alone and closes over w, as a module does over its parameters."""


class FailingRerun:
    """Counts the runs of a function and makes each but the first fail, in the case "raises"."""

    def __init__(self) -> None:
        self.runs = 0

    def begin(self) -> None:
        """Begins a run.

        Raises:
            RuntimeError: it is not the first one.
        """
        self.runs += 1
        if self.runs > 1:
            raise RuntimeError("the second run of this function fails")


def recomputed_call(
    case: RecomputeCase,
    run: Callable[..., T],
    value: Callable[[Any, Any], T],
    failing: Callable[[Any, Any], T],
    x: Any,
    w: Any,
) -> T:
    """Calls the function as a case says.

    Args:
        run: the framework's recomputation call: `run(function, *args, **named)`.
        value: the function, of x (n, m) and w (m, k) in the framework's own tensors.
        failing: the same function, which fails when it is run for the second time.

    Raises:
        ValueError: there is no such case.
    """

    def of_sequence(pair: Sequence[Any]) -> T:
        return value(pair[0], pair[1])

    def of_mapping(pair: Mapping[str, Any]) -> T:
        return value(pair["x"], pair["w"])

    def of_x(inner: Any) -> T:
        return value(inner, w)

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
        case _:
            raise ValueError(f"there is no recomputation case {case!r}")


Bounds = tuple[int, int]
"""First layer of a run of layers, and the one after its last."""


def segment_bounds(layers: int, recompute: Recompute | None) -> tuple[Bounds, ...]:
    """Bounds of every segment of so many layers; one segment has them all where nothing is recomputed."""
    return _cut(0, layers, recompute.segments) if recompute else ((0, layers),)


def inner_bounds(segment: Bounds) -> tuple[Bounds, ...]:
    """Bounds of the halves of a segment, each of which nested recomputation recomputes by itself."""
    start, stop = segment
    return _cut(start, stop, min(2, stop - start))


def _cut(start: int, stop: int, count: int) -> tuple[Bounds, ...]:
    return tuple(pairwise(accumulate(segment_sizes(stop - start, count), initial=start)))


Pack = Callable[[Any], Any]


class SavedActivations:
    """No offload."""

    def saving(self) -> AbstractContextManager[Any]:
        """The context of a forward pass."""
        return nullcontext()

    def take_bytes(self) -> int:
        """Bytes offloaded since the last call; a tensor saved by two operations counts twice."""
        return 0


class OffloadedActivations(SavedActivations):
    """Saved-tensor hooks of a run, which count the bytes that leave.

    Args:
        hooks: the framework's context for a pair of hooks.
        pack, unpack: the hooks; a packed value that is the tensor itself, or has it as its second part, did not leave.
        size: the bytes of a tensor.
    """

    def __init__(
        self, hooks: Callable[[Pack, Pack], AbstractContextManager[Any]], pack: Pack, unpack: Pack, size: Pack
    ) -> None:
        self._hooks, self._pack, self._unpack, self._size = hooks, pack, unpack, size
        self._left = 0

    def saving(self) -> AbstractContextManager[Any]:
        return self._hooks(self._pack_and_count, self._unpack)

    def take_bytes(self) -> int:
        left, self._left = self._left, 0
        return left

    def _pack_and_count(self, tensor: Any) -> Any:
        packed = self._pack(tensor)
        if not isinstance(packed, tuple) or packed[1] is not tensor:
            self._left += self._size(tensor)
        return packed


class TensorFiles:
    """One file for each tensor, in a folder that is deleted with this object.

    Args:
        folder: its parent; None for the temporary directory.
        save: writes a tensor to a path, with its strides, so that what is computed from it has the same bits.
        load: reads such a file.
        suffix: of the files' names.
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
    """A file that is deleted with the graph."""

    path: Path
