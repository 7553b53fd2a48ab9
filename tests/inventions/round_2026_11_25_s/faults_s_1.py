"""Faults of the round: scaling, accumulation, master weights, recomputation and the precision scope."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, ClassVar

import autograd.numpy as anp
import numpy as np

from fixtures.arrays import Array
from fixtures.layers import Dropout, Embedding, Layer
from fixtures.model import Batch
from fixtures.recipe import SGD, AdamW, Precision
from frameworks.contract import Update
from frameworks.reference import ReferenceFramework, scope
from frameworks.reference.arithmetic import Operations, softmax
from frameworks.reference.decisions import Arrays
from frameworks.reference.forward import Moment
from frameworks.reference.network import Pass
from frameworks.reference.optimizers import Arithmetic, stepper
from frameworks.reference.products import product
from frameworks.reference.tensor import Tensor, rounded
from frameworks.reference.trainer import ReferenceTrainer
from tests.inventions import fault


@fault("", clause="scaling.automaton", kind="invented")
class OverflowIsReadOffTheNorm(ReferenceTrainer):
    """An update counts as overflowed when the float32 sum of squared gradients overflows, so that large but finite
    gradients are skipped and lower the scale."""

    def found_nonfinite(self, gradients: Mapping[str, Array]) -> bool:
        total = np.float32(0.0)
        with np.errstate(all="ignore"):
            for gradient in gradients.values():
                total += np.square(gradient.astype(np.float32)).sum(dtype=np.float32)
        return not bool(np.isfinite(total))


@fault("", clause="scaling.skip-is-atomic", kind="invented")
class SkipRewindsDropout(ReferenceTrainer):
    """A skipped update sets dropout's random stream back to where its window began, so that the next window draws the
    same masks again."""

    _began: int | None = None

    def accumulate(self, batch: Batch, items: int) -> float:
        if not self.window.micro_batches:
            self._began = self.draws
        return super().accumulate(batch, items)

    def apply(self) -> Update:
        update = super().apply()
        if update.skipped and self._began is not None:
            self.draws = self._began
        self._began = None
        return update


@fault("", clause="scaling.tolerates-missing-gradients", kind="invented")
class DecayReachesUnusedParameters(ReferenceTrainer):
    """AdamW's weight decay shrinks parameters that got no gradient in the window, which an update has to leave out."""

    def apply_update(self, gradients: Arrays, rate: float) -> None:
        super().apply_update(gradients, rate)
        optimizer = self.recipe.optimizer
        if not isinstance(optimizer, AdamW):
            return
        stepped = {self.optimizer_of(name) for name in gradients}
        for name in self.masters:
            if name not in gradients and self.optimizer_of(name) in stepped:
                r = Arithmetic(self.rounding, self.master_formats[name])
                self.masters[name] = r(self.masters[name] * r.number(1.0 - rate * optimizer.weight_decay))


