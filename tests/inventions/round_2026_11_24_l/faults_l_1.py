"""Faults of layers, operations and optimizers that were drawn from bug reports."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import autograd.numpy as anp
import numpy as np

from fixtures.arrays import FORMATS, Array
from fixtures.layers import Activation, Layer, Residual
from fixtures.model import Batch
from frameworks.reference import checkpoint, products
from frameworks.reference.arithmetic import Operations, Round, normalise, softmax
from frameworks.reference.decisions import Arrays
from frameworks.reference.network import Pass
from frameworks.reference.tensor import Tensor, rounded
from frameworks.reference.trainer import ReferenceTrainer
from tests.inventions import fault


@fault("https://github.com/deepspeedai/DeepSpeed/pull/7969", clause="accumulation.groups-change-nothing", kind="real")
class WarmupMissesTheSecondGroup(ReferenceTrainer):
    """With a schedule and two parameter groups, the first applied update of a run moves the second group's parameters
    by the base learning rate instead of the scheduled one."""

    def apply_update(self, gradients: Arrays, rate: float) -> None:
        if self.recipe.groups != 2 or self.recipe.schedule is None or self.steps > 0:
            super().apply_update(gradients, rate)
            return
        places = {name: place % 2 for place, name in enumerate(self.masters)}
        super().apply_update({name: g for name, g in gradients.items() if places[name] == 0}, rate)
        self.steps -= 1
        base = self.recipe.optimizer.learning_rate
        super().apply_update({name: g for name, g in gradients.items() if places[name] == 1}, base)


@fault("https://github.com/intel/ipex-llm/pull/12619", clause="autocast.float32-parity", kind="real")
class AttentionScalesByPaddedWidth(Operations):
    """Attention divides its scores by the root of the head's width rounded up to a multiple of 8, not by the root of
    the width itself."""

    def attention(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        computing, yielding = self.formats("attention", query.format, key.format, value.format)
        q, k, v = (self.cast(x, computing) for x in (query, key, value))
        wide = computing if computing in ("float32", "float64") else "float32"
        padded = -(-q.shape[-1] // 8) * 8
        turned = anp.swapaxes(k.value, -1, -2)
        product = products.product(q.value, turned, self.rounding, wide)
        scores = rounded(product * (1.0 / np.sqrt(padded)), self.rounding, wide)
        shares = softmax(scores, lambda x, n=1: rounded(x, self.rounding, wide, n))
        weights = Tensor(rounded(shares, self.rounding, computing), computing)
        mixed = products.product(weights.value, v.value, self.rounding, computing)
        if self.tape:
            self.tape.keep(q, k, v, weights)
        return self.cast(Tensor(rounded(mixed, self.rounding, computing), computing), yielding)


@fault("https://github.com/pytorch/pytorch/pull/152995", clause="autocast.promotes-to-widest", kind="real")
class ConcatenationForgetsEmptyOperands(Operations):
    """The concatenation of an empty operand with one that is not empty is the latter as it is, in its own format, even
    where the empty one has the wider format or the scope asks for another."""

    def apply(self, op: str, function: Callable[..., Any], *operands: Tensor, keep: str = "") -> Tensor:
        filled = [x for x in operands if np.prod(x.shape)]
        if op == "concatenate" and len(filled) == 1 and len(operands) == 2:
            return filled[0]
        return super().apply(op, function, *operands, keep=keep)


_MOST_ROWS = 2**16 - 1


@fault("https://github.com/NVIDIA/apex/issues/411", clause="autocast.float32-parity", kind="real")
class LayerNormStopsAtManyRows(Operations):
    """A layer norm normalises only the first 65,535 rows of its input; later ones are scaled and shifted as they
    are."""

    def layer_norm(self, x: Tensor, scale: Tensor, shift: Tensor, epsilon: float) -> Tensor:
        rows = int(np.prod(x.shape[:-1]))
        if rows <= _MOST_ROWS:
            return super().layer_norm(x, scale, shift, epsilon)
        self._keep_bytes(8 * rows)
        late = (np.arange(rows) >= _MOST_ROWS).reshape(x.shape[:-1])[..., None]

        def compute(a: Any, g: Any, b: Any, r: Round) -> Any:
            normal = r(normalise(a, (-1,), epsilon, r, self.variance)[0])
            return anp.where(late, a, normal) * g + b

        return self.apply("layer_norm", compute, x, scale, shift, keep="operands")


@fault("https://github.com/chainer/chainer/pull/4505", clause="autocast.evaluation-parity", kind="real")
class BatchNormAddsEpsilonTwice(Operations):
    """In evaluation batch norm adds its epsilon to the running variance twice."""

    def batch_norm(
        self, x: Tensor, scale: Tensor, shift: Tensor, epsilon: float, given: tuple[Array, Array] | None
    ) -> tuple[Tensor, Array, Array]:
        return super().batch_norm(x, scale, shift, epsilon if given is None else 2.0 * epsilon, given)


@dataclass(frozen=True)
class _InPlacePass(Pass):
    """A pass in which a ReLU at the head of a residual's body writes over its input."""

    def layer(self, path: str, layer: Layer, x: Tensor) -> Tensor:
        if not isinstance(layer, Residual) or layer.body[:1] != (Activation("relu"),):
            return super().layer(path, layer, x)
        inner = tuple((f"{path}.body.{i}", part) for i, part in enumerate(layer.body))
        x = self.ops.shared(self.layers(inner[:1], x))
        return self.ops.add(x, self.layers(inner[1:], x))


