"""JAX's casts to 8-bit formats, products of 8 bits, Flax's float8 training, and post-training quantization by Qwix."""

import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial, reduce
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from flax.linen import fp8_ops
from flax.linen.fp8_ops import OVERWRITE_WITH_GRADIENT

from fixtures.arrays import Array
from fixtures.model import Model
from frameworks.base import BaseFormats
from frameworks.contract import (
    AmaxHistory,
    Calibrated,
    Capability,
    CastRule,
    DelayedRule,
    Float8Rule,
    LinearRule,
    Operand,
    PassResult,
    Quantized,
    QuantRule,
)
from frameworks.jax.core.layers import Layout, Network, leaves_of
from frameworks.jax.core.settings import Flat, flat, is_installed, nest_leaves, wide_formats

_INFINITE = CastRule("inf", "inf")
_NAN = CastRule("nan", "nan")
_CASTS = {
    "float8_e4m3fn": _NAN,
    "float8_e5m2": _INFINITE,
    "float8_e4m3fnuz": _NAN,
    "float8_e5m2fnuz": _NAN,
    "float8_e4m3": _INFINITE,
    "float8_e3m4": _INFINITE,
    "float8_e8m0fnu": _NAN,
}
"""What becomes of values beyond the range and of infinities in a cast to each format."""

RULE = Float8Rule(DelayedRule("float8_e4m3fn", "float8_e5m2", lag=1), skipped="stays")
_OPERANDS: dict[Operand, str] = {"input": "input", "kernel": "kernel", "gradient": "output_grad"}
"""Flax' names of the operands whose scales and amax histories a layer keeps."""
_BELOW = f"{OVERWRITE_WITH_GRADIENT}/"
"""Prefix of the paths of leaves that gradients overwrite."""
_DIMENSIONS = (((1,), (0,)), ((), ()))
"""Contracted and batch dimensions of a product of matrices."""
ONLY_COMPILED = "outside compiled programs JAX does not hold arrays of Flax's type fm32, whose sum is the larger of two"

INSTALLED = is_installed("qwix")
NOT_INSTALLED = "qwix is not installed: pip install qwix"
_FOLDER = "quantized"

_TOO_SMALL = 2.0**-63
"""The root of the smallest normal float32, below which Qwix replaces a scale."""


def _symmetric(low: int, axis: Any) -> QuantRule:
    """A symmetric rule of integers from `low` on; the range ends half a code beyond the highest one."""
    return QuantRule(low, -low - 1, -low - 0.5, axis=axis, unit_below=_TOO_SMALL)


_RULES: Mapping[str, LinearRule] = MappingProxyType(
    {
        "dynamic-int8": LinearRule(_symmetric(-128, 0), inputs=_symmetric(-128, 1)),
        "weight-int8": LinearRule(_symmetric(-128, 0)),
        "weight-int4": LinearRule(_symmetric(-8, 0)),
    }
)
_FORMATS = MappingProxyType(
    {
        "dynamic-int8": {"weight_qtype": jnp.int8, "act_qtype": jnp.int8},
        "weight-int8": {"weight_qtype": jnp.int8},
        "weight-int4": {"weight_qtype": jnp.int4},
    }
)
MISSING = () if INSTALLED else tuple(Capability(f"quantization.{name}") for name in _RULES)
"""Techniques that this installation lacks."""


@contextmanager
def _on(device: jax.Device, *, jit: bool = True) -> Iterator[None]:
    """A context on a device, compiled or not, without the warning that Qwix uses a deprecated name of Flax."""
    with jax.default_device(device), jax.disable_jit(not jit), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "'VariableState' was removed", DeprecationWarning, r"qwix\.")
        yield


