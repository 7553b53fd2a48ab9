"""Operations, layers and optimizers that JAX, Flax and Optax ship, run on examples as they are and by techniques."""

from collections.abc import Callable, Mapping, Sequence
from functools import cache, cached_property, partial
from inspect import signature
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
import jax.scipy.linalg
import jax.scipy.special
import numpy as np
import optax
import optax.contrib
import orbax.checkpoint as ocp
from flax import nnx, serialization
from flax.errors import TraceContextError

from fixtures.arrays import Array
from frameworks.base import shipped
from frameworks.base.shipped import (
    FACTOR,
    FROZEN,
    HALFWAY,
    RATE,
    ListedOptimizers,
    ListedParts,
    Options,
    gradients,
    incoming,
    infinite,
)
from frameworks.contract import Capability, Unsupported, Values
from frameworks.jax.core.settings import wide_formats

OfLeaves = Callable[..., list[jax.Array]]
"""A function from floating arrays to floating outputs."""
Step = Callable[..., tuple[Any, Any]]
"""The floating outputs of a layer for its inputs, and the gradients of its weights and floating inputs."""
Tree = dict[str, Any]

_FILE = Path(__file__).with_name("shipped.toml")
_INSIDE = {"SpectralNorm": "layer_instance", "WeightNorm": "layer_instance", "RNN": "cell"}
"""Layers around another layer, and the argument that takes it."""
_CLOSED_OVER = "closed-over"
_WITH_LOSS = ("polyak_sgd", "contrib.momo", "contrib.momo_adam")
"""Optimizers that also take the loss."""
_JOINT = ("contrib.dog", "contrib.dowg", "contrib.dadapt_adamw", "contrib.prodigy", *_WITH_LOSS)
"""Optimizers with one rate for all parameters."""
_NEVER_AT_REST = ("fromage", "yogi")
"""Optimizers that move weights without gradients: they shrink weights, or begin with moments above zero."""
_DECAYS = ("weight_decay", "weight_decay_rate")
_COMPILED = ("compiled", "accumulated", "skipped")
"""Techniques whose update is one program; otherwise their conditions would compile with each call."""
_LOOPS = ("contrib.muon",)
"""Optimizers whose update is one program; otherwise their loop would compile with each call."""
_QUICKLY = {"xla_backend_optimization_level": 0}
name_arrays = partial(shipped.name_arrays, np.asarray)


class Operations(ListedParts):
    """Functions of jax.numpy, jax.nn, jax.lax and jax.scipy."""

    file = _FILE
    part = "operations"
    module = jax

    def at(self, name: str, *points: Array) -> tuple[Array, ...]:
        with wide_formats(points[0].dtype == np.float64):
            return tuple(map(np.asarray, _compile_gradients(self.of_arrays(name, len(points)))(*points)))

    def techniques(self) -> tuple[str, ...]:
        return ("recomputed", "without-gradient", "one-input", "used-twice", "scaled", "compiled")

    def compute(self, name: str, technique: str) -> Values:
        function, leaves = _of_leaves(self.find(name), self.inputs(name))
        if technique == "without-gradient":
            return name_arrays("value", function(*leaves))
        if technique == "one-input":
            return name_arrays("gradient", [_differentiate_one_input(function, leaves, i) for i in range(len(leaves))])
        chosen = jax.checkpoint(function) if technique == "recomputed" else function
        if technique == "compiled":
            outputs, gradients = jax.jit(partial(_compute_gradients, chosen, technique))(leaves)
        else:
            outputs, gradients = _compute_gradients(chosen, technique, leaves)
        return name_arrays("value", outputs) | name_arrays("gradient", gradients)


@cache
def _compile_gradients(function: Callable[..., jax.Array]) -> Callable[..., tuple[jax.Array, ...]]:
    """The value and the gradients as one program, which takes a third of the time of single operations."""

    def differentiate(*points: jax.Array) -> tuple[jax.Array, ...]:
        value, pullback = jax.vjp(function, *points)
        return value, *pullback(jnp.ones_like(value))

    return jax.jit(differentiate)


