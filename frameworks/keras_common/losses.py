"""Keras' losses for a model's heads."""

from typing import Any

import keras
from packaging.version import Version

from fixtures.model import LossKind, Model

BEFORE_3_7 = Version(keras.__version__) < Version("3.7")
WEIGHTED_MEAN = "mean_with_sample_weight"
"""The sum of weighted losses divided by the sum of weights; new in Keras 3.7."""


class _WeightedMean(keras.losses.Loss):
    """What Keras before 3.7 has no reduction for."""

    def __init__(self, items: keras.losses.Loss) -> None:
        super().__init__()
        self._items = items

    def __call__(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        weighted = keras.ops.sum(self._items(y_true, y_pred, sample_weight))
        return weighted / keras.ops.sum(keras.ops.cast(sample_weight, weighted.dtype))


def losses_of(model: Model, reduction: str) -> dict[str, keras.losses.Loss]:
    """The loss of each head by its name, with a reduction of Keras; "none" is that of each item."""
    wide = {head.name for head in model.heads.heads if head.format == "float64"}
    return {name: _loss(kind, reduction, "float64" if name in wide else None) for name, kind in model.losses}


def _loss(kind: LossKind, reduction: str, dtype: str | None) -> keras.losses.Loss:
    if reduction == WEIGHTED_MEAN and BEFORE_3_7:
        return _WeightedMean(_loss(kind, "none", dtype))
    if kind == "cross_entropy":
        return keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=reduction, dtype=dtype)
    return keras.losses.MeanSquaredError(reduction=reduction, dtype=dtype)


def batch_losses_of(model: Model) -> dict[tuple[str, bool], keras.losses.Loss]:
    """The mean loss of each head by name, for batches without or with a mask."""
    reductions = {False: "sum_over_batch_size", True: WEIGHTED_MEAN}
    return {
        (name, masked): loss
        for masked, reduction in reductions.items()
        for name, loss in losses_of(model, reduction).items()
    }
