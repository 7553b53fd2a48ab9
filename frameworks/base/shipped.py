"""Operations, layers, optimizers and functions that a framework ships, with the inputs of their examples."""

from __future__ import annotations

import inspect
import tomllib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np

from fixtures.arrays import FORMATS, Array
from frameworks.contract import SHIPPED, Attempt, Capability, Part, Values

FACTOR = 2.0**10
"""Factor of the technique "scaled": output gradients are multiplied by it, resulting gradients divided by it."""
UPDATES = 4
"""Number of updates of an optimizer's example."""
HALFWAY = 2
"""Number of updates before a save, a copy or an overflow."""
RATE = 2.0**-4
"""Learning rate of an optimizer's example."""
MATRICES = ((4, 4), (3, 6))
"""Shapes of the parameters of an optimizer that takes matrices alone."""
WITH_VECTORS = ((3, 6), (17,))
"""Shapes of the parameters of other optimizers."""
FROZEN = (5, 2)
"""The shape of a parameter that has no gradient."""
ZERO = "zero-"
"""Prefix of techniques whose gradients are zeros; the format of the parameters follows."""
SIZE = 4
"""Rows and columns of a function's input."""

Options = Mapping[str, Any]
Function = Callable[[Any], Any]


class BaseShipped(ABC):
    """Operations, layers or optimizers with examples; results without a technique are cached."""

    @cached_property
    def _results(self) -> dict[tuple[str, str], Values]:
        return {}

    @abstractmethod
    def names(self) -> tuple[str, ...]:
        """The framework's own names."""

    @abstractmethod
    def techniques(self) -> tuple[str, ...]:
        """The techniques that can be applied to each of them."""

    @abstractmethod
    def compute(self, name: str, technique: str) -> Values:
        """The outputs and gradients of a part's examples with a technique, or "" for none."""

    def at(self, name: str, *points: Array) -> tuple[Array, ...]:
        """The value of an operation of arrays at these points, and its gradients for an output gradient of ones.

        Raises:
            TypeError: the part does not take such arrays.
        """
        raise TypeError(f"{name} is no function of {len(points)} arrays")

    def values(self, name: str, technique: str = "") -> Values:
        if technique not in ("", "in-scope"):
            return self.compute(name, technique)
        if (name, technique) not in self._results:
            self._results[name, technique] = self.compute(name, technique)
        return self._results[name, technique]


def shipped_attempts(parts: Mapping[Part, Callable[[], BaseShipped]]) -> dict[Capability, Attempt]:
    """An attempt for each factory of parts: its first part has a gradient, or moves a weight."""
    return {SHIPPED[part]: partial(_works, make) for part, make in parts.items()}


def _works(make: Callable[[], BaseShipped]) -> bool:
    shipped = make()
    values = shipped.values(shipped.names()[0])
    return any("value" not in key and value is not None and np.any(value) for key, value in values.items())


@dataclass(frozen=True)
class Listed:
    """The parts that an adapter's `shipped.toml` lists.

    Attributes:
        inputs: kind of inputs of each part, by the part's name in the framework.
        arguments: values of constructor parameters without a default, by parameter name.
        own: values of other constructor parameters, by the name of the layer.
    """

    inputs: Mapping[str, str]
    arguments: Mapping[str, Any]
    own: Mapping[str, Mapping[str, Any]]

    def __iter__(self) -> Iterator[str]:
        return iter(self.inputs)

    def build(self, layer: Any, /, **more: Any) -> Any:
        """A layer of this class, with the arguments that it needs."""
        parameters = inspect.signature(layer.__init__).parameters.values()
        needed = [
            parameter.name
            for parameter in parameters
            if parameter.default is parameter.empty and parameter.name in self.arguments
        ]
        return layer(**{name: self.arguments[name] for name in needed}, **self.own.get(layer.__name__, {}), **more)


class ListedInFile(BaseShipped):
    """The parts that an adapter's `shipped.toml` lists and this version of the framework has."""

    file: Path
    """Path of `shipped.toml`."""
    module: Any
    """Module in which the names are looked up."""

    @property
    @abstractmethod
    def listed(self) -> Iterable[str]:
        """The names of the file."""

    def names(self) -> tuple[str, ...]:
        return tuple(name for name in self.listed if self.find(name) is not None)

    def find(self, name: str) -> Any:
        """The operation, layer or optimizer of this name, None if this version has none."""
        try:
            return attrgetter(name)(self.module)
        except AttributeError:
            return None


