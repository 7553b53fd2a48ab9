"""`keras.Model.quantize` on a functional model of the fixture's layers."""

import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from inspect import signature
from pathlib import Path
from types import MappingProxyType
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from fixtures.arrays import Array
from fixtures.model import Dense, Head, Model
from frameworks.contract import Calibrated, LinearRule, Quantized, QuantRule
from frameworks.keras_common.layers import Builder, parameters_of
from frameworks.tf.core.layers import as_array
from frameworks.tf.core.steps import compile_function
from frameworks.tf.quantization.formats import EPSILON, eight_bits, in_groups

_COLUMN = eight_bits(0)
_WEIGHTS = {"weight-int8": LinearRule(_COLUMN)}
"""The technique that needs a configuration without a quantizer of inputs."""
_BLOCKS = {"weight-int4": LinearRule(QuantRule(-8, 7, 15.0, symmetric=False, axis=0, group=128, epsilon=EPSILON))}
"""Techniques that Keras 3.13 lacks: its int4 quantizes inputs too, and weights by columns."""

_RULES: Mapping[str, LinearRule] = MappingProxyType(
    {"dynamic-int8": LinearRule(_COLUMN, inputs=replace(_COLUMN, axis=1))}
    | (_WEIGHTS if hasattr(keras.quantizers, "Int8QuantizationConfig") else {})
    | (_BLOCKS if hasattr(keras.quantizers, "abs_max_quantize_grouped_with_zero_point") else {})
)
_ASKED: Mapping[str, Callable[[], dict[str, Any]]] = {
    "dynamic-int8": lambda: {"mode": "int8"},
    "weight-int8": lambda: {"config": keras.quantizers.Int8QuantizationConfig(activation_quantizer=None)},
    "weight-int4": lambda: {"mode": "int4"},
}
_FILE = "model.weights.h5"


class KerasQuantizedModel:
    """A functional model after `quantize`, run in one mode on the device with TensorFlow's name `device`."""

    def __init__(
        self, network: keras.Model, sources: Mapping[str, tuple[Any, Any]], model: Model, mode: str, device: str
    ) -> None:
        self._network, self._sources, self._model, self._place = network, sources, model, device
        self._predict = compile_function(lambda inputs: network(inputs, training=False), mode)
        self._layers = {
            f"{path}.weight": (layer, compile_function(layer, mode))
            for path, (layer, source) in sources.items()
            if isinstance(source, Dense | Head)
        }

    def predict(self, inputs: Array) -> dict[str, Array]:
        with tf.device(self._place):
            return {name: np.array(value) for name, value in self._predict(tf.constant(inputs)).items()}

    def layer(self, name: str, inputs: Array) -> Array:
        with tf.device(self._place):
            return np.array(self._layers[name][1](tf.constant(inputs)))

    def weights(self) -> dict[str, Quantized | None]:
        with tf.device(self._place):
            return {name: _read_quantized(layer) for name, (layer, _) in self._layers.items()}

    def unquantized_parameters(self) -> dict[str, Array]:
        result = {
            f"{path}.{name}": variable
            for path, (layer, source) in self._sources.items()
            for name, variable in parameters_of(layer, source).items()
            if name != "weight" or layer.quantization_mode is None
        }
        shapes = self._model.parameter_shapes()
        return {name: as_array(result[name]).reshape(shape) for name, shape in shapes.items() if name in result}

    def calibrated_ranges(self) -> dict[str, Calibrated]:
        return {}

    def stored_bytes(self) -> int:
        return sum(as_array(variable).nbytes for variable in self._network.variables)

    def save(self, path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)
        self._network.save_weights(path / _FILE)

    def restore(self, path: Path) -> None:
        with tf.device(self._place):
            self._network.load_weights(path / _FILE)


