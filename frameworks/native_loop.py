"""Native training loops, whose step times are compared with an adapter's step, and their workloads.

The loops are in `frameworks/NAME/native_loop.py`. They and this module import only the fixtures from the suite.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Protocol, cast

from fixtures.arrays import Array
from fixtures.data import digits_batch, token_batch
from fixtures.model import Batch, Model
from fixtures.models import digits_mlp, encoder
from fixtures.recipe import FLOAT16, FLOAT32, Adam, DynamicScaling, Recipe

BLOCKS = 2
RATE = 1e-3

FIXTURES: dict[str, Callable[[], tuple[Model, Batch]]] = {
    "digits-mlp": lambda: (digits_mlp(), digits_batch(32)),
    "encoder": lambda: (encoder(blocks=BLOCKS), token_batch(32)),
}


@dataclass(frozen=True)
class LoopCase:
    """A fixture in float32, or in float16 at level O1 under a dynamic loss scale."""

    fixture: str
    mixed: bool

    @property
    def label(self) -> str:
        """Name of the case, such as "encoder O1-float16"."""
        return f"{self.fixture} {self.recipe.precision.label}"

    @property
    def recipe(self) -> Recipe:
        """The recipe of the native loop and of the adapter."""
        precision = FLOAT16 if self.mixed else FLOAT32
        return Recipe(Adam(RATE), precision, DynamicScaling() if self.mixed else None)


CASES = tuple(LoopCase(fixture, mixed) for fixture in FIXTURES for mixed in (False, True))


class NativeLoop(Protocol):
    """A module of native loops; MODES are the adapter's equivalent modes."""

    MODES: tuple[str, ...]

    def make(
        self, fixture: str, mixed: bool, weights: Mapping[str, Array], batch: Batch, device: str
    ) -> Callable[[], float]:
        """A function that makes one Adam step on the batch and returns the loss; training starts at `weights`."""


def steps(framework: str, mode: str) -> NativeLoop:
    """The native loops of the adapter named `framework`, for one of its modes.

    Raises:
        LookupError: the adapter has no native loops for this mode.
    """
    if not framework.isidentifier() or not Path(__file__).with_name(framework).joinpath("native_loop.py").is_file():
        raise LookupError(f"{framework!r} has no native training loop")
    hand = cast(NativeLoop, import_module(f"frameworks.{framework}.native_loop"))
    if mode not in hand.MODES:
        raise LookupError(f"{framework!r} has no native training loop for mode {mode!r}")
    return hand


def parts(fixture: str) -> dict[str, str]:
    """The path in the fixture of each part of a native model, by the part's dotted name."""
    if fixture == "digits-mlp":
        return {"0": "0", "2": "2", "4": "4", "6": "6.output"}
    result = {"tokens": "0", "positions": "1"}
    for block in range(BLOCKS):
        first, second = 2 + 2 * block, 3 + 2 * block
        result[f"blocks.{block}.norm1"] = f"{first}.body.0"
        for name in ("query", "key", "value", "output"):
            result[f"blocks.{block}.attention.{name}"] = f"{first}.body.1.{name}"
        result[f"blocks.{block}.norm2"] = f"{second}.body.0"
        result[f"blocks.{block}.feed.0"] = f"{second}.body.1"
        result[f"blocks.{block}.feed.2"] = f"{second}.body.3"
    last = 2 + 2 * BLOCKS
    return result | {"norm": f"{last}", "head": f"{last + 1}.output"}


def own(weights: Mapping[str, Array], path: str) -> dict[str, Array]:
    """The weights of the layer at `path` by their last name: "weight" and "bias", or "scale" and "shift"."""
    return {name.rpartition(".")[2]: value for name, value in weights.items() if name.rpartition(".")[0] == path}
