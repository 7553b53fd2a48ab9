"""Faults of what training by delayed scaling remembers: what moves it, what saves it, what it is not."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fixtures.arrays import Array
from fixtures.recipe import AdamW
from frameworks.reference.core.tensor import Tensor
from frameworks.reference.quantization.delayed_scaling import DelayedScaling
from frameworks.reference.quantization.float8_training import Float8Layers
from frameworks.reference.training.trainer import ReferenceTrainer
from tools.faults import fault

Arrays = dict[str, Array]


@fault("https://github.com/marin-community/marin/issues/7659", "formats.float8-memory-follows")
class LastMicroBatchIsRemembered(ReferenceTrainer):
    """Of a window the last micro-batch's magnitudes alone are remembered."""

    def take_magnitudes(self, magnitudes: Mapping[str, float]) -> None:
        self.window.amax |= magnitudes


@fault("https://github.com/NVIDIA/TransformerEngine/pull/11", "formats.float8-memory-follows")
class EveryMicroBatchMoves(ReferenceTrainer):
    """Each micro-batch of a window is a step of its own."""

    def take_magnitudes(self, magnitudes: Mapping[str, float]) -> None:
        if self.float8 is not None:
            self.float8.move(self.statistics, magnitudes)


@fault("https://github.com/NVIDIA/TransformerEngine/pull/825", "formats.float8-memory-holds-still")
class PredictionsAreRemembered(Float8Layers):
    """What a prediction is made of moves the history on."""

    def dense(  # type: ignore[no-untyped-def]
        self, path, x, weight, bias, memory, magnitudes
    ) -> Tensor:
        noted: dict[str, float] = {}
        result = super().dense(path, x, weight, bias, memory, noted if magnitudes is None else magnitudes)
        self.move(memory, noted)
        return result


@fault("https://github.com/NVIDIA/TransformerEngine/issues/415", "formats.float8-memory-holds-still")
class RunAgainIsRemembered(ReferenceTrainer):
    """A segment that is run again in the backward pass moves its history."""

    def dense(  # type: ignore[no-untyped-def]
        self, path, x, weight, bias, *, training
    ) -> Tensor:
        result = super().dense(path, x, weight, bias, training=training)
        if self.float8 is not None and self._replaying:
            self.float8.move(self.statistics, {f"{path}.input": self.magnitudes[f"{path}.input"]})
        return result


@fault("https://github.com/NVIDIA/TransformerEngine/pull/40", "formats.float8-memory-holds-still")
class EveryPassIsRemembered(ReferenceTrainer):
    """Gradients that are looked at, and no update is made of them, move the history."""

    def gradients(self, window):  # type: ignore[no-untyped-def]
        taken: dict[str, float] = {}
        before = self.take_magnitudes
        self.take_magnitudes = lambda magnitudes: taken.update(magnitudes)  # type: ignore[method-assign]
        try:
            return super().gradients(window)
        finally:
            self.take_magnitudes = before  # type: ignore[method-assign]
            if self.float8 is not None:
                self.float8.move(self.statistics, taken)


@fault("https://github.com/NVIDIA/TransformerEngine/pull/825", "formats.float8-skips")
class SkippedWindowsAreRemembered(ReferenceTrainer):
    """A window whose update is skipped moves the history, though the rule says that it stays."""

    def end_of_window(self, skipped: bool) -> None:
        super().end_of_window(False)


class _Infinite(DelayedScaling):
    def scale_of(self, most: float, before: float, format_name: str) -> float:
        return np.inf if np.isinf(most) else super().scale_of(most, before, format_name)


@fault("https://github.com/NVIDIA/TransformerEngine/pull/786", "formats.float8-skips")
class InfinityBecomesAScale(Float8Layers):
    """An infinite magnitude gives an infinite scale."""

    scaling_class = _Infinite


@fault("https://github.com/keras-team/keras/pull/21193", "formats.float8-skips", "formats.float8-loss-scale")
class MemoryIsUnscaled(ReferenceTrainer):
    """What is remembered of all operands is divided by the loss scale, as gradients are."""

    def end_of_window(self, skipped: bool) -> None:
        scale = self.window.scale
        self.window.amax = {name: most / scale for name, most in self.window.amax.items()}
        super().end_of_window(skipped)


@fault("https://github.com/keras-team/keras/pull/21706", "formats.float8-loss-scale")
class UnscaledGradientsAreRemembered(ReferenceTrainer):
    """The magnitude of gradients that is remembered is that of unscaled ones, and scaled ones are cast by it."""

    def end_of_window(self, skipped: bool) -> None:
        for name in self.window.amax:
            if name.endswith(".gradient"):
                self.window.amax[name] /= self.window.scale
        super().end_of_window(skipped)


@fault("https://github.com/NVIDIA/TransformerEngine/issues/304", "formats.float8-survives-saving")
class OpenWindowIsNotSaved(ReferenceTrainer):
    """A save lacks what was seen of a window that is still open."""

    def save_state(self) -> Arrays:
        return {name: value for name, value in super().save_state().items() if not name.startswith("seen/")}


@fault("https://github.com/NVIDIA/TransformerEngine/pull/112", "formats.float8-survives-saving")
class AnyHistoryIsLoaded(ReferenceTrainer):
    """A save is loaded whatever length its histories have."""

    def _identity(self) -> str:
        return f"{self.model.name} {self.recipe.replace(offload=None, quantization=None)}"


@fault("https://github.com/keras-team/keras/pull/19488", "formats.float8-is-no-parameter")
class MemoryDecays(ReferenceTrainer):
    """Decoupled weight decay shrinks what is remembered, as it shrinks parameters."""

    def apply_update(self, gradients: Arrays, rate: float) -> None:
        super().apply_update(gradients, rate)
        if self.float8 is not None and isinstance(self.recipe.optimizer, AdamW):
            factor = 1.0 - rate * self.recipe.optimizer.weight_decay
            self.statistics |= {name: value * factor for name, value in self.statistics.items()}


@fault("https://github.com/keras-team/keras/pull/19488", "formats.float8-is-no-parameter")
class MemoryCountsInTheNorm(ReferenceTrainer):
    """The norm that gradients are clipped by is taken over what is remembered too."""

    def gradient_norm(self, gradients: Mapping[str, Array]) -> float:
        return super().gradient_norm(dict(gradients) | ({} if self.float8 is None else self.statistics))


@fault("https://github.com/google/praxis/pull/29", "formats.float8-is-no-parameter")
class MagnitudesAreClipped(ReferenceTrainer):
    """What is remembered is multiplied by the factor that clips gradients."""

    def clip_factor(self, coefficient: float, gradients: Arrays) -> float:
        factor = super().clip_factor(coefficient, gradients)
        self.window.amax = {name: most * factor for name, most in self.window.amax.items()}
        return factor


@fault("https://github.com/google/praxis/pull/29", "formats.float8-is-no-parameter")
class MemoryIsAveragedToo(ReferenceTrainer):
    """An average of the weights has an average of what is remembered next to it, and predicts by that."""

    mean: Arrays | None = None

    def end_of_window(self, skipped: bool) -> None:
        super().end_of_window(skipped)
        if self.float8 is not None and self.recipe.average is not None:
            former = self.mean or self.statistics
            decay = self.recipe.average
            self.mean = {name: decay * former[name] + (1 - decay) * value for name, value in self.statistics.items()}

    def predict_averaged(self, inputs: Array) -> Arrays:
        own = self.statistics
        self.statistics = dict(self.mean or own)
        try:
            return super().predict_averaged(inputs)
        finally:
            self.statistics = own
