"""Micro-batches as inputs of compiled functions, and the losses of a model's outputs."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from fixtures.model import Batch, Model


class DeviceBatch(NamedTuple):
    """A micro-batch, of NumPy or JAX arrays; targets of squared error have their head's format.

    Attributes:
        owners: (N,) by head name, where several ranks have a part of the batch: whose sample each is, -1 for nobody's.
    """

    inputs: Any
    targets: dict[str, Any]
    mask: Any
    owners: Mapping[str, Any] | None = None


def load_batch(model: Model, batch: Batch) -> DeviceBatch:
    """The micro-batch as NumPy arrays; a compiled function puts them where its other arguments lie."""
    last = len(model.layers) - 1
    kinds = dict(model.losses)
    targets = {
        name: array
        if kinds[name] == "cross_entropy"
        else array.astype(model.parameter_format(f"{last}.{name}."), copy=False)
        for name, array in batch.targets.items()
    }
    return DeviceBatch(batch.inputs, targets, batch.mask)


def item_losses(model: Model, outputs: dict[str, jax.Array], batch: DeviceBatch) -> dict[str, jax.Array]:
    """For each head that has a target, in model order: the loss of each item, in float32 or wider."""
    result = {}
    for name, kind in model.losses:
        if name in batch.targets:
            output = outputs[name].astype(jnp.promote_types(outputs[name].dtype, jnp.float32))
            if kind == "cross_entropy":
                losses = optax.softmax_cross_entropy_with_integer_labels(output, batch.targets[name])
            else:
                losses = optax.squared_error(output, batch.targets[name]).mean(-1)
            result[name] = losses
    return result


def loss_sums(model: Model, outputs: dict[str, jax.Array], batch: DeviceBatch) -> list[jax.Array]:
    """For each head that has a target, in model order: the sum of the losses of the items, in float32 or wider."""
    counts = None if batch.mask is None else batch.mask > 0
    return [jnp.sum(losses, where=counts) for losses in item_losses(model, outputs, batch).values()]


def loss_sums_of_ranks(model: Model, outputs: dict[str, jax.Array], batch: DeviceBatch, ranks: int) -> list[jax.Array]:
    """`loss_sums` for each rank: (ranks,) for each head."""
    assert batch.owners is not None
    sums = []
    for name, losses in item_losses(model, outputs, batch).items():
        own = jnp.expand_dims(batch.owners[name] == jnp.arange(ranks)[:, None], tuple(range(2, losses.ndim + 1)))
        counts = own if batch.mask is None else own & (batch.mask > 0)
        sums.append(
            jnp.sum(jnp.broadcast_to(losses, (ranks, *losses.shape)), tuple(range(1, losses.ndim + 1)), where=counts)
        )
    return sums
