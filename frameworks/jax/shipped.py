"""Operations, layers, optimizers and functions of JAX and Flax with examples, and their results by technique."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import cache, cached_property, partial
from inspect import signature
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
import optax
import optax.contrib
import orbax.checkpoint as ocp
from flax import nnx, serialization
from flax.errors import TraceContextError
from jax import lax

from fixtures.arrays import Array
from frameworks.base.shipped import (
    FACTOR,
    FROZEN,
    HALFWAY,
    RATE,
    BaseFunctions,
    Function,
    ListedOptimizers,
    ListedParts,
    Options,
    gradients,
    incoming,
    infinite,
    square,
)
from frameworks.contract import Capability, Unsupported, Values
from frameworks.jax.core.arrays import wide_formats

Step = Callable[..., tuple[Any, Any]]
"""The floating outputs of a layer for its inputs, and the gradients of its weights and floating inputs."""


def floating(nest: Any) -> list[jax.Array]:
    """The floating arrays of outputs or of a state."""
    return [leaf for leaf in jax.tree.leaves(nest) if jnp.issubdtype(leaf.dtype, jnp.floating)]


def call_layer(layer: Any, *values: jax.Array) -> Any:
    """The result of a call of a layer."""
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
        Unsupported: Flax refuses updates of a layer's state in a jitted function that closes over the layer.
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


OfLeaves = Callable[..., list[jax.Array]]


class Operations(ListedParts):
    """Functions of jax.numpy, jax.nn, jax.lax and jax.scipy."""

    file = Path(__file__).with_name("shipped.toml")
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
            return _name_arrays("value", function(*leaves))
        if technique == "one-input":
            return _name_arrays("gradient", [_of_one(function, leaves, index) for index in range(len(leaves))])
        chosen = jax.checkpoint(function) if technique == "recomputed" else function
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
    outputs, pullback = jax.vjp(function, *leaves)
    factor = FACTOR if technique == "scaled" else 1.0
    cotangents = [jnp.asarray(incoming(output.shape) * np.float32(factor), output.dtype) for output in outputs]
    if technique == "used-twice":
        pullback(cotangents)
    return outputs, [gradient / factor for gradient in pullback(cotangents)]


def _of_one(function: OfLeaves, leaves: Sequence[jax.Array], index: int) -> jax.Array:
    """The gradient of one input while the others are constants."""
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
        """Outputs, gradients and state by a pure function of the layer's state; the layer is unchanged."""
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


Tree = dict[str, Any]
_VALUED = ("polyak_sgd", "contrib.momo", "contrib.momo_adam")
"""Optimizers that also take the loss."""
_JOINT = ("contrib.dog", "contrib.dowg", "contrib.dadapt_adamw", "contrib.prodigy", *_VALUED)
"""Optimizers with one rate for all parameters."""
_NEVER_AT_REST = ("fromage", "yogi")
"""Optimizers that move weights without gradients: they shrink weights, or begin with moments above zero."""
_DECAYS = ("weight_decay", "weight_decay_rate")


class OptaxOptimizers(ListedOptimizers):
    """Functions of optax and optax.contrib that return a transformation of gradients."""

    file = Path(__file__).with_name("shipped.toml")
    module = optax

    def techniques(self) -> tuple[str, ...]:
        return (*_WRAPPED, "loaded", "compiled", "grouped", "injected", "scheduled")

    def options(self, name: str, technique: str) -> Sequence[Options]:
        return self.listed[name][: 1 if technique in _COMPILED else None]

    def get_options_without_decay(self, name: str) -> Options | None:
        if name in _NEVER_AT_REST:
            return None
        taken = signature(self.find(name)).parameters
        return {decay: 0.0 for decay in _DECAYS if decay in taken and taken[decay].default is not None}

    def train(self, name: str, options: Options, technique: str, start: Sequence[Array]) -> Sequence[Array]:
        weights = {str(index): jnp.asarray(value) for index, value in enumerate(start)}
        transformation = self._transformation(name, options, technique)
        if technique == "beside-frozen":
            weights["frozen"] = jnp.ones(FROZEN)
        state = transformation.init(weights)
        step = partial(_apply_step, transformation, {"value": jnp.float32(1.0)} if name in _VALUED else {})
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
        taken = signature(make).parameters
        arguments: dict[str, Any] = {**({"learning_rate": RATE} if "learning_rate" in taken else {}), **options}
        if technique == "injected":
            static = [name for name in taken if name != "learning_rate"]
            return optax.with_extra_args_support(optax.inject_hyperparams(make, static_args=static)(**arguments))
        if technique == "scheduled":
            if "Callable" not in str(taken.get("learning_rate")):
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
"""Transformations around an optimizer."""
_COMPILED = ("compiled", "accumulated", "skipped")
"""Techniques whose update is one program; otherwise their conditions would compile with each call."""
_LOOPS = ("contrib.muon",)
"""Optimizers whose update is one program; otherwise their loop would compile with each call."""
_QUICKLY = {"xla_backend_optimization_level": 0}


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


@jax.custom_vjp
def _sine_with_half(x: jax.Array) -> jax.Array:
    return jnp.sin(x)


_sine_with_half.defvjp(lambda x: (jnp.sin(x), None), lambda _, gradient: (gradient * 0.5,))


