"""Building and running static programs whose variables live in one scope."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import paddle
from paddle.utils import unique_name

from fixtures.arrays import Array
from frameworks.contract import OpResult
from frameworks.paddle.arrays import format_name


@dataclass(frozen=True)
class Built:
    """A program, what to fetch from it, and the stored names of its parameters by canonical name."""

    program: Any
    fetches: tuple[Any, ...]
    parameters: dict[str, str]


class Store:
    """A scope with an executor: the variables that several programs share by their generated names.

    Every program is built under fresh name generation, so that the same parameter, slot or scale has the same name in
    all of them. A program's startup part runs in a scope of its own, and only variables that are new are taken over.
    """

    def __init__(self) -> None:
        self.scope = paddle.static.Scope()
        self.executor = paddle.static.Executor(_place())
        self.initial: dict[str, Array] = {}

    def build(self, make: Callable[[Any], tuple[tuple[Any, ...], dict[str, str]]]) -> Built:
        """Builds a program with `make(startup)`, which returns what to fetch and the stored names of its parameters."""
        main, startup = paddle.static.Program(), paddle.static.Program()
        with unique_name.guard(), paddle.static.program_guard(main, startup):
            fetches, parameters = make(startup)
        fresh = paddle.static.Scope()
        with paddle.static.scope_guard(fresh):
            self.executor.run(startup)
        for name in fresh.local_var_names():
            tensor = fresh.find_var(name).get_tensor()
            if name not in self.initial and tensor._is_initialized():
                self.initial[name] = np.array(tensor)
                self.scope.var(name).get_tensor().set(self.initial[name], _place())
        return Built(main, fetches, parameters)

    def run(self, built: Built, feed: Mapping[str, Array]) -> list[Array]:
        """One run of the program; the fetched arrays."""
        with paddle.static.scope_guard(self.scope):
            return list(self.executor.run(built.program, feed=dict(feed), fetch_list=list(built.fetches)))

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all stored variables."""
        return tuple(self.initial)

    def read(self, name: str) -> Array:
        """A copy of a stored variable."""
        return np.array(self.scope.find_var(name).get_tensor())

    def write(self, name: str, value: Array) -> None:
        """Sets a stored variable, in place."""
        self.scope.find_var(name).get_tensor().set(np.asarray(value, order="C"), _place())

    def snapshot(self) -> dict[str, Array]:
        """Copies of all stored variables."""
        return {name: self.read(name) for name in self.names}

    def check(self, variables: Mapping[str, Array], source: str) -> None:
        """Raises ValueError, naming `source`, unless every stored parameter is there in its shape and format."""
        for name in self.names:
            here, there = self.read(name), variables.get(name)
            slot = "_pow_acc_" in name or "moment" in name or "velocity" in name
            if there is None and slot:
                continue
            if there is None or there.shape != here.shape or there.dtype != here.dtype:
                raise ValueError(f"{source}: it has no {name} of shape {here.shape} in {here.dtype}")

    def load(self, variables: Mapping[str, Array]) -> None:
        """Sets every variable to what `snapshot` returned, and to its start where it was made later."""
        for name, value in (self.initial | dict(variables)).items():
            self.initial.setdefault(name, value)
            self.scope.var(name).get_tensor().set(np.asarray(value, order="C"), _place())


def _place() -> Any:
    return paddle.CUDAPlace(0) if paddle.device.get_device().startswith("gpu") else paddle.CPUPlace()


def run_operation(function: Callable[..., Any], arrays: Sequence[Array]) -> OpResult:
    """Builds a program of one operation inside the open precision scope and runs it.

    The value is fetched as float32 when it comes in a low-precision format, and given back in that format.
    """
    import ml_dtypes

    main, startup = paddle.static.Program(), paddle.static.Program()
    with unique_name.guard(), paddle.static.program_guard(main, startup):
        inputs = [paddle.static.data(f"x{i}", list(a.shape), str(a.dtype)) for i, a in enumerate(arrays)]
        for value in inputs:
            value.stop_gradient = False
        result = function(*inputs)
        name = format_name(result.dtype)
        shown = result.astype("float32") if name in ("bfloat16", "float16") else result
    executor = paddle.static.Executor(_place())
    with paddle.static.scope_guard(paddle.static.Scope()):
        executor.run(startup)
        (value,) = executor.run(main, feed={f"x{i}": _fed(a) for i, a in enumerate(arrays)}, fetch_list=[shown])
    wanted = np.dtype(ml_dtypes.bfloat16) if name == "bfloat16" else np.dtype(name)
    return OpResult(np.asarray(value).astype(wanted), name)


def _fed(array: Array) -> Array:
    """The array as an executor takes it: bfloat16 as its bits in uint16."""
    return array.view(np.uint16) if array.dtype.name == "bfloat16" else array