class JaxFormats(BaseFormats):
    """Casts by `astype`; codes by `jax.lax.bitcast_convert_type`. Compiled, unless `jit` is False."""

    def __init__(self, device: jax.Device, *, jit: bool) -> None:
        self._place = device
        self._jit = jit

    def casts(self) -> Mapping[str, CastRule]:
        return {name: rule for name, rule in _CASTS.items() if hasattr(jnp, name)}

    def encode(self, values: Array, format_name: str) -> Array:
        with wide_formats(values.dtype == np.float64), _on(self._place, jit=self._jit):
            return np.asarray(_codes(jax.device_put(values, self._place), getattr(jnp, format_name)))

    def decode(self, codes: Array, format_name: str) -> Array:
        with _on(self._place, jit=self._jit):
            return np.asarray(_values(jax.device_put(codes, self._place), getattr(jnp, format_name)))

    def integer_product(self, a: Array, b: Array) -> Array:
        with _on(self._place, jit=self._jit):
            return np.asarray(_integer_product(*(jax.device_put(array, self._place) for array in (a, b))))

    def float8_product(self, a: Array, b: Array, formats: tuple[str, str]) -> Array:
        with _on(self._place, jit=self._jit):
            operands = [
                jax.lax.bitcast_convert_type(jax.device_put(codes, self._place), getattr(jnp, name))
                for codes, name in zip((a, b), formats, strict=True)
            ]
            return np.asarray(_float8_product(*operands))


@jax.jit
def _float8_product(a: jax.Array, b: jax.Array) -> jax.Array:
    return jax.lax.dot(a, b, preferred_element_type=jnp.float32)


@jax.jit
def _integer_product(a: jax.Array, b: jax.Array) -> jax.Array:
    return jax.lax.dot(a, b, preferred_element_type=jnp.int32)


@partial(jax.jit, static_argnums=1)
def _codes(values: jax.Array, dtype: type) -> jax.Array:
    return jax.lax.bitcast_convert_type(values.astype(dtype), jnp.uint8)


@partial(jax.jit, static_argnums=1)
def _values(codes: jax.Array, dtype: type) -> jax.Array:
    return jax.lax.bitcast_convert_type(codes, dtype).astype(jnp.float32)


def amax_leaves(leaves: Mapping[str, Any]) -> dict[str, Any]:
    """The leaves of the collection that gradients overwrite: scales and amax histories."""
    return {path: value for path, value in leaves.items() if path.startswith(_BELOW)}


def trained_leaves(leaves: Mapping[str, Any]) -> dict[str, Any]:
    """The leaves that an optimizer trains."""
    return {path: value for path, value in leaves.items() if not path.startswith(_BELOW)}


def with_memory(leaves: Flat, variables: Mapping[str, Any]) -> Flat:
    """The parameters, and the leaves of the overwritten collection if a module's variables have any."""
    memory = flat(variables.get(OVERWRITE_WITH_GRADIENT, {}))
    return leaves | {f"{_BELOW}{path}": value for path, value in memory.items()}


def collections_of(leaves: Flat) -> dict[str, Any]:
    """The variables of a module that has these leaves."""
    memory = {path.removeprefix(_BELOW): value for path, value in amax_leaves(leaves).items()}
    result = {"params": nest_leaves(trained_leaves(leaves))}
    return result | ({OVERWRITE_WITH_GRADIENT: nest_leaves(memory)} if memory else {})


def state_tree(leaves: Flat) -> Any:
    """The tree that `TrainState` takes as parameters or gradients: the parameters alone without a collection."""
    memory = amax_leaves(leaves)
    return {"params": trained_leaves(leaves), OVERWRITE_WITH_GRADIENT: memory} if memory else leaves


def leaves_in(tree: Any) -> Flat:
    """The leaves of a tree that `state_tree` made."""
    result: Flat = tree["params"] | tree[OVERWRITE_WITH_GRADIENT] if OVERWRITE_WITH_GRADIENT in tree else tree
    return result


def total_gradient(gradients: list[Any]) -> Any:
    """The sum over trees of gradients, leaf by leaf; for the overwritten collection the maximum instead."""

    def combine_leaves(path: Any, one: jax.Array, other: jax.Array) -> jax.Array:
        overwrites = any(str(getattr(key, "key", "")).startswith(_BELOW) for key in path)
        return jnp.maximum(one, other) if overwrites else one + other

    return reduce(partial(jax.tree.map_with_path, combine_leaves), gradients)


