"""Keras' losses for a model's heads."""

from __future__ import annotations

import keras
import tensorflow as tf

from fixtures.model import LossKind, Model


def _loss(kind: LossKind, wide: bool, reduction: str) -> keras.losses.Loss:
    common = {"dtype": "float64" if wide else None, "reduction": reduction}
    if kind == "cross_entropy":
        return keras.losses.SparseCategoricalCrossentropy(from_logits=True, **common)
    return keras.losses.MeanSquaredError(**common)


def losses_of(model: Model) -> dict[tuple[str, bool], keras.losses.Loss]:
    """The loss of each head by name, for batches with or without a mask."""
    reductions = {False: "mean", True: "mean_with_sample_weight"}
    return {
        (name, masked): _loss(kind, name in _wide(model), reduction)
        for name, kind in model.losses
        for masked, reduction in reductions.items()
    }


def item_losses_of(model: Model) -> dict[str, keras.losses.Loss]:
    """The loss of each head for each of its items, by its name."""
    return {name: _loss(kind, name in _wide(model), "none") for name, kind in model.losses}


def _wide(model: Model) -> set[str]:
    return {head.name for head in model.heads.heads if head.format == "float64"}


def same_format(losses: list[tf.Tensor]) -> list[tf.Tensor]:
    """The losses in float64 if one of them is, else in the format of the first."""
    widest = tf.float64 if any(loss.dtype == tf.float64 for loss in losses) else losses[0].dtype
    return [tf.cast(loss, widest) for loss in losses]
