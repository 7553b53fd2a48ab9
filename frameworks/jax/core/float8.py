"""Float8 training as documented by Flax: scales and amax histories are a collection that gradients overwrite.

`TrainState` keeps parameters and that collection side by side, and overwrites the latter itself. Here both are leaves
of one flat tree, those of the collection below its name.
"""

from collections.abc import Callable, Mapping
from functools import partial, reduce
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from flax.linen import fp8_ops
from flax.linen.fp8_ops import OVERWRITE_WITH_GRADIENT

from fixtures.arrays import Array
from frameworks.contract import AmaxHistory, DelayedRule, Float8Rule, Operand, PassResult
from frameworks.jax.core.arrays import Flat, flat, nest_leaves, to_array

RULE = Float8Rule(DelayedRule("float8_e4m3fn", "float8_e5m2", lag=1), skipped="stays")
_OPERANDS: dict[Operand, str] = {"input": "input", "kernel": "kernel", "gradient": "output_grad"}
_BELOW = f"{OVERWRITE_WITH_GRADIENT}/"


def product_of(history: int | None) -> Any:
    """Constructor of a dense layer's product, None for JAX's own."""
    return None if history is None else partial(nn.Fp8DirectDotGeneralOp, amax_history_length=history)


def amax_leaves(leaves: Mapping[str, Any]) -> dict[str, Any]:
    """Leaves of the collection."""
    return {path: value for path, value in leaves.items() if path.startswith(_BELOW)}


def trained_leaves(leaves: Mapping[str, Any]) -> dict[str, Any]:
    """Leaves that an optimizer trains."""
    return {path: value for path, value in leaves.items() if not path.startswith(_BELOW)}


def with_memory(leaves: Flat, variables: Mapping[str, Any]) -> Flat:
    """Parameters with the leaves of the collection among a module's variables, if there are any."""
    memory = flat(variables.get(OVERWRITE_WITH_GRADIENT, {}))
    return leaves | {f"{_BELOW}{path}": value for path, value in memory.items()}


def collections(leaves: Flat) -> dict[str, Any]:
    """The variables of a module that has these leaves."""
    memory = {path.removeprefix(_BELOW): value for path, value in amax_leaves(leaves).items()}
    result = {"params": nest_leaves(trained_leaves(leaves))}
    return result | ({OVERWRITE_WITH_GRADIENT: nest_leaves(memory)} if memory else {})


def state_tree(leaves: Flat) -> Any:
    """The tree that `TrainState` takes as parameters or gradients: one without a collection is that of parameters."""
    memory = amax_leaves(leaves)
    return {"params": trained_leaves(leaves), OVERWRITE_WITH_GRADIENT: memory} if memory else leaves


def leaves_in(tree: Any) -> Flat:
    """The leaves of a tree that `state_tree` made."""
    result: Flat = tree["params"] | tree[OVERWRITE_WITH_GRADIENT] if OVERWRITE_WITH_GRADIENT in tree else tree
    return result


def add_gradients(left: Any, right: Any) -> Any:
    """The sum of two gradients in trees of leaves by place; of what overwrites the collection the larger."""

    def combine_leaves(path: Any, one: jax.Array, other: jax.Array) -> jax.Array:
        overwrites = any(str(getattr(key, "key", "")).startswith(_BELOW) for key in path)
        return jnp.maximum(one, other) if overwrites else one + other

    return jax.tree.map_with_path(combine_leaves, left, right)


def total(gradients: list[Any]) -> Any:
    """The sum of several."""
    return reduce(add_gradients, gradients)


def over_window(before: Any, after: Any, overwritten: Any, last: Any) -> tuple[Any, Any]:
    """Parameters after a micro-batch of a window, and what has been gathered to overwrite the collection with.

    Args:
        before, after: parameters of a `TrainState` around a micro-batch.
        overwritten: what the micro-batches before it gave.
        last: whether it ended the window.
    """
    gathered = jax.tree.map(jnp.maximum, overwritten, after[OVERWRITE_WITH_GRADIENT])  # as Flax's type `fm32` adds
    window = jax.tree.map(partial(jnp.where, last), gathered, before[OVERWRITE_WITH_GRADIENT])
    rest = jax.tree.map(lambda leaf: jnp.where(last, jnp.zeros_like(leaf), leaf), gathered)
    return after | {OVERWRITE_WITH_GRADIENT: window}, rest


def nothing_gathered(tree: Any) -> Any:
    """Initial gathered values of a window, None without float8."""
    memory = tree.get(OVERWRITE_WITH_GRADIENT)
    return None if memory is None else jax.tree.map(jnp.zeros_like, memory)


