"""JAX's casts to 8-bit formats, its integer matmul, and quantization of Linen modules by Qwix, if installed."""

import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp

from fixtures.arrays import Array
from fixtures.model import Model
from frameworks.base import BaseFormats
from frameworks.contract import Calibrated, Capability, CastRule, LinearRule, Quantized, QuantRule
from frameworks.jax.core.arrays import flat, nest_leaves, wide_formats
from frameworks.jax.core.layers import Layout, Network, leaves_of
from frameworks.jax.core.settings import is_installed

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


@cache
def _qwix() -> Any:
    return import_module("qwix")


@contextmanager
def _on(device: jax.Device, *, jit: bool = True) -> Iterator[None]:
    """A context on a device, compiled or not, without the warning that Qwix uses a deprecated name of Flax."""
    with jax.default_device(device), jax.disable_jit(not jit), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "'VariableState' was removed", DeprecationWarning)
        yield


MISSING = () if INSTALLED else tuple(Capability(f"quantization.{name}") for name in _RULES)
"""Techniques that this installation lacks."""


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
            left = [_qwix().QuantizationRule(module_path=re.escape(path)) for path in paths]
            provider = _qwix().PtqProvider([*left, _qwix().QuantizationRule(**_FORMATS[technique])])
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


_INFINITE = CastRule("inf", "inf")
_NAN = CastRule("nan", "nan")
_DOCUMENTED = {
    "float8_e4m3fn": _NAN,
    "float8_e5m2": _INFINITE,
    "float8_e4m3fnuz": _NAN,
    "float8_e5m2fnuz": _NAN,
    "float8_e4m3": _INFINITE,
    "float8_e3m4": _INFINITE,
    "float8_e8m0fnu": _NAN,
}


class JaxFormats(BaseFormats):
    """Casts by `astype`; codes by `jax.lax.bitcast_convert_type`. Compiled, unless `jit` is False."""

    def __init__(self, device: jax.Device, *, jit: bool) -> None:
        self._place = device
        self._jit = jit

    def casts(self) -> Mapping[str, CastRule]:
        return {name: rule for name, rule in _DOCUMENTED.items() if hasattr(jnp, name)}

    def encode(self, values: Array, format_name: str) -> Array:
        with wide_formats(values.dtype == np.float64), jax.default_device(self._place), jax.disable_jit(not self._jit):
            return np.asarray(_codes(jax.device_put(values, self._place), getattr(jnp, format_name)))

    def decode(self, codes: Array, format_name: str) -> Array:
        with jax.default_device(self._place), jax.disable_jit(not self._jit):
            return np.asarray(_values(jax.device_put(codes, self._place), getattr(jnp, format_name)))

    def integer_product(self, a: Array, b: Array) -> Array:
        with jax.default_device(self._place), jax.disable_jit(not self._jit):
            return np.asarray(_product(*(jax.device_put(array, self._place) for array in (a, b))))

    def float8_product(self, a: Array, b: Array, formats: tuple[str, str]) -> Array:
        with jax.default_device(self._place), jax.disable_jit(not self._jit):
            left, right = (
                jax.lax.bitcast_convert_type(jax.device_put(codes, self._place), getattr(jnp, name))
                for codes, name in zip((a, b), formats, strict=True)
            )
            return np.asarray(_narrow_product(left, right))


@jax.jit
def _narrow_product(a: jax.Array, b: jax.Array) -> jax.Array:
    return jax.lax.dot(a, b, preferred_element_type=jnp.float32)


@jax.jit
def _product(a: jax.Array, b: jax.Array) -> jax.Array:
    return jax.lax.dot(a, b, preferred_element_type=jnp.int32)


@partial(jax.jit, static_argnums=1)
def _codes(values: jax.Array, dtype: type) -> jax.Array:
    return jax.lax.bitcast_convert_type(values.astype(dtype), jnp.uint8)


@partial(jax.jit, static_argnums=1)
def _values(codes: jax.Array, dtype: type) -> jax.Array:
    return jax.lax.bitcast_convert_type(codes, dtype).astype(jnp.float32)
