"""Post-training quantization: quantized models and the rules of their dense layers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from fixtures.arrays import Array
from fixtures.model import Model
from frameworks.contract.capabilities import Capability
from frameworks.contract.quantization import Quantized, QuantRule
from frameworks.contract.rules import offered


@dataclass(frozen=True)
class LinearRule:
    """The computation of a quantized dense layer, inputs · weight + bias, as documented by the framework.

    Inputs and weight are quantized by their rules; the product is exact, or a float32 product of dequantized values;
    the bias is added in float32.

    Attributes:
        weight: the rule of the weight (inputs, outputs).
        inputs: the rule of what comes in, a matrix (rows, inputs); None where it stays float32.
        outputs: the rule of what comes out, a matrix (rows, outputs); None where it is float32.
        ranges: of inputs and outputs: those of the present call, or those that calibration saw.
        heads: whether the model's last layer, its heads, is quantized too.
        operands: the format that the weight, and inputs that have codes, are cast to before ranges are taken.
        outliers: a column of the inputs in which a magnitude, after that cast, reaches it has no codes in any row of
            the call: unquantized, it multiplies the dequantized weight.
        without: what ranges of inputs leave out: whole columns that have no codes, or the values alone that reach it.
        smallest: weights of fewer entries stay as they are, and so do their layers.
    """

    weight: QuantRule
    inputs: QuantRule | None = None
    outputs: QuantRule | None = None
    ranges: Literal["call", "calibration"] = "call"
    heads: bool = True
    operands: Literal["float32", "float16"] = "float32"
    outliers: float = math.inf
    without: Literal["columns", "values"] = "columns"
    smallest: int = 0


@dataclass(frozen=True)
class CodeRange:
    """Scale and zero point by which the inputs or the outputs of a layer are quantized: float64 and an integer."""

    scale: float
    zero_point: int


@dataclass(frozen=True)
class Calibrated:
    """The calibrated ranges of a dense layer; `outputs` is None if the layer's results are float32."""

    inputs: CodeRange
    outputs: CodeRange | None


class QuantizedModel(Protocol):
    """A model whose dense layers are quantized. Dense layers have the names of their weights, such as "1.weight"."""

    def predict(self, inputs: Array) -> dict[str, Array]:
        """The output of each head for samples (n, ...), float32, as in evaluation."""

    def layer(self, name: str, inputs: Array) -> Array:
        """The output of a single dense layer for a float32 matrix (rows, inputs): float32, (rows, outputs)."""

    def weights(self) -> Mapping[str, Quantized | None]:
        """The stored weight (inputs, outputs) of every dense layer; None if it is not quantized."""

    def unquantized(self) -> Mapping[str, Array]:
        """Every other parameter by canonical name, in its true format."""

    def calibrated(self) -> Mapping[str, Calibrated]:
        """The calibrated ranges of each quantized dense layer; empty if ranges are computed in each call."""

    def stored_bytes(self) -> int:
        """Bytes of all arrays that the model keeps: codes, scales, zero points and the other parameters."""

    def save(self, path: Path) -> None:
        """Writes the quantized model to the folder `path`, by the framework's own means."""

    def restore(self, path: Path) -> None:
        """Replaces this model by the saved one.

        Raises:
            Exception: the framework's own, if the files are not such a model; this model is then unchanged.
        """


@offered(Capability.DYNAMIC_INT8, several=True)
class PostTraining(Protocol):
    """A framework's post-training quantization. Techniques have the names of `quantization.` capabilities."""

    def rules(self) -> Mapping[str, LinearRule]:
        """The techniques that are offered, such as "dynamic-int8"."""

    def quantized(
        self,
        technique: str,
        model: Model,
        weights: Mapping[str, Array],
        calibration: Sequence[Array] = (),
        skip: Sequence[str] = (),
    ) -> QuantizedModel:
        """The model with these weights, quantized.

        Models have dense layers, activations, layer norms and flattening.

        Args:
            calibration: batches of samples that ranges are taken from, where the technique wants them.
            skip: dense layers, by the names of their weights, that stay as they are.
        Raises:
            Exception: the framework's own, where ranges are wanted and `calibration` is empty.
            ValueError: the model has no dense layer of a name in `skip`.
        """