def _of_leaves(part: Callable[..., Any], arguments: Sequence[Any]) -> tuple[OfLeaves, list[jax.Array]]:
    """The part as a function from its floating arrays to the list of its floating outputs; and the arrays."""
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


def _compute_gradients(function: OfLeaves, technique: str, leaves: Sequence[jax.Array]) -> tuple[Any, Any]:
    """The outputs, and the gradient of each leaf."""
    outputs, pullback = jax.vjp(function, *leaves)
    factor = FACTOR if technique == "scaled" else 1.0
    cotangents = [jnp.asarray(incoming(output.shape) * np.float32(factor), output.dtype) for output in outputs]
    if technique == "used-twice":
        pullback(cotangents)
    return outputs, [gradient / factor for gradient in pullback(cotangents)]


def _differentiate_one_input(function: OfLeaves, leaves: Sequence[jax.Array], index: int) -> jax.Array:
    """The gradient of one input while the others are constants."""

    def of_input(value: jax.Array) -> list[jax.Array]:
        return function(*leaves[:index], value, *leaves[index + 1 :])

    _, (gradient,) = _compute_gradients(of_input, "", [leaves[index]])
    return gradient


class Layers(ListedParts):
    """Layers of flax.nnx in training."""

    file = _FILE
    part = "layers"
    module = nnx

    def techniques(self) -> tuple[str, ...]:
        return ("recomputed", "compiled", "copied", "loaded", *_BY_NNX, _CLOSED_OVER)

    def compute(self, name: str, technique: str) -> Values:
        inputs = [jnp.asarray(array) for array in self.inputs(name)]
        layer = self._build(name, 1)
        if technique == _CLOSED_OVER:
            return _name_kinds(_call_compiled_twice(layer, inputs))
        if technique in _BY_NNX:
            return _name_kinds(_step_twice(layer, _BY_NNX[technique], inputs))
        if technique == "copied":
            layer = nnx.clone(layer)
        if technique == "loaded":
            layer = self._loaded[name]
        values = _name_kinds(_differentiate_split(layer, technique, inputs))
        if not technique:
            layer(*inputs)
            second = _name_kinds(_differentiate_split(layer, "", inputs))
            values |= {f"second-{key}": array for key, array in second.items()}
        return values

    @cached_property
    def _loaded(self) -> Mapping[str, nnx.Module]:
        """Layers from another seed, with the saved states of the first ones, except for their random streams."""
        not_random = nnx.Not(nnx.RngState)
        layers, receivers = ({name: self._build(name, seed) for name in self.names()} for seed in (1, 5))
        states = {name: state for name, layer in layers.items() if (state := nnx.state(layer, not_random))}
        with TemporaryDirectory() as folder, ocp.StandardCheckpointer() as checkpointer:
            checkpointer.save(Path(folder) / "layers", states)
            checkpointer.wait_until_finished()
            like = {name: nnx.state(receivers[name], not_random) for name in states}
            for name, state in checkpointer.restore(Path(folder) / "layers", like).items():
                nnx.update(receivers[name], state)
        return receivers

    def _build(self, name: str, seed: int) -> nnx.Module:
        streams = nnx.Rngs(params=seed, dropout=3, carry=3)
        arguments: dict[str, Any] = {}
        if name in _INSIDE:
            inner = nnx.SimpleCell if name == "RNN" else nnx.Linear
            arguments[_INSIDE[name]] = self.listed.build(inner, rngs=streams)
        layer_class = self.find(name)
        if "rngs" in signature(layer_class.__init__).parameters:
            arguments["rngs"] = streams
        layer: nnx.Module = self.listed.build(layer_class, **arguments)
        layer.train()
        return layer


def _floating(nest: Any) -> list[jax.Array]:
    """The floating arrays of outputs or of a state."""
    return [leaf for leaf in jax.tree.leaves(nest) if jnp.issubdtype(leaf.dtype, jnp.floating)]


def _name_kinds(kinds: Mapping[str, Sequence[jax.Array]]) -> dict[str, Array | None]:
    return {key: array for kind, arrays in kinds.items() for key, array in name_arrays(kind, arrays).items()}


