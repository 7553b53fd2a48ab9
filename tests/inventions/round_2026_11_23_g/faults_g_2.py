"""Faults that were seen in real software: buffers, shapes, formats and bookkeeping."""

from __future__ import annotations

import autograd.numpy as anp
import numpy as np

from fixtures.arrays import Array
from fixtures.recipe import SGD
from frameworks.reference.arithmetic import Operations
from frameworks.reference.tensor import Tensor
from frameworks.reference.trainer import ReferenceTrainer
from tests.inventions import fault
from tests.inventions.round_2026_11_23_g.backward import changed


@fault("https://github.com/facebookresearch/HRViT/issues/5", clause="recompute.statistics-once", kind="real")
class StatisticsInTwoHalves(ReferenceTrainer):
    """With recomputation the running statistics move in every run of a segment, by a momentum made for two runs."""

    def update_running_statistics(self, path: str, mean: Array, variance: Array, count: int, momentum: float) -> None:
        if self.recipe.recompute is None:
            return super().update_running_statistics(path, mean, variance, count, momentum)
        replaying, self._replaying = self._replaying, 0
        super().update_running_statistics(path, mean, variance, count, 1.0 - (1.0 - momentum) ** 0.5)
        self._replaying = replaying
        return None


@fault("https://github.com/facebookresearch/metaseq/issues/3", clause="resume.scaler-state", kind="real")
class LastOverflowIsForgotten(ReferenceTrainer):
    """The place of the last overflow is not saved: after a load the growth counter is what the update count implies."""

    def load_state(self, arrays: dict[str, Array]) -> None:
        super().load_state(arrays)
        if self.scaler is not None and self.scaler.dynamic:
            self.scaler = self.scaler.at(self.scaler.scale, self.steps % self.scaler.interval)


@fault("https://github.com/patrick-kidger/equinox/issues/1010", clause="autocast.evaluation-parity", kind="real")
class EvaluationBeforeTraining(ReferenceTrainer):
    """Running statistics that have never moved are divided by a zero weight, so evaluation yields NaN."""

    def running_statistics(self, path: str) -> tuple[Array, Array]:
        mean, variance = super().running_statistics(path)
        if not mean.any() and (variance == 1.0).all():
            return np.full_like(mean, np.nan), np.full_like(variance, np.nan)
        return mean, variance


@fault("https://github.com/renmengye/np-conv2d/pull/2", clause="autocast.float32-parity", kind="real")
class HeightTakenForWidth(Operations):
    """The gradient for a convolution's input confuses height and width, which shows where they are not equal."""

    def convolution(self, x: Tensor, weight: Tensor, bias: Tensor, stride: int, padding: int) -> Tensor:
        count, height, width, channels = x.shape
        if height != width:
            x = changed(x, lambda g: g.reshape(count, width, height, channels).swapaxes(1, 2))
        return super().convolution(x, weight, bias, stride, padding)


@fault("https://github.com/PaddlePaddle/Paddle/pull/78891", clause="composition.pairs", kind="real")
class RateInWeightsFormat(ReferenceTrainer):
    """Gradient descent rounds its learning rate to the low format of the weights, where a small one becomes 0."""

    def apply_update(self, gradients: dict[str, Array], rate: float) -> None:
        precision = self.recipe.precision
        if precision.level == "O3" and isinstance(self.recipe.optimizer, SGD):
            rate = self.rounding.constant(rate, precision.format)
        super().apply_update(gradients, rate)


@fault("https://github.com/ahrefs/ocannl/issues/673", clause="scaling.tolerates-missing-gradients", kind="real")
class StaleGradientsInNorm(ReferenceTrainer):
    """Clipping counts the last gradient of a parameter into the norm when it has none in this update."""

    def clip(self, gradients: dict[str, Array]) -> dict[str, Array]:
        held = self.__dict__.setdefault("held", {})
        held.update(gradients)
        clipped = super().clip(dict(held))
        return {name: clipped[name] for name in gradients}


@fault("https://github.com/verl-project/verl/pull/5349", clause="autocast.loss-is-wide", kind="real")
class PaddedClassesCount(Operations):
    """Above 16 classes the last block of a cross-entropy is filled up with logits of 0, which are counted."""

    def cross_entropy(self, logits: Tensor, labels: Array, mask: Array | None) -> Tensor:
        classes = logits.shape[-1]
        if classes > 16 and classes % 16:
            filling = np.zeros((*logits.shape[:-1], 16 - classes % 16))
            logits = Tensor(anp.concatenate([logits.value, filling], axis=-1), logits.format, logits.owned)
        return super().cross_entropy(logits, labels, mask)


@fault("https://github.com/PaddlePaddle/PaddleX/pull/5208", clause="resume.bit-identical", kind="real")
class TransposedWeightsSavedAsStored(ReferenceTrainer):
    """Weights that lie transposed in memory are saved in the order of their memory under their own shape."""

    def save_state(self) -> dict[str, Array]:
        arrays = super().save_state()
        for group, held in (("master", self.masters), ("value", self.values)):
            for name, value in held.items():
                if not value.flags.c_contiguous:
                    arrays[f"{group}/{name}"] = value.ravel("K").reshape(value.shape)
        return arrays