def _update_slices(x: jax.Array) -> Any:
    y = x.at[0].set(2.0 * x[1]).at[:, 2].add(x[:, 3]).at[3, 3].multiply(3.0)
    return y.at[1].min(0.5), y.at[jnp.array([0, 0, 2])].add(1.0)


def _backward_scan(x: jax.Array) -> Any:
    return lax.scan(lambda total, row: (total * row, total + row), jnp.ones(4), x, reverse=True, unroll=2)


def _where_branches(x: jax.Array) -> Any:
    y = jnp.where(x > x.mean(1, keepdims=True), jnp.sin(x), jnp.cos(x))
    return y * jnp.linspace(0.25, 1.25, y.size).reshape(y.shape)


def _sort_rows(x: jax.Array) -> Any:
    places = jnp.argsort(x, axis=1)
    return jnp.cumsum(jnp.sort(x, 1), 1), jnp.take_along_axis(x, places[:, :2], 1), lax.top_k(x, 2)[0]


def _inner_jit(x: jax.Array) -> Any:
    inner = jax.jit(lambda y, power: y**power, static_argnums=1)
    return inner(x, 2) + inner(x, 3)


def _low(x: jax.Array) -> Any:
    return (x.astype(jnp.bfloat16) * 3).astype(jnp.float32) * (x.astype(jnp.float16) ** 2).astype(jnp.float32)


def _resize_images(x: jax.Array) -> Any:
    image = x.reshape(-1, 2, 2, 1)
    methods = ("nearest", "linear", "cubic", "lanczos3")
    return [jax.image.resize(image, (len(image), 5, 3, 1), method) for method in methods]


def _low_resized(x: jax.Array) -> Any:
    low = jnp.tanh(x.astype(jnp.float16)).reshape(-1, 2, 2, 1)
    return jax.image.resize(low, (len(low), 5, 3, 1), "linear").astype(jnp.float32)


_FUNCTIONS: Mapping[str, Function] = MappingProxyType(
    {
        "updated": _update_slices,
        "scattered": lambda x: jax.ops.segment_sum(x * x, jnp.array([3, 0, 3, 1]), 4),
        "branch": lambda x: lax.cond(x.sum() > 0.0, jnp.exp, jnp.sin, x),
        "switch": lambda x: lax.switch(jnp.argmax(x[0]), [jnp.sin, jnp.cos, jnp.tanh, jnp.exp], x),
        "loop": lambda x: lax.fori_loop(0, 3, lambda _, y: jnp.tanh(y @ x), x),
        "scan": lambda x: lax.scan(lambda total, row: (total + row * row, total * row), jnp.zeros(4), x),
        "backward-scan": _backward_scan,
        "mapped": lambda x: (jax.vmap(lambda row: row * row.sum())(x), lax.map(lambda row: row.prod(), x)),
        "associative": lambda x: (lax.associative_scan(jnp.multiply, x), lax.cummax(x, axis=1)),
        "chosen": _where_branches,
        "own-gradient": lambda x: (_sine_with_half(x), jax.grad(lambda y: _sine_with_half(y).sum())(x)),
        "jacobian": lambda x: jax.jacrev(lambda y: (y @ y).prod(0))(x),
        "hessian": lambda x: jax.hessian(lambda y: jnp.tanh((y * jnp.sin(y)).sum()))(x[0]),
        "containers": lambda x: {"a": x * 2.0, "b": [x.sum(), (x - 1.0,)]},
        "stopped": lambda x: x / lax.stop_gradient(x.std()) * lax.stop_gradient(x),
        "determinant": lambda x: tuple(jnp.linalg.slogdet(x + 3.0 * jnp.eye(4))),
        "ordered": _sort_rows,
        "inner-jit": _inner_jit,
        "low": _low,
        "resized": _resize_images,
        "low-resized": _low_resized,
    }
)


class JAXFunctions(BaseFunctions):
    """Functions differentiated by jax.vjp; without a technique nothing is compiled as a whole."""

    functions = _FUNCTIONS

    def techniques(self) -> tuple[str, ...]:
        return ("compiled", "compiled-inside", "recomputed", "mapped")

    def compute(self, name: str, technique: str) -> Values:
        outputs, gradient = self._apply_technique(_floating_outputs(self.functions[name]), technique)(
            jnp.asarray(square())
        )
        values = {f"value/{index}": np.asarray(output) for index, output in enumerate(outputs)}
        return {**values, "gradient/0": np.asarray(gradient)}

    def _apply_technique(self, function: Function, technique: str) -> Function:
        """The technique as a function from x to outputs and gradient."""
        match technique:
            case "compiled":
                return jax.jit(_with_gradient(function))
            case "compiled-inside":
                return jax.jit(_with_gradient(jax.jit(function)))
            case "recomputed":
                return jax.jit(_with_gradient(jax.checkpoint(function)))
            case "mapped":
                mapped = jax.jit(jax.vmap(_with_gradient(function)))
                return lambda x: jax.tree.map(lambda leaf: leaf[1], mapped(jnp.stack([x[::-1], x])))
        return _with_gradient(function)


def _floating_outputs(function: Function) -> Function:
    return lambda x: [leaf for leaf in jax.tree.leaves(function(x)) if jnp.issubdtype(leaf.dtype, jnp.inexact)]


def _with_gradient(function: Function) -> Function:
    def both(x: jax.Array) -> Any:
        outputs, pullback = jax.vjp(function, x)
        return outputs, pullback([jnp.asarray(incoming(output.shape), output.dtype) for output in outputs])[0]

    return both