class KerasPostTraining:
    """Quantization of trained models in one mode, on the device with TensorFlow's name `device`."""

    def __init__(self, mode: str, device: str) -> None:
        self._mode, self._place = mode, device

    def rules(self) -> Mapping[str, LinearRule]:
        return _RULES

    def quantize(
        self,
        technique: str,
        model: Model,
        weights: Mapping[str, Array],
        calibration: Sequence[Array] = (),
        skip: Sequence[str] = (),
    ) -> KerasQuantizedModel:
        with tf.device(self._place):
            network, sources = trained_network(model, weights, skip)
            names = _dense_names(sources)
            skipped = {names[name] for name in skip}
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "Layer .* does not have a `quantize` method")
                warnings.filterwarnings("ignore", "__array__ implementation doesn't accept a copy", DeprecationWarning)
                _quantize(network, _ASKED[technique](), skipped)
        return KerasQuantizedModel(network, sources, model, self._mode, self._place)


def _quantize(network: keras.Model, asked: dict[str, Any], skipped: Collection[str]) -> None:
    """All layers but some, by `filters`; Keras before 3.13 has none, and quantizes each layer by itself."""
    if not skipped:
        network.quantize(**asked)
    elif "filters" in signature(keras.Model.quantize).parameters:
        network.quantize(**asked, filters=lambda layer: layer.name not in skipped)
    else:
        for layer in network.layers:
            if layer.name not in skipped and isinstance(layer, keras.layers.Dense):
                layer.quantize(asked["mode"])


def trained_network(
    model: Model, weights: Mapping[str, Array], skip: Sequence[str]
) -> tuple[keras.Model, dict[str, tuple[keras.layers.Layer, Any]]]:
    """The functional model with these weights, and the Keras layer of each fixture layer and head by path.

    Raises:
        ValueError: it has no dense layer of a name in `skip`.
    """
    network, sources = _functional(model)
    for path, (layer, source) in sources.items():
        for name, variable in parameters_of(layer, source).items():
            variable.assign(weights[f"{path}.{name}"])
    if unknown := set(skip) - set(_dense_names(sources)):
        raise ValueError(f"{model.name} has no dense layers {sorted(unknown)}")
    return network, sources


def _dense_names(sources: Mapping[str, tuple[keras.layers.Layer, Any]]) -> dict[str, str]:
    """Keras' names of the dense layers, by the names of their weights."""
    return {f"{path}.weight": layer.name for path, (layer, kind) in sources.items() if isinstance(kind, Dense | Head)}


def _functional(model: Model) -> tuple[keras.Model, dict[str, tuple[keras.layers.Layer, Any]]]:
    """The model as `keras.Model(inputs, outputs)`, and the Keras layer of each fixture layer and head by path."""
    builder = Builder(0)
    inputs = features = keras.Input(model.sample)
    for path, layer, shape in list(model.shapes())[:-1]:
        features = builder.layer(layer, path, shape)(features)
    last = str(len(model.layers) - 1)
    outputs = {head.name: builder.head(head, last)(features) for head in model.heads.heads}
    return keras.Model(inputs, outputs, name=model.name), builder.sources


def _read_quantized(layer: Any) -> Quantized | None:
    """The stored weight of a dense layer: 8-bit with reciprocal scales, or 4-bit with block scales. Keras has no call
    to dequantize: codes are divided by the reciprocals, or multiplied by their block's scale, as in its dense layers.
    """
    match layer.quantization_mode:
        case None:
            return None
        case "int8":
            codes, reciprocal = keras.ops.convert_to_tensor(layer.kernel), layer.kernel_scale
            values = keras.ops.divide(keras.ops.cast(codes, "float32"), reciprocal)
            with np.errstate(divide="ignore"):
                scale = 1.0 / as_array(reciprocal).astype(np.float64)[None, :]
            zero_point = np.zeros(scale.shape, np.int32)
        case _:
            codes, group = keras.ops.convert_to_tensor(layer.kernel), keras.ops.cast(layer.g_idx, "int32")
            step, shift, values = in_groups(codes, layer.kernel_scale, layer.kernel_zero, group)
            scale, zero_point = as_array(step).astype(np.float64), as_array(shift).astype(np.int32)
    return Quantized(as_array(codes).astype(np.int32), scale, zero_point, as_array(values))
