"""Native training loops in JAX, Flax, Optax and JMP alone, as in Flax's guide on training and JMP's example."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import jmp
import optax
from flax import linen as nn
from flax.training.train_state import TrainState

from fixtures.arrays import Array
from fixtures.model import Batch
from frameworks.native_loop import RATE, own, parts

MODES = ("jit",)
INITIAL = 2.0**15
"""The loss scale that JMP's example begins with."""


class Perceptron(nn.Module):
    """784-512-256-128-10 with ReLU."""

    dtype: Any

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        for name, units in (("0", 512), ("2", 256), ("4", 128)):
            x = nn.relu(nn.Dense(units, dtype=self.dtype, name=name)(x))
        return nn.Dense(10, dtype=self.dtype, name="6")(x)


class Encoder(nn.Module):
    """Token ids to a score for each of four labels at every position."""

    dtype: Any
    width: int = 32
    heads: int = 4
    blocks: int = 2

    @nn.compact
    def __call__(self, ids: jax.Array) -> jax.Array:
        def embed(count: int, name: str) -> nn.Embed:
            return nn.Embed(count, self.width, dtype=self.dtype, name=name)

        def dense(units: int, name: str) -> nn.Dense:
            return nn.Dense(units, dtype=self.dtype, name=name)

        def norm(name: str) -> nn.LayerNorm:
            return nn.LayerNorm(1e-5, dtype=self.dtype, name=name)

        length = ids.shape[-1]
        x = embed(4096, "tokens")(ids) + embed(length, "positions")(jnp.arange(length))
        for block in range(self.blocks):
            at = f"blocks.{block}"
            attention = nn.MultiHeadDotProductAttention(self.heads, dtype=self.dtype, name=f"{at}.attention")
            x = x + attention(norm(f"{at}.norm1")(x))
            y = nn.gelu(dense(2 * self.width, f"{at}.feed.0")(norm(f"{at}.norm2")(x)), approximate=False)
            x = x + dense(self.width, f"{at}.feed.2")(y)
        return dense(4, "head")(norm("norm")(x))


MODELS: dict[str, Callable[[Any], nn.Module]] = {"digits-mlp": Perceptron, "encoder": Encoder}
LEAVES = {"bias": "bias", "scale": "scale", "shift": "bias"}


def starting_from(shapes: Mapping[str, Any], fixture: str, weights: Mapping[str, Array]) -> dict[str, Any]:
    """The fixture's weights as the model's parameters; attention's products have an axis for heads."""
    result: dict[str, Any] = {}
    for part, path in parts(fixture).items():
        before, attends, projection = part.partition(".attention.")
        layer_shapes, into, name = shapes, result, part
        if attends:
            layer_shapes, into = shapes[f"{before}.attention"], result.setdefault(f"{before}.attention", {})
            name = "out" if projection == "output" else projection
        weight = "embedding" if "embedding" in layer_shapes[name] else "kernel"
        into[name] = {
            LEAVES.get(kind, weight): jnp.asarray(value.reshape(layer_shapes[name][LEAVES.get(kind, weight)].shape))
            for kind, value in own(weights, path).items()
        }
    return result


@jax.jit
def plain_step(
    state: TrainState, inputs: jax.Array, labels: jax.Array, mask: jax.Array | None
) -> tuple[TrainState, jax.Array]:
    """One update, and the loss before it."""

    def loss_of(parameters: Any) -> jax.Array:
        return mean_loss(state.apply_fn({"params": parameters}, inputs), labels, mask)

    loss, gradients = jax.value_and_grad(loss_of)(state.params)
    return state.apply_gradients(grads=gradients), loss


@jax.jit
def mixed_step(
    state: TrainState, scale: jmp.LossScale, inputs: jax.Array, labels: jax.Array, mask: jax.Array | None
) -> tuple[TrainState, jmp.LossScale, jax.Array]:
    """One update under a loss scale, and the loss before it; an overflow only lowers the scale."""

    def loss_of(parameters: Any) -> tuple[jax.Array, jax.Array]:
        loss = mean_loss(state.apply_fn({"params": parameters}, inputs), labels, mask)
        return scale.scale(loss), loss

    gradients, loss = jax.grad(loss_of, has_aux=True)(state.params)
    gradients = scale.unscale(gradients)
    finite = jmp.all_finite(gradients)
    state = jmp.select_tree(finite, state.apply_gradients(grads=gradients), state)
    return state, scale.adjust(finite), loss


def mean_loss(outputs: jax.Array, labels: jax.Array, mask: jax.Array | None) -> jax.Array:
    """The mean cross-entropy of the items that count, in float32."""
    losses = optax.softmax_cross_entropy_with_integer_labels(outputs.astype(jnp.float32), labels)
    return losses.mean(where=None if mask is None else mask > 0)


def make(fixture: str, mixed: bool, weights: Mapping[str, Array], batch: Batch, device: str) -> Callable[[], float]:
    """A step on the batch, which returns its loss; with `mixed` in float16 under JMP's dynamic loss scale."""
    model = MODELS[fixture](jnp.float16 if mixed else jnp.float32)
    jax_device = jax.devices(device)[0]
    shapes = jax.eval_shape(model.init, jax.random.key(0), batch.inputs)["params"]
    parameters = starting_from(shapes, fixture, weights)
    state = jax.device_put(TrainState.create(apply_fn=model.apply, params=parameters, tx=optax.adam(RATE)), jax_device)
    scale = jax.device_put(jmp.DynamicLossScale(jnp.float32(INITIAL)), jax_device)
    arrays = batch.inputs, batch.targets["output"], batch.mask

    def plain() -> float:
        nonlocal state
        state, loss = plain_step(state, *arrays)
        return float(loss)

    def run_mixed() -> float:
        nonlocal state, scale
        state, scale, loss = mixed_step(state, scale, *arrays)
        return float(loss)

    return run_mixed if mixed else plain
