"""A micro-batch on the device, and the losses of a model's outputs on it."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from fixtures.model import Batch, Model


class Loaded(NamedTuple):
    """A micro-batch as JAX arrays; targets of squared error have their head's format."""

    inputs: jax.Array
    targets: dict[str, jax.Array]
    mask: jax.Array | None


def load_batch(model: Model, batch: Batch, device: jax.Device) -> Loaded:
    """The micro-batch on `device`."""
    last = len(model.layers) - 1
    kinds = dict(model.losses)
    targets = {
        name: array
        if kinds[name] == "cross_entropy"
        else array.astype(model.parameter_format(f"{last}.{name}."), copy=False)
        for name, array in batch.targets.items()
    }
    put: Any = jax.device_put((batch.inputs, targets, batch.mask), device)
    return Loaded(*put)


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