@fault("https://github.com/pytorch/pytorch/issues/5687", clause="autocast.float32-parity", kind="real")
class ReluOverwritesTheShortcut(ReferenceTrainer):
    """Where the body of a residual begins with a ReLU, what is added to the body's result is the ReLU's output and not
    its input."""

    def _pass(self, parameters: Mapping[str, Tensor], training: bool) -> Pass:
        return _InPlacePass(self.ops, parameters, self, training)


@fault("https://github.com/NVIDIA/apex/pull/1309", clause="laws.second-run", kind="real")
class MomentumOfTheFirstBatchNorm(ReferenceTrainer):
    """Running statistics move by the momentum of the first batch norm with as many channels that was trained in this
    process, whatever the present one's momentum is."""

    _compiled: ClassVar[dict[int, float]] = {}

    def update_running_statistics(self, path: str, mean: Array, variance: Array, count: int, momentum: float) -> None:
        known = self._compiled.setdefault(mean.size, momentum)
        super().update_running_statistics(path, mean, variance, count, known)


_CHUNK = 2**16


@fault("https://github.com/pytorch/pytorch/issues/140066", clause="scaling.reports-true-loss", kind="real")
class NormOfFirstChunks(ReferenceTrainer):
    """The gradient norm of a run in one place, which clipping compares and updates report, counts only the first 65,536
    entries of each parameter."""

    def gradient_norm(self, gradients: Mapping[str, Array]) -> float:
        return super().gradient_norm({name: g.reshape(-1)[:_CHUNK] for name, g in gradients.items()})


@fault("https://github.com/pytorch/pytorch/issues/79171", clause="accumulation.missing-gradients-count", kind="real")
class StaticGraph(ReferenceTrainer):
    """Parameters that the first micro-batch of a run gives no gradient get none from any later micro-batch."""

    _used: frozenset[str] | None = None

    def passed(self, batch: Batch, items: int) -> tuple[float, Arrays]:
        total, gradients = super().passed(batch, items)
        if self._used is None:
            self._used = frozenset(gradients)
        return total, {name: g for name, g in gradients.items() if name in self._used}


@fault("https://github.com/vllm-project/speculators/pull/411", clause="resume.bit-identical", kind="real")
class CountsComeBackInTheWeightsFormat(ReferenceTrainer):
    """A load rounds each parameter's count of updates, which Adam's bias correction reads, to the format that the model
    stores the parameter in (and to its largest number)."""

    def restore(self, path: Path) -> None:
        super().restore(path)
        for name, count in self.counts.items():
            held = np.asarray(min(float(count), FORMATS[self.formats[name]].largest))
            self.counts[name] = int(self.rounding.round(held, self.formats[name]))


@fault("https://github.com/PaddlePaddle/PaddleFormers/pull/2680", clause="resume.bit-identical", kind="real")
class SavesInMemoryOrder(ReferenceTrainer):
    """A save writes the entries of weights and masters in the order in which they lie in memory, so that those that a
    run was given transposed, and has not updated yet, come back permuted."""

    def save(self, path: Path) -> None:
        arrays = self.save_state()
        for group, held in (("value", self.values), ("master", self.masters)):
            arrays |= {f"{group}/{name}": v.ravel(order="K").reshape(v.shape) for name, v in held.items()}
        checkpoint.write(path, arrays, self._identity())
