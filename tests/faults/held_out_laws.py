"""Held-out faults of laws: their authors knew the specification and had not seen the suites."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from fixtures.arrays import Array
from fixtures.model import Batch
from fixtures.recipe import Adam, AdamW
from frameworks.reference import ReferenceFramework
from frameworks.reference.decisions import Arrays
from frameworks.reference.rank_trainer import COUNT, saved_count
from frameworks.reference.ranks import ReferenceCompany
from frameworks.reference.trainer import ReferenceTrainer
from tests.faults import fault


@fault("https://github.com/Lightning-AI/pytorch-lightning/issues/7792", component="dropout", clauses=("laws.programs",))
class FirstUpdateNeedsBothOptimizers(ReferenceTrainer):
    """Under a scaler, the first update of two optimizers raises where one of them has no gradient."""

    def judge(self) -> frozenset[int]:
        if self.steps == 0 and self.window.gradients:
            owners = {self.optimizer_of(name) for name in self.masters}
            if owners - {self.optimizer_of(name) for name in self.window.gradients}:
                raise AssertionError("an optimizer was stepped whose gradients were never looked at")
        return super().judge()


@fault("", component="dropout", clauses=("laws.programs",))
class BetaOfZeroIsTheDefault(ReferenceTrainer):
    """A beta1 of 0, for Adam and AdamW, is taken for one that was not given, and 0.9 is used."""

    def apply_update(self, gradients: Arrays, rate: float) -> None:
        given, optimizer = self.recipe, self.recipe.optimizer
        if isinstance(optimizer, Adam | AdamW):
            self.recipe = given.but(optimizer=replace(optimizer, beta1=optimizer.beta1 or 0.9))
        try:
            super().apply_update(gradients, rate)
        finally:
            self.recipe = given


@fault("", component="dropout", clauses=("laws.programs",))
class AverageStaysAfterAnError(ReferenceTrainer):
    """Evaluation with the average puts it in the place of the model's weights, and where that evaluation raises, as
    for inputs of a wrong shape, they are not put back until the next applied update."""

    def predict_averaged(self, inputs: Array) -> Arrays:
        if self.recipe.average is None:
            return super().predict_averaged(inputs)
        own = dict(self.values)
        for name in own:
            self.values[name] = self.averaged(name)
        outputs = self.predict(inputs)
        self.values.update(own)
        return outputs


def _cut_by_another_alignment(value: Array, saved: int, count: int) -> Array:
    """The rows of shards that `saved` ranks padded, as a reader finds them that leaves the padding out of account."""
    rows = np.atleast_1d(value)
    padded = np.concatenate([rows, np.zeros_like(np.resize(rows, (-len(rows) % saved, *rows.shape[1:])))])
    length, stride = -(-len(rows) // count), len(padded) // count
    found = np.concatenate([padded[rank * stride : rank * stride + length] for rank in range(count)])
    whole = np.zeros_like(rows)
    whole[: len(found)] = found[: len(rows)]
    return whole.reshape(value.shape)


class _PaddingShiftsMoments(ReferenceCompany):
    def restore(self, path: Path) -> None:
        super().restore(path)
        saved = saved_count(path / COUNT)
        if saved == self.count or not self.sharded("optimizer"):
            return
        for trainer in self.trainers:
            for moments in trainer.slots.values():
                for name in list(moments):
                    moments[name] = _cut_by_another_alignment(moments[name], saved, self.ranks.shards)


@fault("https://github.com/deepspeedai/DeepSpeed/pull/5105", component="dropout", clauses=("laws.second-run",))
class PaddingShiftsMoments(ReferenceFramework):
    """A load of a sharded run by another number of ranks leaves the padding of the saved shards out of account.

    Moments of parameters whose rows the ranks do not divide come back at the places of other rows.
    """

    company_class = _PaddingShiftsMoments


@fault("https://github.com/google-research/vision_transformer/issues/286", component="dropout", clauses=("laws.masks",))
class OneKeyForTheWindow(ReferenceTrainer):
    """The random key of dropout is split once an update, so that all micro-batches of a window draw the same masks."""

    _opened = 0

    def passed(self, batch: Batch, items: int) -> tuple[float, Arrays]:
        if self.window.micro_batches:
            self.draws = self._opened
        else:
            self._opened = self.draws
        return super().passed(batch, items)
