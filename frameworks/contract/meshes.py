"""A small block whose layers a mesh of ranks divides or a schedule pipelines, as the framework's own calls do it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Literal, Protocol

from fixtures.arrays import Array
from frameworks.contract.capabilities import Capability
from frameworks.contract.quantization import register_rule

BlockWeights = Mapping[str, Array]
"""The block's parameters, float32: norm.weight (width,), up.weight (width, hidden), up.bias (hidden,),
down.weight (hidden, width) and down.bias (width,)."""

BlockSamples = tuple[Array, Array]
"""Inputs and targets, both (rows, positions, width), float32."""

MeshLayout = Literal["tensor", "sequence", "two-meshes"]
"""How a mesh divides the block. Always: `up` by its outputs and `down` by its inputs.

"sequence": `norm` also divides the positions. "two-meshes": `norm` lies on another mesh of the same ranks.
"""

DIVIDED: Mapping[str, int] = MappingProxyType({"up.weight": 1, "up.bias": 0, "down.weight": 0})
"""The axes that the ranks of `up` and `down` divide in every layout, by parameter."""


@dataclass(frozen=True)
class MeshCase:
    """An update over a mesh.

    Attributes:
        clip: largest norm of the whole gradient, None for no clipping.
        folder: empty folder into which the block is saved, and loaded into a new one; None for no save.
    """

    layout: MeshLayout
    weights: BlockWeights
    samples: BlockSamples
    clip: float | None = None
    folder: Path | None = None


@dataclass(frozen=True)
class MeshUpdate:
    """A rank's view of an update.

    Attributes:
        weights: the gathered weights; of replicated parameters the rank's own copy.
        norm: the norm that clipping used, None if the framework reports none.
        refusal: the framework's refusal to clip, after which nothing is updated; "" for none.
        placements: the divided axes as the framework reports them after "build", "update" and, if the block was saved,
            "reload".
    """

    weights: BlockWeights
    norm: float | None = None
    refusal: str = ""
    placements: Mapping[str, Mapping[str, int]] = field(default_factory=dict)


@register_rule(Capability.RANKS_TENSOR)
class Meshes(Protocol):
    """The block on a mesh of ranks: relu(norm(inputs)·up + bias)·down + bias.

    `norm` divides by the root mean square, without epsilon. The loss is half the sum of squared errors, divided by the
    number of rows.
    """

    def update(self, case: MeshCase) -> tuple[MeshUpdate, ...]:
        """One update by plain gradient descent at rate 1, as each rank sees it.

        Raises:
            Unsupported: RANKS_SEQUENCE, for the layout "sequence".
        """

    def reports_unknown_name(self, weights: BlockWeights) -> bool:
        """Whether the framework raises or warns if a layout's pattern names no parameter."""


@dataclass(frozen=True)
class PipelineCase:
    """Steps of a schedule without an update between them.

    Attributes:
        schedule: all forward passes before all backward passes, or one of each in turn.
        micro_batches: number of equal parts of the rows of each step.
        loss: half of a micro-batch's squared errors, as the mean over its rows or as the sum.
        scaled: False for the option by which the schedule adds up gradients without a division.
    """

    schedule: Literal["gpipe", "1f1b"]
    weights: BlockWeights
    steps: Sequence[BlockSamples]
    micro_batches: int
    loss: Literal["mean", "sum"] = "mean"
    scaled: bool = True


@register_rule(Capability.RANKS_PIPELINE)
class Pipelines(Protocol):
    """The block as a pipeline of two stages: `norm` and `up`, and `down`."""

    def gradients(self, case: PipelineCase) -> BlockWeights:
        """The gradients after all steps."""
