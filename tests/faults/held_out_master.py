"""Held-out faults of master: their authors knew the specification and had not seen the suites."""

from __future__ import annotations

from typing import Any

import autograd.numpy as anp
import numpy as np
from autograd.extend import defvjp, primitive

from fixtures.arrays import FORMATS, Array
from frameworks.reference.arithmetic import Operations
from frameworks.reference.decisions import Arrays
from frameworks.reference.products import _tiles
from frameworks.reference.tensor import Tensor
from frameworks.reference.trainer import ReferenceTrainer
from tests.faults import fault


@fault(
    "https://github.com/atomistic-machine-learning/schnetpack/pull/785",
    component="optimizer",
    clauses=("master.masters-survive-load",),
)
class CheckpointOfSwappedWeights(ReferenceTrainer):
    """After an evaluation with the average the weights are swapped back only when training goes on: a checkpoint that
    is written in between holds the average in their place."""

    _swapped = False

    def predict_averaged(self, inputs: Array) -> Arrays:
        outputs = super().predict_averaged(inputs)
        self._swapped = True
        return outputs

    def take_micro_batch(self, gradients: Arrays) -> None:
        self._swapped = False
        super().take_micro_batch(gradients)

    def save_state(self) -> Arrays:
        arrays = super().save_state()
        for name in self.averages if self._swapped else ():
            arrays[f"value/{name}"] = self.averaged(name).copy()
            arrays[f"master/{name}"] = self.rounding.round(self.averages[name], self.master_formats[name]).copy()
        return arrays


@fault(
    "https://github.com/ROCm/rocm-libraries/pull/11325",
    component="optimizer",
    clauses=("master.moments-keep-precision",),
)
class SubnormalsLostInCast(Operations):
    """A cast to float16 makes zero of every value whose rounded one is subnormal."""

    def cast(self, x: Tensor, target: str) -> Tensor:
        y = super().cast(x, target)
        if target != "float16" or x.format == target:
            return y
        tiny = np.abs(y.plain()) < 2.0 ** FORMATS["float16"].smallest_exponent
        return Tensor(anp.where(tiny, 0.0, y.value), y.format, y.owned)


@fault(
    "https://github.com/pytorch/pytorch/issues/75224", component="checkpoint", clauses=("master.counts-every-update",)
)
class CountCastOnLoad(ReferenceTrainer):
    """A load brings the count of updates into the format of the parameter that it belongs to."""

    def load_state(self, arrays):
        super().load_state(arrays)
        for name, count in self.counts.items():
            self.counts[name] = int(self.rounding.round(np.asarray(float(count)), self.master_formats[name]))


@fault(
    "https://github.com/X-GenGroup/Flow-Factory/pull/186",
    component="optimizer",
    clauses=("master.average-is-evaluated",),
)
class AverageMeetsStaleCasts(ReferenceTrainer):
    """At O1, an evaluation with the average right after one without it uses the casts that the other left behind."""

    seen = -1

    def predict(self, inputs):
        self.seen = self.steps
        return super().predict(inputs)

    def predict_averaged(self, inputs):
        if self.recipe.precision.level == "O1" and self.recipe.average is not None and self.seen == self.steps:
            return super().predict(inputs)
        return super().predict_averaged(inputs)


@fault(
    "https://github.com/pytorch/pytorch/issues/84053", component="optimizer", clauses=("master.average-is-evaluated",)
)
class AverageKeepsFirstBuffers(ReferenceTrainer):
    """Evaluation with the average normalises by the running statistics that the run began with."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.born = dict(self.statistics)

    def predict_averaged(self, inputs):
        current, self.statistics = self.statistics, self.born
        try:
            return super().predict_averaged(inputs)
        finally:
            self.statistics = current


@fault("https://github.com/pytorch/pytorch/pull/75214", component="checkpoint", clauses=("master.counts-every-update",))
class LoadedCountsAreRounded(ReferenceTrainer):
    """A load rounds the counts that Adam's bias correction reads to the format of the model's parameters."""

    def load_state(self, arrays: Arrays) -> None:
        super().load_state(arrays)
        self.counts = {
            name: int(self.rounding.round(np.array(float(count)), self.formats[name]))
            for name, count in self.counts.items()
        }


@fault("", component="average", clauses=("master.average-follows-updates",))
class Float32AverageOfFloat64(ReferenceTrainer):
    """The average of a float64 head is kept in float32."""

    def average_format(self, name: str) -> str:
        return "float32"


@primitive
def _pooled(x: Array, size: int) -> Array:
    return _tiles(x, size).max(axis=-1)


def _to_every_tie(ans: Array, x: Array, size: int) -> Any:
    def pullback(gradient: Array) -> Array:
        spread = np.where(_tiles(x, size) == ans[..., None], gradient[..., None], 0.0)
        count, high, wide, channels = gradient.shape
        cut = spread.reshape(count, high, wide, channels, size, size).transpose(0, 1, 4, 2, 5, 3)
        return cut.reshape(x.shape)

    return pullback


defvjp(_pooled, _to_every_tie, None)


@fault(
    "https://github.com/Theano/Theano/issues/5248", component="optimizer", clauses=("master.moments-keep-precision",)
)
class TiedMaximum(Operations):
    """Max pooling hands the whole gradient of a square to every value that equals its maximum."""

    def max_pool(self, x: Tensor, size: int) -> Tensor:
        self._keep_bytes(int(np.prod(x.shape)) // size**2)
        return self.apply("max_pool", lambda a, _: _pooled(a, size), x)


@fault("", component="optimizer", clauses=("master.average-follows-updates",))
class AverageWaitsForBothOptimizers(ReferenceTrainer):
    """The moving average takes in nothing from an update in which one of two optimizers was skipped for its overflow,
    not even the weights that the other one has moved."""

    _partial = False

    def apply_update(self, gradients: Arrays, rate: float) -> None:
        self._partial = len(gradients) < len(self.window.gradients)
        super().apply_update(gradients, rate)

    def move_average(self) -> None:
        if not self._partial:
            super().move_average()
