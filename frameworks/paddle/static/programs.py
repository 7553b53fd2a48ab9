"""Running static programs whose variables live in one scope."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import paddle
from paddle.utils import unique_name

from fixtures.arrays import Array
from frameworks.call_stacks import short_call_stacks
from frameworks.paddle.core.arrays import format_name
from frameworks.paddle.core.devices import place

MASTER = "_fp32_master_"
"""Suffix of a float32 master weight's name."""


@dataclass(frozen=True)
class BuiltProgram:
    """A program, its fetch list, and the stored names of its parameters by canonical name."""

    program: Any
    fetches: tuple[Any, ...]
    parameters: dict[str, str]


class ProgramState:
    """A scope with an executor: the variables that several programs share by their generated names.

    Every program is built under fresh name generation, so that the same parameter, slot or scale has the same name in
    all of them. A program's startup part runs in a scope of its own, and only variables that are new are taken over.
    """

    def __init__(self) -> None:
        self.scope = paddle.static.Scope()
        self.executor = paddle.static.Executor(place())
        self.initial: dict[str, Array] = {}

    def build(self, make: Callable[[Any], tuple[tuple[Any, ...], dict[str, str]]]) -> BuiltProgram:
        """Builds a program with `make(startup)`, which returns what to fetch and the stored names of its parameters."""
        main, startup = paddle.static.Program(), paddle.static.Program()
        with short_call_stacks(), unique_name.guard(), paddle.static.program_guard(main, startup):
            fetches, parameters = make(startup)
        fresh = paddle.static.Scope()
        with short_call_stacks(), paddle.static.scope_guard(fresh):
            self.executor.run(startup)
        for name in sorted(fresh.local_var_names(), key=len):
            tensor = fresh.find_var(name).get_tensor()
            if name not in self.initial and tensor._is_initialized():
                self._take_over(name, tensor)
        return BuiltProgram(main, fetches, parameters)

    def _take_over(self, name: str, tensor: Any) -> None:
        """Begins a variable at what its startup program gave it, a master at the parameter of the run."""
        owner, master, _ = name.partition(MASTER)
        value = self.read(owner).astype(np.float32) if master else array_of(tensor)
        self.initial[name] = value
        _set(self.scope.var(name).get_tensor(), value)

    def run(self, built: BuiltProgram, feed: Mapping[str, Array]) -> list[Array]:
        """One run of the program; the fetched arrays."""
        with short_call_stacks(), paddle.static.scope_guard(self.scope):
            fetched = self.executor.run(
                built.program, feed=dict(feed), fetch_list=list(built.fetches), return_numpy=False
            )
        return [array_of(tensor) for tensor in fetched]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all stored variables."""
        return tuple(self.initial)

    def read(self, name: str) -> Array:
        """A copy of a stored variable, in its true format."""
        return array_of(self.scope.find_var(name).get_tensor())

    def write(self, name: str, value: Array) -> None:
        """Sets a stored variable, in its format, in place."""
        _set(self.scope.find_var(name).get_tensor(), np.asarray(value).astype(self.initial[name].dtype))

    def snapshot(self) -> dict[str, Array]:
        """Copies of all stored variables."""
        return {name: self.read(name) for name in self.names}

    def save(self, built: BuiltProgram, prefix: Path) -> None:
        """Writes the variables of a program with `paddle.static.save`."""
        with paddle.static.scope_guard(self.scope):
            paddle.static.save(built.program, str(prefix))

    def load(self, built: BuiltProgram, prefix: Path) -> None:
        """Sets the variables of a program with `paddle.static.load`."""
        with paddle.static.scope_guard(self.scope):
            paddle.static.load(built.program, str(prefix), self.executor)

    def load_apart(self, built: BuiltProgram, prefix: Path, later: Collection[str]) -> None:
        """`load` in two steps, the second one for the variables named `later`."""
        state = paddle.static.load_program_state(str(prefix))
        with paddle.static.scope_guard(self.scope):
            for last in (False, True):
                part = {name: value for name, value in state.items() if (name in later) is last}
                paddle.static.set_program_state(built.program, part)

    def take(self, built: BuiltProgram, other: ProgramState) -> None:
        """Sets the variables of a program to those that another scope has now."""
        built.program.set_state_dict(built.program.state_dict("all", other.scope), self.scope)


def array_of(tensor: Any) -> Array:
    """A copy of a variable's value; bfloat16, which Paddle returns as bits in uint16, becomes ml_dtypes'."""
    value = np.array(tensor)
    return value.view(ml_dtypes.bfloat16) if format_name(tensor._dtype()) in ("bfloat16", "bf16") else value


def _set(tensor: Any, value: Array) -> None:
    tensor.set(fed(np.asarray(value, order="C")), place())


def fed(array: Array) -> Array:
    """The array as an executor takes it: bfloat16 as its bits in uint16."""
    return array.view(np.uint16) if array.dtype.name == "bfloat16" else array
