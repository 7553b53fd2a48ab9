"""Keras' losses for a model's heads."""

from __future__ import annotations

import keras

from fixtures.model import LossKind, Model


def losses_of(model: Model, reduction: str) -> dict[str, keras.losses.Loss]:
    """The loss of each head by its name, with a reduction of Keras; "none" is that of each item."""
    wide = {head.name for head in model.heads.heads if head.format == "float64"}
    return {name: _loss(kind, reduction, "float64" if name in wide else None) for name, kind in model.losses}


def _loss(kind: LossKind, reduction: str, dtype: str | None) -> keras.losses.Loss:
    if kind == "cross_entropy":
        return keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=reduction, dtype=dtype)
    return keras.losses.MeanSquaredError(reduction=reduction, dtype=dtype)


def batch_losses_of(model: Model) -> dict[tuple[str, bool], keras.losses.Loss]:
    """The mean loss of each head by name, for batches without or with a mask."""
    reductions = {False: "mean", True: "mean_with_sample_weight"}
    return {
        (name, masked): loss
        for masked, reduction in reductions.items()
        for name, loss in losses_of(model, reduction).items()
    }