def _call_layer(layer: Any, *inputs: jax.Array) -> Any:
    return layer(*inputs)


def _differentiate_split(
    layer: nnx.Module, technique: str, inputs: Sequence[jax.Array]
) -> Mapping[str, Sequence[jax.Array]]:
    """Outputs, gradients and state by a pure function of the layer's state; the layer is unchanged."""
    call = nnx.remat(_call_layer) if technique == "recomputed" else _call_layer
    graph, weights, rest = nnx.split(layer, nnx.Param, ...)

    def function(weights: Any, *values: jax.Array) -> list[jax.Array]:
        return _floating(call(nnx.merge(graph, weights, rest, copy=True), *values))

    leaves = _floating(inputs)
    differentiate = partial(_differentiate, function if leaves else lambda weights: function(weights, *inputs))
    if technique == "compiled":
        differentiate = jax.jit(differentiate)
    outputs, gradients = differentiate(weights, leaves)
    return {"value": outputs, "gradient": gradients, "state": _floating(rest)}


def _differentiate(function: Callable[..., Any], weights: Any, values: Sequence[jax.Array]) -> tuple[Any, Any]:
    outputs, pullback = jax.vjp(function, weights, *values)
    return outputs, jax.tree_util.tree_leaves(pullback([jnp.asarray(incoming(output.shape)) for output in outputs]))


def _call_compiled_twice(layer: nnx.Module, inputs: Sequence[jax.Array]) -> dict[str, Sequence[jax.Array]]:
    """Outputs of two calls of a jitted function that closes over the layer.

    Raises:
        Unsupported: Flax refuses updates of a layer's state in such a function.
    """
    compiled = jax.jit(lambda *values: _floating(layer(*values)))
    try:
        return {f"{turn}value": compiled(*inputs) for turn in ("", "second-")}
    except TraceContextError as error:
        raise Unsupported(Capability.SHIPPED_LAYERS, str(error)) from error


def _step_twice(layer: nnx.Module, step: Step, inputs: Sequence[jax.Array]) -> dict[str, Sequence[jax.Array]]:
    """Outputs and gradients of two steps, and the state before each."""
    result: dict[str, Sequence[jax.Array]] = {}
    for turn in ("", "second-"):
        result[f"{turn}state"] = _floating(nnx.state(layer, nnx.Not(nnx.Param)))
        result[f"{turn}value"], result[f"{turn}gradient"] = step(layer, *inputs)
    return result


def _make_step(call: Callable[..., Any]) -> Step:
    def loss(layer: nnx.Module, *inputs: jax.Array) -> Any:
        outputs = _floating(call(layer, *inputs))
        return sum(jnp.vdot(incoming(output.shape), output) for output in outputs), outputs

    def step(layer: nnx.Module, *inputs: jax.Array) -> tuple[Any, Any]:
        places = (0, *(index for index, array in enumerate(inputs, 1) if _floating(array)))
        (_, outputs), gradients = nnx.value_and_grad(loss, argnums=places, has_aux=True)(layer, *inputs)
        return outputs, _floating(gradients)

    return step


_BY_NNX: Mapping[str, Step] = MappingProxyType(
    {"nnx-compiled": nnx.jit(_make_step(_call_layer)), "nnx-recomputed": nnx.jit(_make_step(nnx.remat(_call_layer)))}
)
"""Techniques of Flax' own transformations, which update the layer in place."""


