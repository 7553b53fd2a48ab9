"""Operations of JAX and layers of Flax NNX with examples, what techniques make of them, and state updated in place."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import cache, cached_property, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Any

import jax
import jax.image
import jax.numpy as jnp
import jax.scipy.linalg
import jax.scipy.special
import numpy as np
import orbax.checkpoint as ocp
from flax import nnx
from flax.errors import TraceContextError

from fixtures.arrays import Array
from frameworks.base.shipped import FACTOR, ListedParts, incoming
from frameworks.contract import Capability, Unsupported, Values
from frameworks.jax.core.arrays import wide_formats

Step = Callable[..., tuple[Any, Any]]
"""The floating outputs of a layer for its inputs, and the gradients of its weights and floating inputs."""


def floating(nest: Any) -> list[jax.Array]:
    """The floating arrays of outputs or of a state."""
    return [leaf for leaf in jax.tree.leaves(nest) if jnp.issubdtype(leaf.dtype, jnp.floating)]


def call_layer(layer: Any, *values: jax.Array) -> Any:
    """What a layer returns."""
    return layer(*values)


def _step(call: Callable[..., Any]) -> Step:
    def loss(layer: nnx.Module, *inputs: jax.Array) -> Any:
        outputs = floating(call(layer, *inputs))
        return sum(jnp.vdot(incoming(output.shape), output) for output in outputs), outputs

    def step(layer: nnx.Module, *inputs: jax.Array) -> tuple[Any, Any]:
        places = (0, *(index for index, array in enumerate(inputs, 1) if floating(array)))
        (_, outputs), gradients = nnx.value_and_grad(loss, argnums=places, has_aux=True)(layer, *inputs)
        return outputs, floating(gradients)

    return step


_BY_NNX: Mapping[str, Step] = MappingProxyType(
    {"nnx-compiled": nnx.jit(_step(call_layer)), "nnx-recomputed": nnx.jit(_step(nnx.remat(call_layer)))}
)
CLOSED_OVER = "closed-over"
IN_PLACE = (*_BY_NNX, CLOSED_OVER)
"""Techniques by which a layer is called twice."""


def two_calls(layer: nnx.Module, technique: str, inputs: Sequence[jax.Array]) -> dict[str, Sequence[jax.Array]]:
    """Outputs, gradients and state before each of two calls, by kind.

    Raises:
        Unsupported: Flax refuses that a function that `jax.jit` compiles updates the state of a layer it closes over.
    """
    result: dict[str, Sequence[jax.Array]] = {}
    compiled = jax.jit(lambda *values: floating(layer(*values)))
    for turn in ("", "second-"):
        if technique == CLOSED_OVER:
            try:
                result[f"{turn}value"] = compiled(*inputs)
            except TraceContextError as error:
                raise Unsupported(Capability.SHIPPED_LAYERS, str(error)) from error
            continue
        result[f"{turn}state"] = floating(nnx.state(layer, nnx.Not(nnx.Param)))
        result[f"{turn}value"], result[f"{turn}gradient"] = _BY_NNX[technique](layer, *inputs)
    return result


Function = Callable[..., list[jax.Array]]


def _same(function: Function) -> Function:
    return function


_DIFFERENTIATED: Mapping[str, Callable[[Function], Function]] = {"recomputed": jax.checkpoint}
"""Functions that are differentiated in place of the part."""


class Operations(ListedParts):
    """Functions of jax.numpy, jax.nn, jax.lax and jax.scipy."""

    file = Path(__file__).with_name("shipped.toml")
    part = "operations"
    module = jax

    def at(self, name: str, *points: Array) -> tuple[Array, ...]:
        with wide_formats(points[0].dtype == np.float64):
            return tuple(map(np.asarray, _compile_gradients(self.of_arrays(name, len(points)))(*points)))

    def techniques(self) -> tuple[str, ...]:
        return (*_DIFFERENTIATED, "without-gradient", "one-input", "used-twice", "scaled", "compiled")

    def compute(self, name: str, technique: str) -> Values:
        function, leaves = _of_leaves(self.find(name), self.inputs(name))
        if technique == "without-gradient":
            return _name_arrays("value", function(*leaves))
        if technique == "one-input":
            return _name_arrays("gradient", [_of_one(function, leaves, index) for index in range(len(leaves))])
        chosen = _DIFFERENTIATED.get(technique, _same)(function)
        if technique == "compiled":
            outputs, gradients = jax.jit(partial(_compute_gradients, chosen, technique))(leaves)
        else:
            outputs, gradients = _compute_gradients(chosen, technique, leaves)
        return _name_arrays("value", outputs) | _name_arrays("gradient", gradients)


@cache
def _compile_gradients(function: Callable[..., jax.Array]) -> Callable[..., tuple[jax.Array, ...]]:
    """The value and the gradients as one program, which takes a third of the time of single operations."""

    def differentiate(*points: jax.Array) -> tuple[jax.Array, ...]:
        value, pullback = jax.vjp(function, *points)
        return value, *pullback(jnp.ones_like(value))

    return jax.jit(differentiate)


def _of_leaves(part: Callable[..., Any], arguments: Sequence[Any]) -> tuple[Function, list[jax.Array]]:
    """The part as a function of its floating arrays, to the list of its floating outputs; and the arrays."""
    flat, nest = jax.tree_util.tree_flatten(list(arguments), is_leaf=lambda node: isinstance(node, tuple))
    places = [i for i, leaf in enumerate(flat) if isinstance(leaf, np.ndarray) and leaf.dtype == np.float32]
    leaves = [jnp.asarray(flat[index]) for index in places]

    def function(*values: jax.Array) -> list[jax.Array]:
        filled = [jnp.asarray(leaf) if isinstance(leaf, np.ndarray) else leaf for leaf in flat]
        for index, value in zip(places, values, strict=True):
            filled[index] = value
        result = jax.tree_util.tree_leaves(part(*jax.tree_util.tree_unflatten(nest, filled)))
        return [output for output in result if jnp.issubdtype(output.dtype, jnp.inexact)]

    return function, leaves


def _compute_gradients(function: Function, technique: str, leaves: Sequence[jax.Array]) -> tuple[Any, Any]:
    outputs, pullback = jax.vjp(function, *leaves)
    factor = FACTOR if technique == "scaled" else 1.0
    cotangents = [jnp.asarray(incoming(output.shape) * np.float32(factor), output.dtype) for output in outputs]
    if technique == "used-twice":
        pullback(cotangents)
    return outputs, [gradient / factor for gradient in pullback(cotangents)]


def _of_one(function: Function, leaves: Sequence[jax.Array], index: int) -> jax.Array:
    """The gradient of one input, which alone is differentiated."""
    return _compute_gradients(
        lambda value: function(*leaves[:index], value, *leaves[index + 1 :]), "", [leaves[index]]
    )[1][0]


def _name_arrays(kind: str, arrays: Sequence[jax.Array]) -> dict[str, Any]:
    return {f"{kind}/{index}": np.asarray(array) for index, array in enumerate(arrays)}


_INSIDE = {"SpectralNorm": "layer_instance", "WeightNorm": "layer_instance", "RNN": "cell"}
"""Layers around another layer, and the argument that takes it."""


class Layers(ListedParts):
    """Layers of flax.nnx in training."""

    file = Operations.file
    part = "layers"
    module = nnx

    def techniques(self) -> tuple[str, ...]:
        return ("recomputed", "compiled", "copied", "loaded", *IN_PLACE)

    def compute(self, name: str, technique: str) -> Values:
        inputs = [jnp.asarray(array) for array in self.inputs(name)]
        layer = self._build(name, 1)
        if technique in IN_PLACE:
            return _of_kinds(two_calls(layer, technique, inputs))
        if technique == "copied":
            layer = nnx.clone(layer)
        if technique == "loaded":
            layer = self._loaded[name]
        values = _of_kinds(self._pure(layer, technique, inputs))
        if not technique:
            layer(*inputs)
            values |= {f"second-{key}": array for key, array in _of_kinds(self._pure(layer, "", inputs)).items()}
        return values

    @staticmethod
    def _pure(layer: nnx.Module, technique: str, inputs: Sequence[jax.Array]) -> Mapping[str, Sequence[jax.Array]]:
        """Outputs, gradients and state by a pure function of the layer's state, which stays as it is."""
        call = nnx.remat(call_layer) if technique == "recomputed" else call_layer
        graph, weights, rest = nnx.split(layer, nnx.Param, ...)

        def function(weights: Any, *values: jax.Array) -> list[jax.Array]:
            return floating(call(nnx.merge(graph, weights, rest, copy=True), *values))

        leaves = floating(inputs)
        chosen = function if leaves else lambda weights: function(weights, *inputs)
        pulled = jax.jit(partial(_of_weights, chosen)) if technique == "compiled" else partial(_of_weights, chosen)
        outputs, gradients = pulled(weights, leaves)
        return {"value": outputs, "gradient": gradients, "state": floating(rest)}

    @cached_property
    def _loaded(self) -> Mapping[str, nnx.Module]:
        """Layers from another seed, with the saved states of the first ones, except for their random streams."""
        not_random = nnx.Not(nnx.RngState)
        layers, others = ({name: self._build(name, seed) for name in self.names()} for seed in (1, 5))
        states = {name: state for name, layer in layers.items() if (state := nnx.state(layer, not_random))}
        with TemporaryDirectory() as folder, ocp.StandardCheckpointer() as checkpointer:
            checkpointer.save(Path(folder) / "layers", states)
            checkpointer.wait_until_finished()
            wanted = {name: nnx.state(others[name], not_random) for name in states}
            for name, state in checkpointer.restore(Path(folder) / "layers", wanted).items():
                nnx.update(others[name], state)
        return others

    def _build(self, name: str, seed: int) -> nnx.Module:
        streams = nnx.Rngs(params=seed, dropout=3, carry=3)
        more: dict[str, Any] = {}
        if name in _INSIDE:
            inner = nnx.SimpleCell if name == "RNN" else nnx.Linear
            more[_INSIDE[name]] = self.listed.build(inner, rngs=streams)
        kind = self.find(name)
        if "rngs" in inspect.signature(kind.__init__).parameters:
            more["rngs"] = streams
        layer: nnx.Module = self.listed.build(kind, **more)
        layer.train()
        return layer


def _of_kinds(kinds: Mapping[str, Sequence[jax.Array]]) -> dict[str, Any]:
    return {key: array for kind, arrays in kinds.items() for key, array in _name_arrays(kind, arrays).items()}


def _of_weights(function: Callable[..., Any], weights: Any, values: Sequence[jax.Array]) -> tuple[Any, Any]:
    outputs, pullback = jax.vjp(function, weights, *values)
    return outputs, jax.tree_util.tree_leaves(pullback([jnp.asarray(incoming(output.shape)) for output in outputs]))