class ListedParts(ListedInFile):
    """The operations or layers that `shipped.toml` lists."""

    part: Part
    """Kind of the parts: operations or layers."""

    @cached_property
    def listed(self) -> Listed:
        """The listed parts; the file has a string of names for each kind of inputs."""
        table = tomllib.loads(self.file.read_text())
        inputs = {name: kind for kind, names in table[self.part].items() for name in names.split()}
        return Listed(inputs, table.get("arguments", {}), table.get("arguments-of", {}))

    def inputs(self, name: str) -> tuple[Any, ...]:
        """The inputs of a part's example, as `inputs` makes them."""
        return inputs(self.listed.inputs[name])

    def of_arrays(self, name: str, count: int) -> Callable[..., Any]:
        """A part as a function of `count` arrays.

        Raises:
            TypeError: the part takes other inputs.
        """
        if self.listed.inputs[name] != {1: "tensor", 2: "pair"}[count] or "linalg" in name:
            raise TypeError(f"{name} is no function of {count} arrays")
        function: Callable[..., Any] = self.find(name)
        return function


def name_arrays(convert: Callable[[Any], Array], kind: str, tensors: Iterable[Any]) -> dict[str, Array | None]:
    """The tensors, converted to arrays, by "KIND/INDEX"; None for a missing one."""
    return {f"{kind}/{index}": None if tensor is None else convert(tensor) for index, tensor in enumerate(tensors)}


def incoming(shape: tuple[int, ...]) -> Array:
    """An output gradient of this shape: float32 normal random numbers from a fixed seed."""
    return np.random.default_rng(7).standard_normal(shape).astype(np.float32)


@cache
def inputs(kind: str) -> tuple[Any, ...]:
    """The inputs of a kind: float32 arrays between 1/4 and 9/10, ids, masks and plain numbers.

    Channels come second in "signal", "image" and "volume", and last in those of Keras and TensorFlow, "…-last".
    """
    stream = np.random.default_rng(0)

    def draw(*shape: int) -> Array:
        return stream.uniform(0.25, 0.9, shape).astype(np.float32)

    matrix = draw(3, 3)
    positive = matrix @ matrix.T + np.eye(3, dtype=np.float32)
    tensor, image = draw(3, 4), draw(2, 3, 8, 8)
    signal, volume = draw(2, 3, 8), draw(2, 3, 4, 8, 8)
    examples: dict[str, tuple[Any, ...]] = {
        "tensor": (tensor,),
        "pair": (tensor, draw(3, 4)),
        "triple": (tensor, draw(3, 4), draw(3, 4)),
        "matrix": (positive,),
        "matrices": (positive, matrix),
        "product": (draw(2, 4), draw(4, 3)),
        "product-vector": (draw(2, 4), draw(4, 3), draw(3)),
        "product-1": (draw(2, 4), draw(4, 3), 1),
        "batches": (draw(4, 4, 4), draw(4, 4, 4)),
        "vector": (draw(4),),
        "list": ([tensor, draw(3, 4)],),
        "list-1": ([tensor, draw(3, 4)], 1),
        "vectors": ([draw(3), draw(4)],),
        "tensor-1": (tensor, 1),
        "tensor-swapped": (tensor, 0, 1),
        "tensor-axes": (tensor, (1, 0)),
        "tensor-shape": (tensor, (4, 3)),
        "tensor-width": (tensor, (4,)),
        "tensor-scaled": (tensor, draw(4), draw(4)),
        "tensor-vector": (tensor, draw(4)),
        "tensor-padded": (tensor, [1, 0]),
        "tensor-ids": (tensor, np.array([0, 2, 1])),
        "tensor-places": (tensor, np.array([[0, 1], [2, 0]])),
        "masked": (tensor, tensor > 0.5, draw(3, 4)),
        "where": (tensor > 0.5, draw(3, 4), draw(3, 4)),
        "space": (draw(3, 3), draw(3, 3)),
        "ids-table": (np.array([1, 0, 2]), draw(5, 4)),
        "table-ids": (draw(5, 4), np.array([1, 0, 2])),
        "ids": (np.array([[1, 0, 2], [3, 4, 1]]),),
        "image": (image,),
        "signal": (signal,),
        "volume": (volume,),
        "image-2": (image, 2),
        "signal-2": (signal, 2),
        "volume-2": (volume, 2),
        "channels-2": (draw(2, 4, 8, 8), 2),
        "image-kernel": (image, draw(4, 3, 3, 3)),
        "signal-kernel": (signal, draw(4, 3, 3)),
        "volume-kernel": (volume, draw(4, 3, 2, 2, 2)),
        "image-transposed": (image, draw(3, 4, 3, 3)),
        "signal-transposed": (signal, draw(3, 4, 3)),
        "image-places": (image, draw(2, 5, 5, 2)),
        "image-last": (draw(2, 6, 6, 3),),
        "signal-last": (draw(2, 6, 4),),
        "volume-last": (draw(2, 4, 4, 4, 3),),
        "attention": (draw(2, 5, 2, 4), draw(2, 5, 2, 4), draw(2, 5, 2, 4)),
        "sequence": (draw(2, 5, 4),),
        "sequences": (draw(2, 5, 4), draw(2, 5, 4)),
        "sequence-list": ([draw(2, 5, 4), draw(2, 5, 4)],),
    }
    return examples[kind]


