"""Keras' losses for a model's heads, each the sum over the items that count."""

from __future__ import annotations

from typing import Literal

import keras

from fixtures.model import LossKind, Model

Reduction = Literal["sum", "none"]


def losses_of(model: Model, reduction: Reduction) -> dict[str, keras.losses.Loss]:
    """The loss of each head by its name; "none" is that of each item."""
    wide = {head.name for head in model.heads.heads if head.format == "float64"}
    return {name: _loss(kind, reduction, "float64" if name in wide else None) for name, kind in model.losses}


def _loss(kind: LossKind, reduction: Reduction, dtype: str | None) -> keras.losses.Loss:
    if kind == "cross_entropy":
        return keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=reduction, dtype=dtype)
    return keras.losses.MeanSquaredError(reduction=reduction, dtype=dtype)
