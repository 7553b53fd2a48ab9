"""A micro-batch as compiled functions take it, and the losses of a model's outputs on it."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from fixtures.model import Batch, Model


class Loaded(NamedTuple):
    """A micro-batch, of NumPy or JAX arrays; targets of squared error have their head's format."""

    inputs: Any
    targets: dict[str, Any]
    mask: Any


def load_batch(model: Model, batch: Batch) -> Loaded:
    """The micro-batch as NumPy arrays; a compiled function puts them where its other arguments lie."""
    last = len(model.layers) - 1
    kinds = dict(model.losses)
    targets = {
        name: array
        if kinds[name] == "cross_entropy"
        else array.astype(model.parameter_format(f"{last}.{name}."), copy=False)
        for name, array in batch.targets.items()
    }
    return Loaded(batch.inputs, targets, batch.mask)


def loss_sums(model: Model, outputs: dict[str, jax.Array], batch: Loaded) -> list[jax.Array]:
    """For each head that has a target, in model order: the sum of the losses of the items, in float32 or wider."""
    sums = []
    for name, kind in model.losses:
        if name in batch.targets:
            output = outputs[name].astype(jnp.promote_types(outputs[name].dtype, jnp.float32))
            if kind == "cross_entropy":
                losses = optax.softmax_cross_entropy_with_integer_labels(output, batch.targets[name])
            else:
                losses = optax.squared_error(output, batch.targets[name]).mean(-1)
            sums.append(jnp.sum(losses, where=None if batch.mask is None else batch.mask > 0))
    return sums
