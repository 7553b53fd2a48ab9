"""Keras' losses for a model's heads."""

from __future__ import annotations

import keras
import tensorflow as tf

from fixtures.model import LossKind, Model


def _loss(kind: LossKind, wide: bool, masked: bool) -> keras.losses.Loss:
    common = {"dtype": "float64" if wide else None, "reduction": "mean_with_sample_weight" if masked else "mean"}
    if kind == "cross_entropy":
        return keras.losses.SparseCategoricalCrossentropy(from_logits=True, **common)
    return keras.losses.MeanSquaredError(**common)


def losses_of(model: Model) -> dict[tuple[str, bool], keras.losses.Loss]:
    """The loss of each head, by its name and whether the batch has a mask."""
    wide = {head.name for head in model.heads.heads if head.format == "float64"}
    return {
        (name, masked): _loss(kind, name in wide, masked) for name, kind in model.losses for masked in (False, True)
    }


def same_format(losses: list[tf.Tensor]) -> list[tf.Tensor]:
    """The losses in float64 if one of them is, else in the format of the first."""
    widest = tf.float64 if any(loss.dtype == tf.float64 for loss in losses) else losses[0].dtype
    return [tf.cast(loss, widest) for loss in losses]
