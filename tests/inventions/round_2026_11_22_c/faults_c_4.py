"""Faults in averages, masters and optimizers, and in the precision of operations."""

from __future__ import annotations

from contextlib import contextmanager
from typing import ClassVar

import autograd.numpy as anp
import numpy as np
from autograd.extend import defvjp, primitive

from fixtures.layers import Embedding
from frameworks.reference import scope
from frameworks.reference.arithmetic import UNARY, Operations
from frameworks.reference.framework import ReferenceFramework
from frameworks.reference.products import largest
from frameworks.reference.tensor import Tensor, rounded
from frameworks.reference.trainer import ReferenceTrainer
from tests.inventions import fault


@fault("https://github.com/X-GenGroup/Flow-Factory/pull/186", clause="master.average-is-evaluated", kind="real")
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


@fault("https://github.com/pytorch/pytorch/issues/84053", clause="master.average-is-evaluated", kind="real")
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


@fault("https://github.com/NUS-HPC-AI-Lab/VideoSys/pull/31", clause="master.average-follows-updates", kind="real")
class AverageWaitsForGradients(ReferenceTrainer):
    """The average of a parameter that got no gradient in an applied update does not move towards its weights."""

    def move_average(self):
        former = dict(self.averages)
        super().move_average()
        for name in former.keys() - self.window.gradients.keys():
            self.averages[name] = former[name]


@fault("", clause="master.model-is-cast-of-master", kind="invented")
class TailNotSynced(ReferenceTrainer):
    """Masters are copied to a low model in whole runs of 1024 values; what is over of a larger parameter stays."""

    def sync_masters(self):
        former = dict(self.values)
        super().sync_masters()
        for name, value in former.items() if self.recipe.precision.level == "O2" else ():
            if (over := value.size % 1024) and value.size > 1024:
                flat = self.values[name].reshape(-1).copy()
                flat[-over:] = value.reshape(-1)[-over:]
                self.values[name] = flat.reshape(value.shape)


@fault("https://github.com/clab/dynet/issues/70", clause="accumulation.repeated-rows", kind="real")
class UnusedRowsRest(ReferenceTrainer):
    """Rows of a table that a window does not use keep their moments and weights, as if they had no gradient at all."""

    def apply_update(self, gradients, rate):
        tables = [f"{path}.weight" for path, layer, _ in self.model.shapes() if isinstance(layer, Embedding)]
        former = {n: (self.masters[n], {s: v[n] for s, v in self.slots.items()}) for n in tables if n in gradients}
        super().apply_update(gradients, rate)
        for name, (master, slots) in former.items():
            used = gradients[name].any(axis=-1, keepdims=True)
            self.masters[name] = np.where(used, self.masters[name], master)
            for slot, value in slots.items():
                self.slots[slot][name] = np.where(used, self.slots[slot][name], value)


@fault("https://github.com/EricLBuehler/mistral.rs/pull/1867", clause="autocast.evaluation-parity", kind="real")
class EvaluationGeluByTanh(ReferenceTrainer):
    """Evaluation runs a fused GELU that is the approximation by tanh, training the exact one."""

    def evaluate(self, parameters, inputs):
        exact = UNARY["gelu"]
        UNARY["gelu"] = lambda x: 0.5 * x * (1.0 + anp.tanh(np.sqrt(2.0 / np.pi) * (x + 0.044715 * x * x * x)))
        try:
            return super().evaluate(parameters, inputs)
        finally:
            UNARY["gelu"] = exact


@primitive
def _tied(x, size):
    return largest(x, size)


def _tied_x(ans, x, size):
    def spread(array):
        return np.repeat(np.repeat(array, size, axis=1), size, axis=2)

    return lambda g: np.where(x == spread(ans), spread(g), 0.0)


defvjp(_tied, _tied_x, None)


@fault("https://github.com/tensorflow/tensorflow/issues/4886", clause="autocast.float32-parity", kind="real")
class PoolTiesAllWin(Operations):
    """Every one of several equal largest values in a pooling square gets the whole gradient."""

    def max_pool(self, x, size):
        self._keep_bytes(int(np.prod(x.shape)) // size**2)
        return self.apply("max_pool", lambda a, _: _tied(a, size), x)


@fault("https://github.com/66RING/tiny-flash-attention/issues/12", clause="autocast.float32-parity", kind="real")
class AttentionSeesPadding(Operations):
    """Keys and values are padded with zeros to a power of two, and the softmax takes the padding in."""

    def attention(self, query, key, value):
        length = key.shape[-2]
        missing = (1 << (length - 1).bit_length()) - length

        def padded(x):
            zeros = np.zeros((*x.shape[:-2], missing, x.shape[-1]))
            return Tensor(anp.concatenate([x.value, zeros], axis=-2), x.format, x.owned)

        return super().attention(query, padded(key), padded(value)) if missing else super().attention(query, key, value)


@fault("https://github.com/NVIDIA-NeMo/Automodel/issues/3803", clause="accumulation.equals-full-batch", kind="real")
class ChunksOfTokensAdded(Operations):
    """Cross-entropy of more than 32 tokens is taken in chunks, whose means are added instead of averaged."""

    def cross_entropy(self, logits, labels, mask):
        loss = super().cross_entropy(logits, labels, mask)
        chunks = -(-labels.size // 32) if labels.ndim == 2 else 1
        return loss if chunks < 2 else Tensor(rounded(loss.value * chunks, self.rounding, loss.format), loss.format)


@fault("", clause="autocast.layers-honour-policy", kind="invented")
class OneUnitStaysWide(Operations):
    """A dense layer of one unit is a product with a vector, which autocast does not know: only its result is cast."""

    def linear(self, x, weight, bias):
        if weight.shape[-1] != 1:
            return super().linear(x, weight, bias)
        _, yielding = self.formats("linear", x.format, weight.format)
        with scope.opened(scope.Scope()):
            result = super().linear(x, weight, bias)
        return self.cast(result, yielding)


@fault("", clause="autocast.promotes-to-widest", kind="invented")
class TargetsNarrowed(Operations):
    """Targets of a squared error go through float32, also those of float64 heads."""

    def squared_error(self, outputs, targets):
        narrow = Tensor(self.rounding.round(targets.value, "float32"), targets.format, targets.owned)
        return super().squared_error(outputs, narrow)


@fault("", clause="autocast.settings-restored", kind="invented")
class UserListsStay(ReferenceFramework):
    """What the user once named as wide in a scope stays wide in every later scope of the process."""

    named: ClassVar[set] = set()

    @contextmanager
    def autocast(self, precision, *, enabled=True, wide=(), low=()):
        with super().autocast(precision, enabled=enabled, wide=tuple({*wide, *self.named} - set(low)), low=low):
            self.named.update(wide)
            yield
