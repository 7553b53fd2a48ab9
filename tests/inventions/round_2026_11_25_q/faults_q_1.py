"""Faults of accumulation, precision scopes, loss scaling, and of masters and averages of the weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace

import numpy as np
from autograd.extend import defvjp, primitive

from fixtures.arrays import Array
from fixtures.recipe import Precision
from frameworks.contract import Update
from frameworks.reference import ReferenceFramework, scope
from frameworks.reference.arithmetic import Operations
from frameworks.reference.decisions import Arrays
from frameworks.reference.rounding import Rounding
from frameworks.reference.scaler import LossScale
from frameworks.reference.tensor import Tensor
from frameworks.reference.trainer import ReferenceTrainer
from tests.inventions import fault

_LOW = ("float16", "bfloat16")


# accumulation


@fault("https://github.com/deepspeedai/DeepSpeed/pull/7969", clause="accumulation.groups-change-nothing", kind="real")
class LaterGroupsStartAtBaseRate(ReferenceTrainer):
    """Before the first update the schedule sets the rate of the first parameter group alone.

    The second group makes its first update by the base rate, without the warm-up's factor.
    """

    def apply_update(self, gradients: Arrays, rate: float) -> None:
        if self.recipe.groups == 1 or self.schedule > 0:
            super().apply_update(gradients, rate)
            return
        steps, places = self.steps, list(self.masters)
        for group, own_rate in ((0, rate), (1, self.recipe.optimizer.learning_rate)):
            self.steps = steps
            super().apply_update({n: g for n, g in gradients.items() if places.index(n) % 2 == group}, own_rate)


@fault("https://github.com/pytorch/pytorch/issues/11062", clause="accumulation.evaluation-changes-nothing", kind="real")
class EvaluationDrawsFromTheStream(ReferenceTrainer):
    """Every evaluation takes one number from the stream that dropout draws from.

    A run that is validated goes another way than one that is not.
    """

    def _evaluated(self, parameters: dict[str, Tensor], inputs: Array) -> Arrays:
        self.draws += 1
        return super()._evaluated(parameters, inputs)


@primitive
def _looked_up(table: Array, ids: Array, rounding: Rounding, format_name: str) -> Array:
    del rounding, format_name
    return table[ids]


def _added_one_by_one(
    ans: Array, table: Array, ids: Array, rounding: Rounding, format_name: str
) -> Callable[[Array], Array]:
    del ans

    def pullback(gradient: Array) -> Array:
        total = np.zeros_like(table)
        for row, own in zip(ids.reshape(-1), gradient.reshape(-1, table.shape[-1]), strict=True):
            total[row] = rounding.round(total[row] + own, format_name)
        return total

    return pullback


defvjp(_looked_up, _added_one_by_one, None, None, None)


@fault("https://github.com/apache/mxnet/issues/17703", clause="accumulation.repeated-rows", kind="real")
class RepeatedRowsAddUpInTheLowFormat(Operations):
    """The gradient of a low-precision embedding adds repeated rows one by one in the table's own format.

    Rows of frequent tokens lose what is below half a unit of the sum so far.
    """

    def embedding(self, ids: Tensor, table: Tensor) -> Tensor:
        if table.format not in _LOW:
            return super().embedding(ids, table)
        name, rounding = table.format, self.rounding
        return self.apply("embedding", lambda i, t, _: _looked_up(t, i, rounding, name), ids, table)


@fault("", clause="accumulation.once-per-window", kind="invented")
class NormOfWhatTheFirstMicroBatchUsed(ReferenceTrainer):
    """The global norm is taken over the parameters that had a gradient in the window's first micro-batch.

    Where later micro-batches use other branches of the model, the reported norm is too small and clipping too weak.
    """

    def take_micro_batch(self, gradients: Arrays) -> None:
        if not self.window.micro_batches:
            setattr(self.window, "first_names", frozenset(gradients))  # noqa: B010
        super().take_micro_batch(gradients)

    def gradient_norm(self, gradients: Mapping[str, Array]) -> float:
        known: frozenset[str] = getattr(self.window, "first_names", frozenset(gradients))
        return super().gradient_norm({name: g for name, g in gradients.items() if name in known})


# autocast


@fault("https://github.com/pytorch/pytorch/issues/35014", clause="autocast.promotes-to-widest", kind="real")
class JoinsTakeTheFirstFormat(Operations):
    """Concatenation and stacking of values in two formats give the format of the first one.

    A float32 operand that comes second is rounded to float16, and overflows where it is large.
    """

    def formats(self, op: str, *operands: str) -> tuple[str, str]:
        if op in ("concatenate", "stack") and len(set(operands)) > 1:
            return operands[0], operands[0]
        return super().formats(op, *operands)


@fault("", clause="autocast.scope-nests", kind="invented")
class ListsOfOuterScopesAreInherited(ReferenceFramework):
    """A precision scope inside another one keeps the outer scope's lists of operations next to its own.

    An operation that the outer scope forces into a low format runs so in the inner one, which does not name it.
    """

    def autocast(
        self, precision: Precision, *, enabled: bool = True, wide: Sequence[str] = (), low: Sequence[str] = ()
    ) -> AbstractContextManager[None]:
        outer = scope.current()
        wide, low = (*wide, *sorted(outer.wide - {*low})), (*low, *sorted(outer.low - {*wide}))
        return super().autocast(precision, enabled=enabled, wide=wide, low=low)


@fault("", clause="autocast.norm-layers-are-wide", kind="invented")
class EvaluationReadsLowStatistics(ReferenceTrainer):
    """At level O1 evaluation brings batch norm's running statistics to the compute format before it uses them.

    Predictions of a trained model are off by the rounding of the mean, which is large where the mean is.
    """

    def running_statistics(self, path: str) -> tuple[Array, Array]:
        mean, variance = super().running_statistics(path)
        if self.recipe.precision.level != "O1":
            return mean, variance
        name = self.recipe.precision.format
        return self.rounding.round(mean, name), self.rounding.round(variance, name)


# scaling


@fault("https://github.com/flagos-ai/Torch-FL/pull/235", clause="scaling.detects-every-group", kind="real")
class LaterFormatClearsTheOverflow(ReferenceTrainer):
    """Gradients are checked by groups of one format, and each group's finding replaces that of the one before.

    An overflow in the first group is applied where the parameters of the last format are finite.
    """

    def found_nonfinite(self, gradients: Mapping[str, Array]) -> bool:
        found = False
        for each in dict.fromkeys(self.formats[name] for name in gradients):
            found = super().found_nonfinite({n: g for n, g in gradients.items() if self.formats[n] == each})
        return found


@fault("https://github.com/deepspeedai/DeepSpeed/pull/8471", clause="scaling.step-count-follows-updates", kind="real")
class LastCounterCorrectsAllMoments(ReferenceTrainer):
    """Adam corrects the bias of every moment by the count of updates of the last parameter that has a gradient.

    After updates in which some parameters had no gradient, the others' steps are too large or too small.
    """

    def apply_update(self, gradients: Arrays, rate: float) -> None:
        counts = dict(self.counts)
        last = counts[list(gradients)[-1]]
        self.counts |= dict.fromkeys(gradients, last)
        super().apply_update(gradients, rate)
        self.counts |= {name: counts[name] + 1 for name in gradients}


@fault(
    "https://github.com/huggingface/transformers/issues/35942",
    clause="scaling.step-count-follows-updates",
    kind="real",
)
class ReportsTheNextRate(ReferenceTrainer):
    """The learning rate of an update is read after the schedule has moved.

    What is reported of an update is the rate of the one that follows it.
    """

    def apply(self) -> Update:
        update = super().apply()
        return replace(update, learning_rate=self.learning_rate())


@fault("", clause="scaling.grows-after-interval", kind="invented")
class GrowthCounterHasEightBits(ReferenceTrainer):
    """The counter of finite updates is kept in eight bits and begins anew at 256.

    With an interval above 256, such as the default one, the scale never grows.
    """

    def next_scale(self, scaler: LossScale, finite: bool) -> LossScale:
        moved = super().next_scale(scaler, finite)
        return replace(moved, good_steps=moved.good_steps % 256)


@fault("", clause="scaling.skip-is-atomic", kind="invented")
class SkipRefreshesMasters(ReferenceTrainer):
    """After a skipped update the float32 masters are made anew from the low-precision weights.

    What small updates had added up to in the masters is lost with every overflow.
    """

    def _step(self, rate: float) -> bool:
        skipped = super()._step(rate)
        if skipped:
            for name, value in self.values.items():
                self.masters[name] = value
        return skipped


# averages of the weights


@fault("https://github.com/PKU-YuanGroup/Open-Sora-Plan/issues/186", clause="master.average-is-evaluated", kind="real")
class AverageStaysInTheModel(ReferenceTrainer):
    """Evaluation with the average copies it into the model and does not put the weights back.

    Until the next update, evaluation without the average and the next forward pass use the average.
    """

    def predict_averaged(self, inputs: Array) -> Arrays:
        outputs = super().predict_averaged(inputs)
        for name in self.averages:
            self.values[name] = self.averaged(name)
        return outputs


@fault("https://github.com/lightly-ai/lightly-train/pull/892", clause="master.average-follows-updates", kind="real")
class AverageStartsAnewAfterALoad(ReferenceTrainer):
    """The average's own counter of updates is not in the checkpoint and begins at zero after a load.

    The first update of a resumed run takes itself for the first of all and copies the weights over the average.
    """

    moved = 0

    def move_average(self) -> None:
        self.moved += 1
        steps, self.steps = self.steps, min(self.steps, self.moved)
        super().move_average()
        self.steps = steps

    def load_state(self, arrays: Arrays) -> None:
        super().load_state(arrays)
        self.moved = 0
