"""Micro-batches as inputs of compiled functions, and Keras' losses for a model's heads."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import keras
import numpy as np

from fixtures.model import Batch, LossKind, Model
from frameworks.jax.joined import NOBODY, JoinedBatch

Reduction = Literal["sum", "none"]


class Loaded(NamedTuple):
    """A micro-batch.

    Attributes:
        weights: weight of each loss, by head, None if all are equal.
        owners: (N,) by head, the rank that each sample is an item of; None in one place.
        items: how many items all ranks have.
    """

    inputs: Any
    targets: dict[str, Any]
    weights: dict[str, Any] | None
    owners: dict[str, Any] | None
    items: Any


def load_batch(batch: Batch) -> Loaded:
    """The micro-batch of one place."""
    mask = None if batch.mask is None else dict.fromkeys(batch.targets, batch.mask)
    return Loaded(batch.inputs, dict(batch.targets), mask, None, np.float32(batch.items))


def load_parts(batch: JoinedBatch) -> Loaded:
    """The micro-batch of several ranks, in which padding has weight 0."""
    weights = {}
    for name, owners in batch.owners.items():
        own = (owners != NOBODY).astype(np.float32)
        weights[name] = own if batch.mask is None else batch.mask * own.reshape(-1, *[1] * (batch.mask.ndim - 1))
    return Loaded(batch.inputs, dict(batch.targets), weights, dict(batch.owners), np.float32(batch.items))


def losses_of(model: Model, reduction: Reduction) -> dict[str, keras.losses.Loss]:
    """The loss of each head by its name; "none" is that of each item."""
    wide = {head.name for head in model.heads.heads if head.format == "float64"}
    return {name: _loss(kind, reduction, "float64" if name in wide else None) for name, kind in model.losses}


def _loss(kind: LossKind, reduction: Reduction, dtype: str | None) -> keras.losses.Loss:
    if kind == "cross_entropy":
        return keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=reduction, dtype=dtype)
    return keras.losses.MeanSquaredError(reduction=reduction, dtype=dtype)
