"""Values exchanged between the suite and a framework: NumPy arrays and frozen data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

from fixtures.arrays import Array
from frameworks.contract.capabilities import Capability

Gradients = Mapping[str, Array | None]
"""Gradient by canonical parameter name; a name that is missing or None has no gradient."""

FunctionFormat = Literal["input", "float32"]
"""Format in which an operation of the user's computes under O1: its input's, or float32."""


@dataclass(frozen=True)
class Update:
    """The result of `Trainer.update`, `apply` or `apply_gradients`.

    Attributes:
        loss: unscaled loss of the window, normalised by its items; NaN after `apply_gradients`.
        micro_losses: unscaled mean loss of each micro-batch; NaN, or what the framework says, of one without items.
        scale_before, scale_after: the loss scale, 1.0 where there is none.
        good_steps: the growth counter after the update, None where the framework has none to read.
        skipped: the framework's own word, or what its public state shows: nothing was applied.
        gradient_norm: global 2-norm of the unscaled gradients before clipping, None where it was not computed.
        learning_rate: the rate that the update used, or would have used.
    """

    loss: float
    micro_losses: tuple[float, ...]
    scale_before: float
    scale_after: float
    good_steps: int | None
    skipped: bool
    gradient_norm: float | None
    learning_rate: float


@dataclass(frozen=True)
class LayerTrace:
    """Results of one training forward and backward pass, layer by layer, in the order of the forward pass.

    Arrays are canonical (batch first, channels last) and in their true formats. A layer's key is its path, as
    `Model.output_shapes` lists them: inner layers come before the residual that holds them, heads last.

    Attributes:
        outputs: output of every layer; a head that the batch has no targets for is left out.
        gradients: gradient of the loss with respect to each of these outputs, unscaled; where a scale other than 1 is
            divided out, in float32 or wider, so that nothing underflows.
        parameters: gradient of every parameter, unscaled and unclipped, as `Trainer.gradients` gives it.
    """

    outputs: dict[str, Array]
    gradients: dict[str, Array]
    parameters: dict[str, Array]


@dataclass(frozen=True)
class OpResult:
    """Value of an operation and the name of the format that it came in ("float16", "int64", ...)."""

    value: Array
    dtype: str


@dataclass(frozen=True)
class FormatRequest:
    """The effect of a request for a low precision, by a library's own documented call.

    Attributes:
        ran: the format that a matrix product inside the model had.
        reported: the format that the library's own property names afterwards.
        warned: whether it warned, by a warning or in its log.
    """

    ran: str
    reported: str
    warned: bool


@dataclass(frozen=True)
class LoadedRun:
    """What mixed-precision training made of a checkpoint that the library's loader gave by its defaults.

    Attributes:
        loaded: the format of the weights that were loaded.
        moved: how many of the weights that count are others afterwards.
        count: how many these weights are.
        warned: whether the library warned about formats.
    """

    loaded: str
    moved: int
    count: int
    warned: bool


RowOrder = Literal["in-order", "shuffled", "drawn"]
"""Order of a data set's rows: as they are, shuffled for each epoch, or shuffled with a random number in each row."""


LoadOrder = Literal["optimizer-first", "schedule-made-last", "schedule-made-there", "scaler-used"]
"""Order in which a resumed run's parts are made and loaded.

"optimizer-first": scaler, schedule and optimizer are loaded before the model. "schedule-made-last": the schedule is
made and loaded after the other parts were loaded. "schedule-made-there": it is made after them, for the update that
comes next, and not loaded. "scaler-used": the scaler has scaled a loss before it is loaded.
"""


@dataclass(frozen=True)
class DataRun:
    """What a run was given from its checkpoint on, and what came of it.

    Attributes:
        rows: numbers of the rows, in the order in which the model got them.
        weights: at the end of training, which drops out features at random.
    """

    rows: tuple[int, ...]
    weights: Array


RecomputeCase = Literal[
    "positional", "tuple", "list", "dict", "keyword", "no-grad-input", "weights-changed", "raises", "plain"
]


@dataclass(frozen=True)
class RecomputeResult:
    """Value of the probe function and its gradients; a gradient that the framework did not give is None."""

    value: float
    x: Array | None
    w: Array | None


@dataclass(frozen=True)
class FunctionResult:
    """What came of a use of an operation of the user's with three inputs.

    Attributes:
        asked: which inputs need a gradient, as each run of the backward pass was answered; None where it cannot ask.
        gradients: of each input, None of one that got none.
    """

    asked: tuple[tuple[bool, ...], ...] | None
    gradients: tuple[Array | None, ...]


Part = Literal["operations", "layers", "optimizers", "functions"]
Values = Mapping[str, Array | None]
"""Outputs and gradients of a part's examples, or by how much an optimizer moved each weight; None where there is no
gradient."""


SHIPPED: Mapping[Part, Capability] = {
    "operations": Capability.SHIPPED_OPERATIONS,
    "layers": Capability.SHIPPED_LAYERS,
    "optimizers": Capability.SHIPPED_OPTIMIZERS,
    "functions": Capability.CONTROL_FLOW,
}


class Shipped(Protocol):
    """Operations, layers, optimizers or functions that have examples, and what a technique makes of them."""

    def names(self) -> tuple[str, ...]:
        """The framework's own names, and the suite's for functions."""

    def techniques(self) -> tuple[str, ...]:
        """The techniques that can be applied to each of them, by the suite's names."""

    def values(self, name: str, technique: str = "") -> Values:
        """The outputs and gradients of the part's examples, by default without a technique.

        The random state is the same at the beginning of each example. A technique may give fewer values, such as
        outputs without gradients.

        Raises:
            Exception: what the framework raises, unchanged.
        """

    def at(self, name: str, *points: Array) -> tuple[Array, ...]:
        """What an operation of arrays makes of points, and its gradients for an incoming one of ones.

        Args:
            points: an array for each argument, shape (n,), float32 or float64.

        Returns:
            The value and a gradient for each argument, in the formats that the framework gives.

        Raises:
            Exception: what the framework raises, or that the operation takes something else.
        """
