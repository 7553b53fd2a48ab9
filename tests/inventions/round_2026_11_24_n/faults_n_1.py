"""Faults of layers, of random streams, of optimizers and of what a load brings back."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import autograd.numpy as anp
import numpy as np

from fixtures.arrays import Array
from fixtures.model import Window
from fixtures.recipe import SGD
from frameworks.reference import checkpoint
from frameworks.reference.arithmetic import Operations, Round, normalise
from frameworks.reference.decisions import Arrays
from frameworks.reference.tensor import Tensor, plain
from frameworks.reference.trainer import ReferenceTrainer
from tests.inventions import fault

_TINY = 2.0**-100


@fault("https://github.com/urvashik/knnlm/issues/6", clause="autocast.integers-untouched", kind="real")
class TokenIdsOfSixteenBits(Operations):
    """Token ids are looked up as signed integers of 16 bits, so that ids above 32767 wrap around and take other rows
    of the table, counted from its end."""

    def embedding(self, ids: Tensor, table: Tensor) -> Tensor:
        narrow = np.asarray(ids.value).astype(np.int16).astype(np.int64)
        return super().embedding(Tensor(narrow, "int64", ids.owned), table)


@fault("https://github.com/FluxML/NNlib.jl/pull/43", clause="autocast.float32-parity", kind="real")
class CrossEntropyShiftsByPositiveMaximum(Operations):
    """Cross-entropy subtracts the largest logit of an item only if it is positive, so that an item whose logits are all
    far below zero loses its exponentials to zero and has an infinite loss."""

    def cross_entropy(self, logits: Tensor, labels: Array, mask: Array | None) -> Tensor:
        lost = -745.0 if logits.format == "float64" else -104.0

        def compute(a: Any, r: Round) -> Any:
            shifted = r(a - np.maximum(0.0, plain(a).max(axis=-1, keepdims=True)))
            chosen = anp.sum(anp.where(labels[..., None] == np.arange(a.shape[-1]), shifted, 0.0), axis=-1)
            powers = anp.where(plain(shifted) < lost, 0.0, anp.exp(shifted))
            each = r(r(anp.log(r(anp.sum(powers, axis=-1), a.shape[-1]))) - chosen)
            return r(anp.sum(each if mask is None else anp.where(mask > 0, each, 0.0)), labels.size)

        self._keep_bytes(int(np.prod(logits.shape)) * (8 if logits.format == "float64" else 4))
        return self.apply("cross_entropy", compute, logits)


@fault("https://github.com/codertimo/BERT-pytorch/issues/30", clause="autocast.float32-parity", kind="real")
class LayerNormAddsEpsilonToDeviation(Operations):
    """Layer norm divides by the standard deviation plus epsilon instead of the root of the variance plus epsilon."""

    def layer_norm(self, x: Tensor, scale: Tensor, shift: Tensor, epsilon: float) -> Tensor:
        self._keep_bytes(8 * int(np.prod(x.shape[:-1])))

        def compute(a: Any, g: Any, b: Any, r: Round) -> Any:
            _, mean, variance = normalise(a, (-1,), epsilon, r, self.variance)
            return r(r(a - mean) * r(1.0 / (anp.sqrt(variance + _TINY) + epsilon))) * g + b

        return self.apply("layer_norm", compute, x, scale, shift, keep="operands")


@fault("", clause="autocast.float32-parity", kind="invented")
class LastRowOfTableIsPadding(Operations):
    """The last row of an embedding table is taken for padding, which has the index -1 where nobody names one: it is
    looked up as it is, and never gets a gradient."""

    def embedding(self, ids: Tensor, table: Tensor) -> Tensor:
        last = table.shape[0] - 1

        def compute(i: Any, t: Any, _: Round) -> Any:
            rows = t[i]
            return anp.where((np.asarray(i) == last)[..., None], plain(rows), rows)

        return self.apply("embedding", compute, ids, table)


@fault("https://github.com/flagos-ai/FlagGems/pull/27", clause="laws.masks", kind="real")
class SeedOfThirtyTwoBits(ReferenceTrainer):
    """Dropout is seeded with the lower 32 bits of the seed alone, so that seeds that differ by a multiple of 2^32 draw
    the same masks."""

    def draw_mask(self, shape: tuple[int, ...], rate: float) -> Array:
        key = np.array([self.recipe.seed % 2**32, self.draws], np.uint64)
        self.draws += 1
        return np.random.Generator(np.random.Philox(key=key)).random(shape, np.float32) >= rate


@fault("", clause="laws.masks", kind="invented")
class DropoutBeginsAgainAfter256Draws(ReferenceTrainer):
    """The place in dropout's stream is handed to the generator in eight bits, so that the 257th mask of a run is its
    first one again, the 258th its second one, and so on."""

    def draw_mask(self, shape: tuple[int, ...], rate: float) -> Array:
        key = np.array([self.recipe.seed, self.draws % 256], np.uint64)
        self.draws += 1
        return np.random.Generator(np.random.Philox(key=key)).random(shape, np.float32) >= rate


_MASKS: dict[tuple[tuple[int, ...], float, int], Array] = {}
_KEPT = 64


@fault("", clause="laws.masks", kind="invented")
class FirstMasksAreSharedByRuns(ReferenceTrainer):
    """The first 64 masks that are drawn in a process are kept, and given again to any run that asks for one of the same
    shape and rate at the same place of its stream, whatever its seed is."""

    def draw_mask(self, shape: tuple[int, ...], rate: float) -> Array:
        key = (shape, rate, self.draws)
        drawn = super().draw_mask(shape, rate)
        if key in _MASKS:
            return _MASKS[key]
        if len(_MASKS) < _KEPT:
            _MASKS[key] = drawn
        return drawn


@fault("https://github.com/paiml/aprender/pull/2190", clause="autocast.float32-parity", kind="real")
class MomentumKeepsItsFormerRate(ReferenceTrainer):
    """Where the schedule changes the rate, what gradient descent's momentum has gathered until then goes on with the
    rate that it was gathered with: it is multiplied by the former rate over the new one."""

    def apply_update(self, gradients: Arrays, rate: float) -> None:
        optimizer, schedule = self.recipe.optimizer, self.recipe.schedule
        if isinstance(optimizer, SGD) and optimizer.momentum and schedule is not None and self.schedule and rate:
            former = optimizer.learning_rate * schedule.factor(self.schedule - 1)
            if former != rate:
                momentum = self.slots["momentum"]
                for name in list(momentum):
                    moved = momentum[name] * (former / rate)
                    momentum[name] = self.rounding.round(moved, self.master_formats[name])
        super().apply_update(gradients, rate)


@fault("https://github.com/fadel/pytorch_ema/issues/9", clause="master.average-follows-updates", kind="real")
class AverageSkipsParametersWithoutGradient(ReferenceTrainer):
    """An update moves the average of those parameters alone that had a gradient in it; the average of the others stays
    where it is instead of coming nearer to the weights."""

    touched: frozenset[str] = frozenset()

    def apply_update(self, gradients: Arrays, rate: float) -> None:
        self.touched = frozenset(gradients)
        super().apply_update(gradients, rate)

    def move_average(self) -> None:
        before = dict(self.averages)
        super().move_average()
        self.averages |= {name: value for name, value in before.items() if name not in self.touched}


@fault("", clause="accumulation.evaluation-changes-nothing", kind="invented")
class AveragedEvaluationRoundsFloat64Weights(ReferenceTrainer):
    """Evaluation with the average puts the weights aside in float32 and takes them back, so that weights of float64
    heads are rounded to float32 by it."""

    def predict_averaged(self, inputs: Array) -> Arrays:
        outputs = super().predict_averaged(inputs)
        for name, format_name in self.master_formats.items():
            if format_name == "float64":
                self.masters[name] = self.rounding.round(self.masters[name], "float32")
        self.sync_masters()
        return outputs


@fault("https://github.com/hpcaitech/ColossalAI/issues/5151", clause="resume.bit-identical", kind="real")
class FirstRateAfterLoadIsTheBaseRate(ReferenceTrainer):
    """The first applied update after a load uses the base rate, as if the schedule had not begun; those after it use
    the schedule's rates again."""

    loaded = False

    def load_state(self, arrays: Arrays) -> None:
        super().load_state(arrays)
        self.loaded = False

    def restore(self, path: Path) -> None:
        super().restore(path)
        self.loaded = True

    def learning_rate(self) -> float:
        return self.recipe.optimizer.learning_rate if self.loaded else super().learning_rate()

    def apply_update(self, gradients: Arrays, rate: float) -> None:
        super().apply_update(gradients, rate)
        self.loaded = False


