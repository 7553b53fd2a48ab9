"""Low-rank adapters (LoRA) of dense layers: their description, and the interface to a framework's implementation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from fixtures.arrays import Array
from fixtures.recipe import Recipe
from frameworks.contract.capabilities import Capability
from frameworks.contract.quantization import register_rule

BaseFormat = Literal["float32", "bfloat16", "float16", "int8", "int4", "nf4", "fp4", "nested"]
"""Storage of a frozen weight; "nested" is nf4 with scales that are quantized too."""


@dataclass(frozen=True)
class LowRank:
    """Adapters of a network: dense layers "0", "1", ..., with a ReLU between two.

    A layer with an adapter gives x·W + bias + factor·(x·A)·B. A is (inputs, rank) and B is (rank, outputs); their names
    are "0.a" and "0.b", those of W (inputs, outputs) and the bias "0.weight" and "0.bias".

    Attributes:
        rank: the rank of A·B.
        alpha: the factor is alpha / rank.
        root: True if the factor is alpha / √rank.
        targets: the layers that have an adapter.
        base: storage of the weights of these layers.
        copied: layers without an adapter that train in full, each as a copy that leaves the original as it is.
    """

    rank: int = 2
    alpha: float = 4.0
    root: bool = False
    targets: tuple[str, ...] = ("0", "1")
    base: BaseFormat = "float32"
    copied: tuple[str, ...] = ()

    @property
    def factor(self) -> float:
        """The factor of A·B."""
        return self.alpha / (self.rank**0.5 if self.root else self.rank)


class AdaptedNetwork(Protocol):
    """A network with adapters, and its optimizer.

    A method that names a capability is called where it is supported. A micro-batch is inputs (rows, inputs) and the
    gradient of the outputs (rows, outputs), both float32: the loss is the sum of outputs · gradient, and a window's
    gradient is the sum over its micro-batches.
    """

    def predict(self, inputs: Array) -> Array:
        """The outputs, in the network's format."""

    def predict_base(self, inputs: Array) -> Array:
        """The outputs with adapters and copies switched off (ADAPTER_COPIES)."""

    def gradients(self, *window: tuple[Array, Array]) -> dict[str, Array]:
        """The gradient of everything that trains and has one, by name."""

    def update(self, *window: tuple[Array, Array]) -> None:
        """One update by the recipe's optimizer."""

    def trainables(self) -> dict[str, Array]:
        """A copy of everything that trains, by name, in its true format."""

    def assign(self, values: Mapping[str, Array]) -> None:
        """Sets some of what trains."""

    def base(self) -> dict[str, Array]:
        """A copy of every array of the frozen base as it is stored, codes and their scales included.

        The names are the implementation's own. Originals of copied layers are part of the base.
        """

    def weight(self, layer: str) -> Array:
        """The frozen weight (inputs, outputs), dequantized by the library (ADAPTER_MERGE, ADAPTER_FLOAT_INPUTS).

        After `merge` it has the adapter.
        """

    def merge(self) -> None:
        """Adds the adapters to the weights (ADAPTER_MERGE)."""

    def unmerge(self) -> None:
        """Takes the adapters out of the weights again (ADAPTER_MERGE)."""

    def switch_on(self) -> None:
        """Adds the adapters to a network that was made without them (LATE_ADAPTERS).

        Raises:
            Exception: the framework's own, if it refuses.
        """

    def save(self, path: Path) -> None:
        """Writes adapters, copied layers and the optimizer's state, or what the library saves instead."""

    def load(self, path: Path) -> None:
        """Loads what `save` wrote, by the library's own call.

        Raises:
            Exception: the framework's own, if what was saved is that of other adapters.
        """


@register_rule(Capability.ADAPTERS)
class LowRankAdapters(Protocol):
    """Makes networks with adapters."""

    def __call__(
        self, weights: Mapping[str, Array], adapters: LowRank, recipe: Recipe, *, late: bool = False
    ) -> AdaptedNetwork:
        """A new network.

        Args:
            weights: weight and bias of each layer, float32.
            recipe: optimizer (SGD or AdamW), accumulation, dynamic scaling, recomputation of all layers but the last,
                clip, average and seed.
            late: True for a network without adapters, all of which trains, until `switch_on`.
        Raises:
            Exception: the framework's own, if no layer has the name of a target.
        """
