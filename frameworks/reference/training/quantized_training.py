"""The part of a training run that QAT and float8 layers need: their observed state, and conversion."""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fixtures.arrays import Array
from fixtures.recipe import Qat
from frameworks.contract import (
    AmaxHistories,
    AmaxHistory,
    Calibrated,
    CalibratedRanges,
    Capability,
    Operand,
    Unsupported,
)
from frameworks.reference.quantization.float8 import Float8Layers
from frameworks.reference.quantization.post_training import QatLayers, ReferenceQuantizedModel
from frameworks.reference.training.forward import Forward


@dataclass
class OpenWindow:
    """State of an open window: accumulated gradients, loss sums with their items, and overflow decisions.

    Attributes:
        amax: in float8 training, the amax of each operand in this window.
    """

    gradients: dict[str, Array] = field(default_factory=dict)
    amax: dict[str, float] = field(default_factory=dict)
    losses: list[tuple[float, int]] = field(default_factory=list)
    items: int = 0
    micro_batches: int = 0
    dropped: int = 0
    scale: float = 1.0
    unscaled: bool = False
    scaled_overflow: frozenset[int] = frozenset()
    latched: frozenset[int] | None = None


class QuantizedForward(Forward):
    """A forward pass with the state of quantized layers: QAT ranges and amax histories.

    Attributes:
        steps: number of applied updates.
    """

    quantized_model_class: type[ReferenceQuantizedModel] = ReferenceQuantizedModel
    steps: int
    values: MutableMapping[str, Array]
    window: OpenWindow

    def observes(self) -> bool:
        qat = self.recipe.quantization
        moves = not isinstance(qat, Qat) or qat.freeze is None or self.steps < qat.freeze
        return super().observes() and moves

    def views(self) -> Mapping[type, Callable[[], Any]]:
        """Functions that read the state of a technique, by the class that `view` is asked for."""
        return {CalibratedRanges: self.observe_ranges, AmaxHistories: self.amax_histories}

    def observe_ranges(self) -> dict[str, Calibrated]:
        """The QAT ranges of the dense layers that have run in a training pass."""
        return self.qat_layers().observe_ranges(self.statistics)

    def convert(self) -> ReferenceQuantizedModel:
        """The model converted to integer codes with the present ranges."""
        layers = self.qat_layers()
        weights = {name: value.astype(np.float32) for name, value in self.values.items()}
        return self.quantized_model_class(layers.rule.linear, self.model, weights, known=self.observe_ranges())

    def qat_layers(self) -> QatLayers:
        """The QAT layers.

        Raises:
            Unsupported: the recipe does not use QAT.
        """
        if self.qat is None:
            raise Unsupported(Capability.QAT, "the recipe has no QAT")
        return self.qat

    def take_magnitudes(self, magnitudes: Mapping[str, float]) -> None:
        """Merges the amax values of a micro-batch into those of its window."""
        if self.float8 is not None:
            known = self.window.amax
            known |= {name: self.float8.larger(known.get(name, 0.0), most) for name, most in magnitudes.items()}

    def end_of_window(self, skipped: bool) -> None:
        """Updates the amax histories at the end of a window; a skipped update may leave them unchanged."""
        if self.float8 is not None and (not skipped or self.float8.rule.skipped == "moves"):
            self.float8.move(self.statistics, self.window.amax)

    def amax_histories(self) -> dict[str, dict[Operand, AmaxHistory]]:
        """The delayed-scaling state of each layer's operands."""
        return self.float8_layers().amax_histories(self.statistics)

    def float8_layers(self) -> Float8Layers:
        """The float8 layers.

        Raises:
            Unsupported: the recipe does not use float8 training.
        """
        if self.float8 is None:
            raise Unsupported(Capability.FLOAT8_TRAINING, "the recipe has no float8 training")
        return self.float8