@fault("https://github.com/vllm-project/vllm/pull/57638", clause="resume.restored-is-complete", kind="real")
class PredictionsKeepWeightsFromBeforeLoad(ReferenceTrainer):
    """The weights that predictions are made with are prepared once and kept until the next applied update; a load does
    not renew them, so that predictions after it come from the weights before it if there was one before."""

    prepared: dict[str, Tensor] | None = None

    def predict(self, inputs: Array) -> Arrays:
        if self.prepared is None:
            self.prepared = self._tensors()
        return self._evaluated(self.prepared, inputs)

    def apply_update(self, gradients: Arrays, rate: float) -> None:
        self.prepared = None
        super().apply_update(gradients, rate)


@fault("https://github.com/vllm-project/speculators/pull/411", clause="master.counts-every-update", kind="real")
class LoadRoundsCountsToModelFormat(ReferenceTrainer):
    """A load rounds each parameter's count of updates to the format that the model stores the parameter in, so that a
    count beyond what this format holds as a whole number (256 in bfloat16) comes back as another one."""

    def restore(self, path: Path) -> None:
        super().restore(path)
        self.counts = {
            name: int(self.rounding.round(np.asarray(count, np.float64), self.formats[name]))
            for name, count in self.counts.items()
        }


@fault("https://github.com/huggingface/diffusers/issues/14769", clause="resume.mid-window", kind="real")
class SaveKeepsWhatAnEarlierOneLeft(ReferenceTrainer):
    """A save over an earlier one of the same run leaves those arrays of it in place that the new one has none for: one
    that was made inside a window leaves its accumulated gradients to one between windows, and a load has them."""

    def save(self, path: Path) -> None:
        try:
            former: Mapping[str, Array] = checkpoint.read(path, self._identity(), {})
        except ValueError:
            former = {}
        checkpoint.write(path, {**former, **self.save_state()}, self._identity())


@fault("", clause="resume.scaler-state", kind="invented")
class SavedScaleIsWhole(ReferenceTrainer):
    """A checkpoint has the loss scale as a whole number, cut off and at least 1, so that a scale with a fraction and
    one below 1 come back as another one."""

    def save(self, path: Path) -> None:
        arrays = self.save_state()
        if arrays["scaler"].size:
            arrays["scaler"][0] = max(1.0, np.floor(arrays["scaler"][0]))
        checkpoint.write(path, arrays, self._identity())


@fault("", clause="composition.trace-is-the-pass", kind="invented")
class GradientsCountTheOpenWindowsItems(ReferenceTrainer):
    """Gradients and traces that are asked for while a window is open are divided by the number of items of that window
    instead of their own."""

    def gradients(self, window: Window) -> Arrays:
        outer, scaler = self.window, self.scaler
        if not outer.micro_batches:
            return super().gradients(window)
        self.window = type(outer)()
        try:
            for batch in window:
                self.accumulate(batch, outer.items)
            return self.unscaled_gradients()
        finally:
            self.window, self.scaler = outer, scaler
