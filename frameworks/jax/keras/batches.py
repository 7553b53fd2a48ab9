"""Micro-batches as inputs of compiled functions."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from fixtures.model import Batch
from frameworks.jax.distributed.gathered_batch import NOBODY, GatheredBatch


class DeviceBatch(NamedTuple):
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


def load_batch(batch: Batch) -> DeviceBatch:
    """The micro-batch of one place."""
    mask = None if batch.mask is None else dict.fromkeys(batch.targets, batch.mask)
    return DeviceBatch(batch.inputs, dict(batch.targets), mask, None, np.float32(batch.items))


def load_parts(batch: GatheredBatch) -> DeviceBatch:
    """The micro-batch of several ranks, in which padding has weight 0."""
    weights = {}
    for name, owners in batch.owners.items():
        own = (owners != NOBODY).astype(np.float32)
        weights[name] = own if batch.mask is None else batch.mask * own.reshape(-1, *[1] * (batch.mask.ndim - 1))
    return DeviceBatch(batch.inputs, dict(batch.targets), weights, dict(batch.owners), np.float32(batch.items))