class OptaxOptimizers(ListedOptimizers):
    """Functions of optax and optax.contrib that return a transformation of gradients."""

    file = _FILE
    module = optax

    def techniques(self) -> tuple[str, ...]:
        return (*_WRAPPED, "loaded", "compiled", "grouped", "injected", "scheduled")

    def options(self, name: str, technique: str) -> Sequence[Options]:
        return self.listed[name][: 1 if technique in _COMPILED else None]

    def get_options_without_decay(self, name: str) -> Options | None:
        if name in _NEVER_AT_REST:
            return None
        arguments = signature(self.find(name)).parameters
        return {decay: 0.0 for decay in _DECAYS if decay in arguments and arguments[decay].default is not None}

    def train(self, name: str, options: Options, technique: str, start: Sequence[Array]) -> Sequence[Array]:
        weights = {str(index): jnp.asarray(value) for index, value in enumerate(start)}
        transformation = self._transformation(name, options, technique)
        if technique == "beside-frozen":
            weights["frozen"] = jnp.ones(FROZEN)
        state = transformation.init(weights)
        step = partial(_apply_step, transformation, {"value": jnp.float32(1.0)} if name in _WITH_LOSS else {})
        if technique in _COMPILED or name in _LOOPS:
            step = jax.jit(step, compiler_options=_QUICKLY)
        for number, values in enumerate(gradients(start, technique)):
            update = _tree(values, weights)
            if number == HALFWAY and technique == "loaded":
                weights, state = _save_and_load((weights, state), start, transformation)
            if number == HALFWAY and technique == "skipped":
                weights, state = step(weights, state, _tree(infinite(start), weights))
            for _ in range(2 if technique == "accumulated" else 1):
                weights, state = step(weights, state, update)
        return [np.asarray(weights[str(index)]) for index in range(len(start))]

    def _transformation(self, name: str, options: Options, technique: str) -> optax.GradientTransformationExtraArgs:
        make = self.find(name)
        parameters = signature(make).parameters
        arguments: dict[str, Any] = {**({"learning_rate": RATE} if "learning_rate" in parameters else {}), **options}
        if technique == "injected":
            static = [name for name in parameters if name != "learning_rate"]
            return optax.with_extra_args_support(optax.inject_hyperparams(make, static_args=static)(**arguments))
        if technique == "scheduled":
            if "Callable" not in str(parameters.get("learning_rate")):
                raise Unsupported(Capability.SHIPPED_OPTIMIZERS, f"{name} documents no schedule as learning rate")
            arguments["learning_rate"] = optax.constant_schedule(RATE)
        optimizer = make(**arguments)
        if technique == "grouped" and name not in _JOINT:
            optimizer = optax.multi_transform({"0": optimizer, "others": make(**arguments)}, _labels)
        wrap = _WRAPPED.get(technique)
        return optax.with_extra_args_support(wrap(optimizer) if wrap else optimizer)


def _labels(weights: Tree) -> Tree:
    return {name: name if name == "0" else "others" for name in weights}


def _trained_or_not(weights: Tree) -> Tree:
    return {name: "frozen" if name == "frozen" else "trained" for name in weights}


def _make_multi_steps(optimizer: Any) -> Any:
    steps = optax.MultiSteps(optimizer, 2)
    return optax.GradientTransformationExtraArgs(steps.init, steps.update)


_WRAPPED: Mapping[str, Callable[[Any], Any]] = {
    "accumulated": _make_multi_steps,
    "skipped": lambda optimizer: optax.apply_if_finite(optimizer, 5),
    "clipped-loosely": lambda optimizer: optax.chain(
        optax.clip_by_global_norm(2.0**30), optax.clip(2.0**30), optimizer
    ),
    "beside-frozen": lambda optimizer: optax.multi_transform(
        {"trained": optimizer, "frozen": optax.set_to_zero()}, _trained_or_not
    ),
}
"""Transformations around an optimizer, by technique."""


def _apply_step(optimizer: Any, more: Mapping[str, Any], weights: Tree, state: Any, update: Tree) -> tuple[Tree, Any]:
    moves, state = optimizer.update(update, state, weights, **more)
    return optax.apply_updates(weights, moves), state


def _tree(values: Sequence[Array], weights: Tree) -> Tree:
    update = {str(index): jnp.asarray(value) for index, value in enumerate(values)}
    return {name: update.get(name, jnp.ones_like(weight)) for name, weight in weights.items()}


def _save_and_load(saved: Any, start: Sequence[Array], optimizer: Any) -> Any:
    """The saved arrays, loaded into new weights and a new state."""
    weights = {str(index): jnp.asarray(value) for index, value in enumerate(start)}
    restored: Any = serialization.from_bytes((weights, optimizer.init(weights)), serialization.to_bytes(saved))
    return jax.tree.map(jnp.asarray, restored)