def operand_histories(leaves: Mapping[str, Any], below: str = "") -> dict[Operand, AmaxHistory]:
    """The delayed-scaling state of a layer, whose leaves are named from `below` on."""
    return {
        operand: AmaxHistory(float(leaves[f"{below}{name}_scale"][0]), to_array(leaves[f"{below}{name}_amax_history"]))
        for operand, name in _OPERANDS.items()
    }


def amax_histories(leaves: Flat, canonical: Mapping[str, str]) -> dict[str, dict[Operand, AmaxHistory]]:
    """The delayed-scaling state by the names of weights; `canonical` has the names of parameters by place."""
    result: dict[str, dict[Operand, AmaxHistory]] = {}
    for path in amax_leaves(leaves):
        layer, _, leaf = path.removeprefix(_BELOW).rpartition("/")
        if leaf == "input_scale":
            weight = canonical[f"{layer.rpartition('/')[0]}/kernel"]
            result[weight] = operand_histories(leaves, f"{_BELOW}{layer}/")
    return result


def delayed_scaling_state(leaves: Flat) -> dict[str, Array]:
    """The delayed-scaling state, by place."""
    return {path: to_array(value) for path, value in amax_leaves(leaves).items()}


_DIMENSIONS = (((1,), (0,)), ((), ()))

ONLY_COMPILED = "outside compiled programs JAX does not hold arrays of Flax's type fm32, whose sum is the larger of two"


class FlaxDelayedProduct:
    """`Fp8DirectDotGeneralOp` on `device`.

    The scales of several micro-batches are of Flax's type `fm32`, whose sum is the larger of two.
    """

    rule = RULE.product

    def __init__(self, kernel: Array, history: int, device: jax.Device, *, jit: bool) -> None:
        self._place, self._jit = device, jit
        self._operation = fp8_ops.Fp8DirectDotGeneralOp(amax_history_length=history)
        with jax.default_device(device):
            self._kernel = jnp.asarray(kernel)
            inputs = jnp.zeros((1, len(kernel)), jnp.float32)
            self._step = jax.jit(self._train_product)
            self._state: Any = self._operation.init({}, inputs, self._kernel, _DIMENSIONS)[
                fp8_ops.OVERWRITE_WITH_GRADIENT
            ]

    def train(self, *window: tuple[Array, Array]) -> tuple[PassResult, ...]:
        inputs, gradients = ([jnp.asarray(array) for array in arrays] for arrays in zip(*window, strict=True))
        with jax.default_device(self._place), jax.disable_jit(not self._jit):
            results, self._state = self._step(self._state, self._kernel, inputs, gradients)
        return tuple(PassResult(*(np.asarray(array) for array in passed)) for passed in results)

    def predict(self, inputs: Array) -> Array:
        with jax.default_device(self._place), jax.disable_jit(not self._jit):
            return np.asarray(self._output(self._state, self._kernel, jnp.asarray(inputs)))

    def amax_histories(self) -> dict[Operand, AmaxHistory]:
        return operand_histories(self._state)

    def _output(self, state: Any, kernel: jax.Array, inputs: jax.Array) -> jax.Array:
        variables = {fp8_ops.OVERWRITE_WITH_GRADIENT: state}
        output: jax.Array = self._operation.apply(variables, inputs, kernel, _DIMENSIONS)
        return output

    def _train_product(
        self, state: Any, kernel: jax.Array, inputs: list[jax.Array], gradients: list[jax.Array]
    ) -> tuple[list[tuple[jax.Array, ...]], Any]:
        """Results of each micro-batch, and the state overwritten by the gradients of all of them."""
        if len(inputs) > 1:
            state = jax.tree.map(lambda leaf: jax.lax.convert_element_type(leaf, fp8_ops.fm32), state)

        def outputs_of(state: Any, kernels: list[jax.Array], inputs: list[jax.Array]) -> list[jax.Array]:
            return [self._output(state, own, array) for own, array in zip(kernels, inputs, strict=True)]

        outputs, backward = jax.vjp(outputs_of, state, [kernel] * len(inputs), inputs)
        overwritten, of_kernel, of_inputs = backward(gradients)
        overwritten = jax.tree.map(lambda leaf: jax.lax.convert_element_type(leaf, jnp.float32), overwritten)
        return list(zip(outputs, of_inputs, of_kernel, strict=True)), overwritten


def joins_windows(factory: Callable[[], FlaxDelayedProduct]) -> bool:
    """Whether a window of two micro-batches is one step of the larger value."""
    product = factory()
    small, large = ((np.full((1, 16), value, np.float32), np.ones((1, 16), np.float32)) for value in (1.0, 8.0))
    product.train(large, small)
    return float(product.amax_histories()["input"].amax.max()) == 8.0
