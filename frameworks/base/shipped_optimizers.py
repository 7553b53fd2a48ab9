"""Base of the optimizers that a framework ships: a few updates by fixed gradients, and how far the weights move."""

from __future__ import annotations

import tomllib
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np

from fixtures.arrays import FORMATS, Array
from frameworks.base.shipped import BaseShipped
from frameworks.contract import Values

UPDATES = 4
HALFWAY = 2
"""Updates before a save, a copy or an overflow."""
RATE = 2.0**-4
MATRICES = ((4, 4), (3, 6))
WITH_VECTORS = ((3, 6), (17,))
FROZEN = (5, 2)
"""The shape of a parameter that has no gradient."""
ZERO = "zero-"
"""Before the format of parameters whose gradients are zeros: a technique's name."""
Options = Mapping[str, Any]


def weights(*, matrices_only: bool = False, format_name: str = "float32") -> list[Array]:
    """Weights between 1/2 and 1, in a format."""
    stream = np.random.default_rng(0)
    shapes = MATRICES if matrices_only else WITH_VECTORS
    return [_of_few_bits(stream.uniform(0.5, 1.0, shape)).astype(FORMATS[format_name].dtype) for shape in shapes]


def gradients(like: Sequence[Array], technique: str = "") -> list[list[Array]]:
    """The gradients of each update, which every format represents; zeros if the technique says so."""
    stream = np.random.default_rng(1)
    drawn = [[_of_few_bits(stream.uniform(-1.0, 1.0, each.shape)) for each in like] for _ in range(UPDATES)]
    scale = 0.0 if technique.startswith(ZERO) else 1.0
    return [[(scale * each).astype(of.dtype) for each, of in zip(update, like, strict=True)] for update in drawn]


def infinite(like: Sequence[Array]) -> list[Array]:
    """Gradients that overflowed."""
    return [np.full_like(each, np.inf) for each in like]


def _of_few_bits(values: Array) -> Array:
    return np.round(values * 64.0) / 64.0


class BaseOptimizers(BaseShipped):
    """Optimizers with sets of options; a subclass trains with one of them."""

    @abstractmethod
    def options(self, name: str, technique: str) -> Sequence[Options]:
        """The sets of options to judge with a technique, an empty one first."""

    @abstractmethod
    def undecayed(self, name: str) -> Options | None:
        """Options without weight decay, where the optimizer has any by default; None if its rule always decays."""

    @abstractmethod
    def trained(self, name: str, options: Options, technique: str, start: Sequence[Array]) -> Sequence[Array]:
        """The weights after all updates from `start`."""

    def matrices_only(self, name: str) -> bool:
        """Whether the optimizer takes matrices alone."""
        del name
        return False

    def computed(self, name: str, technique: str) -> Values:
        zero = technique.startswith(ZERO)
        format_name = technique.removeprefix(ZERO) if zero else "float32"
        start = weights(matrices_only=self.matrices_only(name), format_name=format_name)
        moved: dict[str, Array | None] = {}
        sets = self.options(name, technique)
        if zero:
            undecayed = self.undecayed(name)
            sets = [] if undecayed is None else [undecayed]
        for number, options in enumerate(sets):
            for place, (before, after) in enumerate(
                zip(start, self.trained(name, options, technique, start), strict=True)
            ):
                moved[f"moved/{number}/{place}"] = before - after
        return moved


class ListedOptimizers(BaseOptimizers):
    """Optimizers that an adapter's `shipped.toml` lists, as far as this version of the framework has them."""

    file: Path
    """The file."""
    module: Any
    """In which its names are looked up."""

    @cached_property
    def listed(self) -> Mapping[str, Sequence[Options]]:
        """Sets of options by name."""
        table: Mapping[str, Sequence[Options]] = tomllib.loads(self.file.read_text())["optimizers"]
        return table

    def names(self) -> tuple[str, ...]:
        return tuple(name for name in self.listed if self.named(name) is not None)

    def named(self, name: str) -> Any:
        """What makes the optimizer, None if this version has none."""
        try:
            return attrgetter(name)(self.module)
        except AttributeError:
            return None

    def options(self, name: str, technique: str) -> Sequence[Options]:
        del technique
        return self.listed[name]