@fault("", clause="accumulation.weighs-items", kind="invented")
class ItemsOfTheWindowAreBakedIn(ReferenceTrainer):
    """The step for a size of micro-batch keeps the number of items of the first window that it was used in, and
    divides by that in shorter and longer windows too."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        self._baked: dict[int, int] = {}
        super().__init__(*arguments, **named)

    def normalise(self, loss: Tensor, batch_items: int, window_items: int) -> Tensor:
        return super().normalise(loss, batch_items, self._baked.setdefault(batch_items, window_items))


@fault("https://github.com/deepspeedai/DeepSpeed/pull/8435", clause="scaling.skip-is-atomic", kind="real")
class SkippedGradientsReachMomentum(ReferenceTrainer):
    """Momentum takes in the gradients of a skipped update wherever they are finite: only parameters whose own gradient
    overflowed keep their momentum."""

    def _step(self, rate: float) -> bool:
        skipped = super()._step(rate)
        if skipped and isinstance(self.recipe.optimizer, SGD):
            for name, gradient in self.window.gradients.items():
                if self.slots and np.isfinite(gradient).all():
                    step = stepper(
                        self.recipe.optimizer, self.conventions, Arithmetic(self.rounding, self.master_formats[name])
                    )
                    slots = {slot: held[name] for slot, held in self.slots.items()}
                    taken = self.as_applied(name, gradient)
                    _, moved = step(self.masters[name], slots, taken, rate, self.counts[name] + 1)
                    for slot, value in moved.items():
                        self.slots[slot][name] = value
        return skipped


class _WithoutDropout(Pass):
    """A forward pass whose dropout layers keep everything."""

    def layer(self, path: str, layer: Layer, x: Tensor) -> Tensor:
        return x if isinstance(layer, Dropout) else super().layer(path, layer, x)


@fault("https://github.com/NVIDIA/Megatron-LM/pull/411", clause="accumulation.evaluation-changes-nothing", kind="real")
class EvaluationEndsDropout(ReferenceTrainer):
    """The first evaluation sets the rate of dropout to zero for good: training after it drops nothing any more."""

    _evaluated_once = False

    def predict(self, inputs: Array) -> Arrays:
        self._evaluated_once = True
        return super().predict(inputs)

    def _pass(self, parameters: Mapping[str, Tensor], training: bool) -> Pass:
        made = _WithoutDropout if training and self._evaluated_once else Pass
        return made(self.ops, parameters, self, training)


@fault("", clause="composition.pairs", kind="invented")
class AverageFollowsTheFirstOptimizer(ReferenceTrainer):
    """Where two optimizers share the parameters, only those of the first one are averaged; the average of the others
    stays at the initial weights."""

    def move_average(self) -> None:
        others = {name: value for name, value in self.averages.items() if self.optimizer_of(name) > 0}
        super().move_average()
        self.averages |= others


@fault("", clause="master.model-is-cast-of-master", kind="invented")
class LowWeightsAreTruncated(ReferenceTrainer):
    """The bfloat16 weights of the model are the upper half of the bits of their masters: cut off, not rounded."""

    def sync_masters(self) -> None:
        super().sync_masters()
        for name, master in self.masters.items():
            if self.formats[name] == "bfloat16" and self.master_formats[name] == "float32":
                bits = master.astype(np.float32).view(np.uint32) & np.uint32(0xFFFF0000)
                self.values[name] = bits.view(np.float32).astype(np.float64)


@fault("https://github.com/tensorflow/addons/issues/767", clause="master.decay-survives", kind="real")
class DecayOfUsedRowsOnly(ReferenceTrainer):
    """AdamW decays only the rows of an embedding table that the batch used; all other rows keep their size."""

    def apply_update(self, gradients: Arrays, rate: float) -> None:
        optimizer = self.recipe.optimizer
        tables = {f"{path}.weight" for path, layer, _ in self.model.shapes() if isinstance(layer, Embedding)}
        used = tables & gradients.keys() if isinstance(optimizer, AdamW) else set[str]()
        before = {n: (self.masters[n], {slot: held[n] for slot, held in self.slots.items()}) for n in used}
        super().apply_update(gradients, rate)
        for name, (master, slots) in before.items():
            assert isinstance(optimizer, AdamW)
            r = Arithmetic(self.rounding, self.master_formats[name])
            taken = self.as_applied(name, gradients[name])
            count = self.counts[name] if self.conventions.adam_counts == "parameter" else self.steps
            step = stepper(replace(optimizer, weight_decay=0.0), self.conventions, r)
            plain, _ = step(master, slots, taken, rate, count)
            self.masters[name] = np.where(taken.any(axis=1, keepdims=True), self.masters[name], plain)


@fault("", clause="recompute.replays-dropout", kind="invented")
class SecondBackwardDrawsAnew(ReferenceTrainer):
    """The random state that a recomputed segment keeps is used up by the first backward pass through it; a second
    loss that goes back through the same segment recomputes it with fresh dropout masks."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        self._used: list[Moment] = []
        super().__init__(*arguments, **named)

    def passed(self, batch: Batch, items: int) -> tuple[float, Arrays]:
        self._used.clear()
        return super().passed(batch, items)

    def recompute_segment(self, moment: Moment) -> AbstractContextManager[Any]:
        if any(moment is known for known in self._used):
            return super().recompute_segment(replace(moment, draws=self.draws))
        self._used.append(moment)
        return super().recompute_segment(moment)