def square() -> Array:
    """The input of a function: float32, between 1/4 and 3/2."""
    return np.random.default_rng(11).uniform(0.25, 1.5, (SIZE, SIZE)).astype(np.float32)


def weights(*, matrices_only: bool = False, format_name: str = "float32") -> list[Array]:
    """Weights between 1/2 and 1, in a format."""
    stream = np.random.default_rng(0)
    shapes = MATRICES if matrices_only else WITH_VECTORS
    return [_of_few_bits(stream.uniform(0.5, 1.0, shape)).astype(FORMATS[format_name].dtype) for shape in shapes]


def gradients(like: Sequence[Array], technique: str = "") -> list[list[Array]]:
    """The gradients of each update, exact in every format; zeros for techniques with the prefix `ZERO`."""
    stream = np.random.default_rng(1)
    drawn = [[_of_few_bits(stream.uniform(-1.0, 1.0, array.shape)) for array in like] for _ in range(UPDATES)]
    scale = 0.0 if technique.startswith(ZERO) else 1.0
    return [
        [(scale * gradient).astype(of.dtype) for gradient, of in zip(update, like, strict=True)] for update in drawn
    ]


def infinite(like: Sequence[Array]) -> list[Array]:
    """Gradients that overflowed."""
    return [np.full_like(array, np.inf) for array in like]


def _of_few_bits(values: Array) -> Array:
    return np.round(values * 64.0) / 64.0


class BaseOptimizers(BaseShipped):
    """Optimizers with sets of options; a subclass trains with one of them."""

    @abstractmethod
    def options(self, name: str, technique: str) -> Sequence[Options]:
        """The sets of options to judge with a technique, an empty one first."""

    @abstractmethod
    def get_options_without_decay(self, name: str) -> Options | None:
        """Options that turn off default weight decay, if any; None if the optimizer's rule always decays."""

    @abstractmethod
    def train(self, name: str, options: Options, technique: str, start: Sequence[Array]) -> Sequence[Array]:
        """The weights after all updates from `start`."""

    def matrices_only(self, name: str) -> bool:
        """Returns whether the optimizer takes matrices alone."""
        del name
        return False

    def compute(self, name: str, technique: str) -> Values:
        zero = technique.startswith(ZERO)
        format_name = technique.removeprefix(ZERO) if zero else "float32"
        start = weights(matrices_only=self.matrices_only(name), format_name=format_name)
        moved: dict[str, Array | None] = {}
        sets = self.options(name, technique)
        if zero:
            undecayed = self.get_options_without_decay(name)
            sets = [] if undecayed is None else [undecayed]
        for number, options in enumerate(sets):
            for index, (before, after) in enumerate(
                zip(start, self.train(name, options, technique, start), strict=True)
            ):
                moved[f"moved/{number}/{index}"] = before - after
        return moved


class ListedOptimizers(ListedInFile, BaseOptimizers):
    """The optimizers that `shipped.toml` lists."""

    @cached_property
    def listed(self) -> Mapping[str, Sequence[Options]]:
        """Sets of options by name."""
        table: Mapping[str, Sequence[Options]] = tomllib.loads(self.file.read_text())["optimizers"]
        return table

    def options(self, name: str, technique: str) -> Sequence[Options]:
        del technique
        return self.listed[name]


class BaseFunctions(BaseShipped):
    """Functions of one array, by name."""

    functions: Mapping[str, Function]

    def names(self) -> tuple[str, ...]:
        return tuple(self.functions)
