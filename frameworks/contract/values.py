"""Values exchanged between the suite and a framework: NumPy arrays and frozen data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

from fixtures.arrays import Array
from frameworks.contract.capabilities import Capability

Gradients = Mapping[str, Array | None]
"""Gradient by canonical parameter name; a parameter that is missing, or whose value is None, has no gradient."""

FunctionFormat = Literal["input", "float32"]
"""Computing format of a user's operation under O1: the format of its input, or float32."""


@dataclass(frozen=True)
class Update:
    """The result of `Trainer.update`, `apply` or `apply_gradients`.

    Attributes:
        loss: unscaled loss of the window, normalised by its items; NaN after `apply_gradients`.
        micro_losses: unscaled mean loss of each micro-batch; without items NaN, or the framework's value.
        scale_before, scale_after: the loss scale, 1.0 without one.
        good_steps: the growth counter after the update, None if the framework has no readable one.
        skipped: True if the framework reports, or its public state shows, that no update was applied.
        gradient_norm: global 2-norm of the unscaled gradients before clipping, None if it was not computed.
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
        outputs: output of every layer, without heads that have no targets in the batch.
        gradients: unscaled gradient of the loss with respect to each of these outputs. If it was divided by a scale
            other than 1, it is float32 or wider, so that nothing underflows.
        parameters: gradient of every parameter, unscaled and unclipped, as `Trainer.gradients` gives it.
    """

    outputs: dict[str, Array]
    gradients: dict[str, Array]
    parameters: dict[str, Array]


@dataclass(frozen=True)
class OpResult:
    """Result of an operation, and the name of its format ("float16", "int64", ...)."""

    value: Array
    dtype: str


@dataclass(frozen=True)
class FormatRequest:
    """The effect of a request for a low precision, by a library's own documented call.

    Attributes:
        ran: format of a matrix product inside the model.
        reported: format that the library's own property names afterwards.
        warned: True if the library warned, by a warning or in its log.
    """

    ran: str
    reported: str
    warned: bool


@dataclass(frozen=True)
class LoadedRun:
    """The result of mixed-precision training from a checkpoint that the library's loader read with its defaults.

    Attributes:
        loaded: format of the loaded weights.
        moved: number of compared weights that training changed.
        count: number of compared weights.
        warned: True if the library warned about formats.
    """

    loaded: str
    moved: int
    count: int
    warned: bool


RowOrder = Literal["in-order", "shuffled", "drawn"]
"""Order of a data set's rows: in order, shuffled in each epoch, or shuffled with a random number drawn in each row."""


LoadOrder = Literal["optimizer-first", "schedule-made-last", "schedule-made-there", "scaler-used"]
"""Order in which a resumed run's parts are made and loaded.

"optimizer-first": scaler, schedule and optimizer are loaded before the model. "schedule-made-last": the schedule is
made and loaded after the other parts were loaded. "schedule-made-there": the schedule is made after them, at the next
update, and not loaded. "scaler-used": the scaler has scaled a loss before it is loaded.
"""


@dataclass(frozen=True)
class DataRun:
    """The data of a run from its checkpoint on, and its final weights.

    Attributes:
        rows: numbers of the rows, in the order in which the model got them.
        weights: weights at the end of training, which drops out features at random.
    """

    rows: tuple[int, ...]
    weights: Array


RecomputeCase = Literal[
    "positional",
    "tuple",
    "list",
    "dict",
    "keyword",
    "no-grad-input",
    "weights-changed",
    "raises",
    "plain",
    "draws-python",
    "draws-numpy",
]


@dataclass(frozen=True)
class RecomputeResult:
    """Value of the probe function, and its gradients; None for a gradient that the framework did not return."""

    value: float
    x: Array | None
    w: Array | None


@dataclass(frozen=True)
class FunctionResult:
    """The result of a user's operation with three inputs.

    Attributes:
        asked: the framework's answer in each backward run, which inputs need a gradient; None if it cannot be asked.
        gradients: gradient of each input, None for an input without one.
    """

    asked: tuple[tuple[bool, ...], ...] | None
    gradients: tuple[Array | None, ...]


Part = Literal["operations", "layers", "optimizers", "functions"]
Values = Mapping[str, Array | None]
"""Outputs and gradients of a part's examples, or an optimizer's change of each weight; None for a missing
gradient."""


SHIPPED: Mapping[Part, Capability] = {
    "operations": Capability.SHIPPED_OPERATIONS,
    "layers": Capability.SHIPPED_LAYERS,
    "optimizers": Capability.SHIPPED_OPTIMIZERS,
    "functions": Capability.CONTROL_FLOW,
}


class Shipped(Protocol):
    """Operations, layers, optimizers or functions with examples, and the results of the examples by technique."""

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
        """The value of an operation of arrays at these points, and its gradients for an output gradient of ones.

        Args:
            points: an array for each argument, shape (n,), float32 or float64.

        Returns:
            The value and a gradient for each argument, in the formats that the framework gives.

        Raises:
            Exception: the framework's own, or that the operation does not take such arrays.
        """