def overwrite_after_window(before: Any, after: Any, overwritten: Any, last: Any) -> tuple[Any, Any]:
    """Parameters after a micro-batch of a window, and the values gathered so far to overwrite the collection.

    Args:
        before, after: parameters of a `TrainState` around a micro-batch.
        overwritten: values gathered from the earlier micro-batches of the window.
        last: the micro-batch ended the window.
    """
    gathered = jax.tree.map(jnp.maximum, overwritten, after[OVERWRITE_WITH_GRADIENT])  # as `fm32` of Flax adds
    window = jax.tree.map(partial(jnp.where, last), gathered, before[OVERWRITE_WITH_GRADIENT])
    rest = jax.tree.map(lambda leaf: jnp.where(last, jnp.zeros_like(leaf), leaf), gathered)
    return after | {OVERWRITE_WITH_GRADIENT: window}, rest


def nothing_gathered(tree: Any) -> Any:
    """Initial gathered values of a window, None without float8."""
    memory = tree.get(OVERWRITE_WITH_GRADIENT)
    return None if memory is None else jax.tree.map(jnp.zeros_like, memory)


def operand_histories(leaves: Mapping[str, Any], below: str = "") -> dict[Operand, AmaxHistory]:
    """The delayed-scaling state of a layer; `below` is the prefix of its leaves' names."""
    return {
        operand: AmaxHistory(float(leaves[f"{below}{name}_scale"][0]), np.array(leaves[f"{below}{name}_amax_history"]))
        for operand, name in _OPERANDS.items()
    }


def amax_histories(leaves: Flat, canonical: Mapping[str, str]) -> dict[str, dict[Operand, AmaxHistory]]:
    """The delayed-scaling state by the names of weights; `canonical` maps the paths of parameters to their names."""
    result: dict[str, dict[Operand, AmaxHistory]] = {}
    for path in amax_leaves(leaves):
        layer, _, leaf = path.removeprefix(_BELOW).rpartition("/")
        if leaf == "input_scale":
            weight = canonical[f"{layer.rpartition('/')[0]}/kernel"]
            result[weight] = operand_histories(leaves, f"{_BELOW}{layer}/")
    return result


def delayed_scaling_state(leaves: Flat) -> dict[str, Array]:
    """The delayed-scaling state, by path."""
    return {path: np.array(value) for path, value in amax_leaves(leaves).items()}