@fault("https://github.com/huggingface/diffusers/issues/10107", clause="recompute.evaluation-is-plain", kind="real")
class EvaluationRunsThroughSegments(ReferenceTrainer):
    """Evaluation of a model that is trained with recomputation goes through the recomputed segments as training does,
    and each of them counts another call."""

    def evaluate(self, parameters: Mapping[str, Tensor], inputs: Array) -> dict[str, Tensor]:
        if self.recipe.recompute is not None:
            self.calls = [count + 1 for count in self.calls]
        return super().evaluate(parameters, inputs)


@fault("", clause="autocast.matmul-is-low", kind="invented")
class OneRowStaysWide(Operations):
    """Linear layers leave the product of a single row to a routine for vectors that no precision scope knows of, so
    that a batch of one sample is computed in float32."""

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        if int(np.prod(x.shape[:-1])) != 1:
            return super().linear(x, weight, bias)
        with scope.opened(scope.Scope()):
            return super().linear(x, weight, bias)


@fault("https://github.com/ultralytics/ultralytics/pull/24990", clause="autocast.softmax-is-wide", kind="real")
class ScoresOverflowBeforeTheyAreScaled(Operations):
    """Attention rounds the products of queries and keys to the low format before it divides them by the root of the
    width: large ones overflow float16, and the softmax becomes NaN."""

    def attention(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        computing, yielding = self.formats("attention", query.format, key.format, value.format)
        if computing != "float16":
            return super().attention(query, key, value)
        q, k, v = (self.cast(x, computing) for x in (query, key, value))
        wide = "float32"
        raw = product(q.value, anp.swapaxes(k.value, -1, -2), self.rounding, computing)
        scores = rounded(raw / np.sqrt(q.shape[-1]), self.rounding, wide)
        shares = softmax(scores, lambda x, n=1: rounded(x, self.rounding, wide, n))
        weights = Tensor(rounded(shares, self.rounding, computing), computing)
        mixed = product(weights.value, v.value, self.rounding, computing)
        if self.tape:
            self.tape.keep(q, k, v, weights)
        return self.cast(Tensor(rounded(mixed, self.rounding, computing), computing), yielding)


class _SharedScope:
    """A precision scope that remembers one former scope, however often it is entered."""

    def __init__(self, opened: scope.Scope) -> None:
        self._opened = opened
        self._former = scope.Scope()

    def __enter__(self) -> None:
        self._former = scope.current()
        scope.enter(self._opened)

    def __exit__(self, *failure: object) -> None:
        scope.enter(self._former)


@fault("https://github.com/NVIDIA/TransformerEngine/pull/2957", clause="autocast.scope-restored", kind="real")
class EqualScopesAreOneObject(ReferenceFramework):
    """Scopes of equal settings are one object, which keeps only the setting before its last entry: a scope inside an
    equal one is still open after both were left."""

    _made: ClassVar[dict[scope.Scope, _SharedScope]] = {}

    def autocast(
        self, precision: Precision, *, enabled: bool = True, wide: Sequence[str] = (), low: Sequence[str] = ()
    ) -> AbstractContextManager[None]:
        if not enabled:
            return super().autocast(precision, enabled=False)
        asked = scope.Scope(precision, frozenset(wide), frozenset(low))
        return self._made.setdefault(asked, _SharedScope(asked))