class FlaxDelayedProduct:
    """`Fp8DirectDotGeneralOp` on `device`.

    Scales of several micro-batches have Flax's type `fm32`, in which a sum is the larger value.
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
        with _on(self._place, jit=self._jit):
            results, self._state = self._step(self._state, self._kernel, inputs, gradients)
        return tuple(PassResult(*(np.asarray(array) for array in passed)) for passed in results)

    def predict(self, inputs: Array) -> Array:
        with _on(self._place, jit=self._jit):
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
        """The results of each micro-batch, and the state after all of their gradients have overwritten it."""
        if len(inputs) > 1:
            state = jax.tree.map(lambda leaf: jax.lax.convert_element_type(leaf, fp8_ops.fm32), state)

        def outputs_of(state: Any, kernels: list[jax.Array], inputs: list[jax.Array]) -> list[jax.Array]:
            return [self._output(state, own, array) for own, array in zip(kernels, inputs, strict=True)]

        outputs, backward = jax.vjp(outputs_of, state, [kernel] * len(inputs), inputs)
        overwritten, of_kernel, of_inputs = backward(gradients)
        overwritten = jax.tree.map(lambda leaf: jax.lax.convert_element_type(leaf, jnp.float32), overwritten)
        return list(zip(outputs, of_inputs, of_kernel, strict=True)), overwritten


def joins_windows(factory: Callable[[], FlaxDelayedProduct]) -> bool:
    """Returns whether a window of two micro-batches makes one step of the state, by the larger amax."""
    product = factory()
    small, large = ((np.full((1, 16), value, np.float32), np.ones((1, 16), np.float32)) for value in (1.0, 8.0))
    product.train(large, small)
    return float(product.amax_histories()["input"].amax.max()) == 8.0


@cache
def _qwix() -> Any:
    return import_module("qwix")


class DenseNetwork(Network):
    """A network whose dense layers can be run alone."""

    def dense(self, path: str, inputs: jax.Array) -> jax.Array:
        """One dense layer, or one head, of a matrix (rows, inputs)."""
        index, _, head = path.partition(".")
        run = self.heads[head] if head else self.layers[int(index)].inner
        outputs: jax.Array = run(inputs)
        return outputs


class QwixQuantizedModel:
    """The parameters that `qwix.quantize_params` makes, and the module of `qwix.quantize_model` that takes them."""

    def __init__(self, module: Any, layout: Layout, parameters: Any, device: jax.Device, *, jit: bool) -> None:
        self._layout, self._parameters, self._place, self._jit = layout, parameters, device, jit
        self._predict = jax.jit(lambda own, inputs: module.apply({"params": own}, inputs, False))
        self._dense = jax.jit(
            lambda own, path, inputs: module.apply({"params": own}, path, inputs, method="dense"), static_argnums=1
        )

    def predict(self, inputs: Array) -> dict[str, Array]:
        with _on(self._place, jit=self._jit):
            return {name: np.array(output) for name, output in self._predict(self._parameters, inputs).items()}

    def layer(self, name: str, inputs: Array) -> Array:
        with _on(self._place, jit=self._jit):
            return np.array(self._dense(self._parameters, name.removesuffix(".weight"), inputs))

    def weights(self) -> dict[str, Quantized | None]:
        leaves = flat(self._parameters)
        named = {n: leaves[path] for n, path in self._layout.parameters.items() if path.endswith("/kernel")}
        with _on(self._place):
            return {name: _read_quantized(leaf) for name, leaf in named.items()}

    def unquantized_parameters(self) -> dict[str, Array]:
        return self._layout.arrays({p: leaf for p, leaf in flat(self._parameters).items() if not _is_quantized(leaf)})

    def calibrated_ranges(self) -> dict[str, Calibrated]:
        return {}

    def stored_bytes(self) -> int:
        return sum(leaf.nbytes for leaf in jax.tree.leaves(self._parameters))

    def save(self, path: Path) -> None:
        with ocp.StandardCheckpointer() as checkpointer:
            checkpointer.save(path.absolute() / _FOLDER, self._parameters, force=True)

    def restore(self, path: Path) -> None:
        with ocp.StandardCheckpointer() as checkpointer:
            self._parameters = checkpointer.restore(path.absolute() / _FOLDER, self._parameters)


class QwixPostTraining:
    """Quantization of trained models on `device`; it has no techniques if Qwix is not installed."""

    def __init__(self, device: jax.Device, *, jit: bool) -> None:
        self._place, self._jit = device, jit

    def rules(self) -> Mapping[str, LinearRule]:
        return _RULES if INSTALLED else {}

    def quantize(
        self,
        technique: str,
        model: Model,
        weights: Mapping[str, Array],
        calibration: Sequence[Array] = (),
        skip: Sequence[str] = (),
    ) -> QwixQuantizedModel:
        network, sample = DenseNetwork(model), jnp.zeros((1, *model.sample), jnp.float32)
        with _on(self._place):
            like = flat(jax.eval_shape(partial(network.init, train=False), jax.random.key(0), sample)["params"])
            layout = Layout(model, like)
            if unknown := {name for name in skip if not layout.parameters.get(name, "").endswith("/kernel")}:
                raise ValueError(f"{model.name} has no dense layers {sorted(unknown)}")
            paths = [layout.parameters[name].removesuffix("/kernel") for name in skip]
            unquantized = [_qwix().QuantizationRule(module_path=re.escape(path)) for path in paths]
            provider = _qwix().PtqProvider([*unquantized, _qwix().QuantizationRule(**_FORMATS[technique])])
            module = _qwix().quantize_model(network, provider, methods=("__call__", "dense"))
            abstract = jax.eval_shape(partial(module.init, train=False), jax.random.key(0), sample)["params"]
            trained = nest_leaves(leaves_of(layout, weights, like, self._place))
            parameters = _qwix().quantize_params(trained, abstract)
        return QwixQuantizedModel(module, layout, parameters, self._place, jit=self._jit)


def _is_quantized(leaf: Any) -> bool:
    return not isinstance(leaf, jax.Array)


def _read_quantized(leaf: Any) -> Quantized | None:
    """A kernel quantized by Qwix, or None for a plain array."""
    if not _is_quantized(leaf):
        return None
    array = leaf.array
    scale = np.array(array.scale).astype(np.float64)
    values = np.array(_qwix().dequantize(array))
    return Quantized(np.array(array.qvalue).astype(np.int32), scale, np.zeros(scale.shape, np.int32), values)
