"""TensorFlow's casts to 8-bit formats, integer matmuls and quantizers, with declared rules, and low-rank adapters."""

import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from inspect import signature
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import keras
import ml_dtypes
import numpy as np
import tensorflow as tf

from fixtures.arrays import Array
from fixtures.model import Dense, Head, Model
from fixtures.recipe import Recipe
from frameworks.base import BaseFormats
from frameworks.contract import (
    AmaxHistory,
    Calibrated,
    Capability,
    CastRule,
    DelayedRule,
    FakeRule,
    Float8Rule,
    LinearRule,
    LowRank,
    Operand,
    PassResult,
    Quantized,
    QuantRule,
)
from frameworks.keras_common.layers import Builder, parameters_of
from frameworks.keras_common.optimizers import make_optimizer
from frameworks.tf.core.steps import VARIANTS, TapeBackend, as_array, compile_function, recomputing

_CASTS: Mapping[str, CastRule] = MappingProxyType(
    {"float8_e4m3fn": CastRule("nan", "nan"), "float8_e5m2": CastRule("inf", "inf")}
)
_COMPILED: Mapping[str, CastRule] = {
    name: CastRule("nan", "nan")
    for name in ("float8_e4m3fnuz", "float8_e5m2fnuz")
    if hasattr(tf.dtypes.experimental, name)
}
"""Formats that only XLA can cast to."""

EPSILON = 1e-7
"""Keras' default epsilon of ranges: `keras.config.epsilon()` at import."""
RULE = Float8Rule(DelayedRule("float8_e4m3fn", "float8_e5m2", lag=2), skipped="stays", mean="micro-batch")
"""A pass casts by the scale stored before it, and the loss of each micro-batch is the mean over its own items."""
_OPERANDS: dict[Operand, str] = {"input": "inputs", "kernel": "kernel", "gradient": "outputs_grad"}
"""Keras' names of the operands whose scales and amax histories a layer keeps."""


def eight_bits(axis: Literal[0, 1] | None) -> QuantRule:
    """Keras' rule of symmetric 8-bit codes, with a range for the tensor, or for each row or column."""
    return QuantRule(-127, 127, 127.0, axis=axis, epsilon=EPSILON)


_GROUPS = {"int4-group": QuantRule(-8, 7, 15.0, symmetric=False, axis=0, group=32, epsilon=EPSILON)}
"""Quantizers that Keras 3.13 lacks."""

_CODE_RULES: Mapping[str, QuantRule] = MappingProxyType(
    {"int8-tensor": eight_bits(None), "int8-row": eight_bits(1), "int8-column": eight_bits(0)}
    | (_GROUPS if hasattr(keras.quantizers, "abs_max_quantize_grouped_with_zero_point") else {})
)
_AFFINE = {"uint8-tensor": QuantRule(0, 255, 255.0, symmetric=False, ties="away")}
"""`tf.quantization.quantize`, which XLA does not compile."""
_FAKE_RULES: Mapping[str, FakeRule] = MappingProxyType(
    {
        "fake-int8-tensor": FakeRule(-127, 127, ties="up", gradient="range"),
        "fake-int8-column": FakeRule(-127, 127, axis=0, ties="up", gradient="range"),
        "fake-uint8-tensor": FakeRule(0, 255, ties="up", gradient="range"),
        "fake-int4-tensor": FakeRule(-7, 7, ties="up", gradient="range"),
    }
)

_COLUMN = eight_bits(0)
_WEIGHTS = {"weight-int8": LinearRule(_COLUMN)}
"""Techniques whose configuration has no quantizer of inputs."""
_BLOCKS = {"weight-int4": LinearRule(QuantRule(-8, 7, 15.0, symmetric=False, axis=0, group=128, epsilon=EPSILON))}
"""Techniques that Keras 3.13 lacks: its int4 quantizes inputs too, and weights by columns."""

_RULES: Mapping[str, LinearRule] = MappingProxyType(
    {"dynamic-int8": LinearRule(_COLUMN, inputs=replace(_COLUMN, axis=1))}
    | (_WEIGHTS if hasattr(keras.quantizers, "Int8QuantizationConfig") else {})
    | (_BLOCKS if hasattr(keras.quantizers, "abs_max_quantize_grouped_with_zero_point") else {})
)
_ARGUMENTS: Mapping[str, Callable[[], dict[str, Any]]] = {
    "dynamic-int8": lambda: {"mode": "int8"},
    "weight-int8": lambda: {"config": keras.quantizers.Int8QuantizationConfig(activation_quantizer=None)},
    "weight-int4": lambda: {"mode": "int4"},
}
"""Arguments of `Model.quantize`, by technique."""
_FILE = "model.weights.h5"


class TensorFlowFormats(BaseFormats):
    """`tf.cast` and `tf.matmul` in one mode, on the device with TensorFlow's name `device`.

    `tf.bitcast` takes no float8, so codes are read from the tensor's NumPy array, which has ml_dtypes' format.
    """

    def __init__(self, mode: str, device: str) -> None:
        self._mode = mode
        self._place = device

    def casts(self) -> Mapping[str, CastRule]:
        return {**_CASTS, **_COMPILED} if self._mode == "xla" else _CASTS

    def encode(self, values: Array, format_name: str) -> Array:
        return self._cast(values, tf.as_dtype(format_name)).view(np.uint8)

    def decode(self, codes: Array, format_name: str) -> Array:
        stored = np.dtype(getattr(ml_dtypes, format_name, format_name))
        return self._cast(codes.view(stored), tf.float32)

    def integer_product(self, a: Array, b: Array) -> Array:
        with tf.device(self._place):
            product = compile_function(lambda x, y: tf.matmul(x, y, output_type=tf.int32), self._mode)
            return np.array(product(tf.constant(a), tf.constant(b)).numpy())

    def pack(self, codes: Array, axis: Literal[0, 1]) -> Array:
        stored, _, _ = keras.quantizers.pack_int4(tf.constant(codes), axis=axis)
        return np.array(stored).view(np.uint8)

    def unpack(self, stored: Array, length: int, axis: Literal[0, 1]) -> Array:
        return np.array(keras.quantizers.unpack_int4(tf.constant(stored.view(np.int8)), length, axis=axis))

    def _cast(self, values: Array, to: tf.DType) -> Array:
        with tf.device(self._place):
            cast = compile_function(lambda x: tf.cast(x, to), self._mode)
            return np.array(cast(tf.constant(values)).numpy())


class TensorFlowQuantizers:
    """`keras.quantizers` and `tf.quantization` in one mode, on the device with TensorFlow's name `device`.

    Keras has no call that dequantizes. Like its dense layers, this divides 8-bit codes by the stored reciprocal scale,
    and multiplies 4-bit codes. Groups are for weights, which Keras quantizes outside of any `tf.function`; its call
    does not work in one.
    """

    def __init__(self, mode: str, device: str) -> None:
        self._mode = mode
        self._place = device

    def rules(self) -> Mapping[str, QuantRule]:
        return _CODE_RULES if self._mode == "xla" else {**_CODE_RULES, **_AFFINE}

    def fake_rules(self) -> Mapping[str, FakeRule]:
        return _FAKE_RULES

    def quantize(self, name: str, values: Array) -> Quantized:
        rule = self.rules()[name]
        if name in _AFFINE:
            return self._in_range(values, rule)
        if rule.group:
            codes, scale, zero_point, restored = self._run(_make_grouped_quantizer(rule), "eager", values)
            return Quantized(codes.astype(np.int32), scale.astype(np.float64), zero_point.astype(np.int32), restored)
        codes, reciprocal, restored = self._run(_absolute(rule), self._mode, values)
        with np.errstate(divide="ignore"):
            scale = 1.0 / reciprocal.astype(np.float64)
        return Quantized(codes.astype(np.int32), scale, np.zeros(scale.shape, np.int32), restored)

    def _in_range(self, values: Array, rule: QuantRule) -> Quantized:
        """The values quantized by `tf.quantization`.

        Raises:
            ValueError: TensorFlow refuses the range, such as one with NaN.
        """
        try:
            codes, lowest, highest, restored = self._run(_affine, self._mode, values)
        except tf.errors.InvalidArgumentError as error:
            raise ValueError(error.message) from error
        scale = ((highest.astype(np.float64) - lowest) / rule.divisor).reshape(1, 1)
        usable = np.isfinite(scale) & (scale > 0.0)
        zero_point = np.rint(np.divide(-lowest, scale, out=np.zeros((1, 1)), where=usable))
        return Quantized(codes, scale, zero_point.astype(np.int32), restored)

    def fake_quantize(self, name: str, values: Array, scale: Array, zero_point: Array) -> tuple[Array, Array]:
        rule = _FAKE_RULES[name]
        ends = [
            ((end - zero_point.astype(np.float64)) * scale.astype(np.float64)).astype(np.float32)
            for end in (rule.low, rule.high)
        ]
        if rule.axis is None:
            ends = [end.reshape(()) for end in ends]
        result, gradient = self._run(_fake(rule), self._mode, values, *ends)
        return result, gradient

    def _run(self, function: Callable[..., Any], mode: str, *arrays: Array) -> list[Array]:
        with tf.device(self._place):
            results = compile_function(function, mode)(*(tf.constant(array) for array in arrays))
            return [np.array(result.numpy()) for result in results]


def in_groups(codes: Any, scale: Any, zero: Any, group: Any) -> tuple[Any, Any, Any]:
    """Scale and zero point of each row's group, and values dequantized like 4-bit codes in Keras' dense layers."""
    step, shift = (keras.ops.take(values, group, axis=0) for values in (scale, zero))
    above = keras.ops.subtract(keras.ops.cast(codes, "float32"), keras.ops.cast(shift, "float32"))
    return step, shift, keras.ops.multiply(step, above)


def _absolute(rule: QuantRule) -> Callable[[tf.Tensor], tuple[tf.Tensor, ...]]:
    """A function to codes, reciprocal scale and dequantized values by a symmetric rule."""
    axis = (0, 1) if rule.axis is None else rule.axis
    quantizer = keras.quantizers.AbsMaxQuantizer(axis=axis, value_range=(rule.low, rule.high))

    def quantize(values: tf.Tensor) -> tuple[tf.Tensor, ...]:
        codes, reciprocal = quantizer(values)
        return codes, reciprocal, keras.ops.divide(keras.ops.cast(codes, "float32"), reciprocal)

    return quantize


def _affine(values: tf.Tensor) -> tuple[tf.Tensor, ...]:
    """Codes, both ends of the range, which contains 0, and dequantized values."""
    ends = [tf.minimum(tf.reduce_min(values), 0.0), tf.maximum(tf.reduce_max(values), 0.0)]
    coded, lowest, highest = tf.quantization.quantize(
        values, *ends, tf.quint8, mode="MIN_FIRST", ensure_minimum_range=0.0
    )
    return tf.cast(coded, tf.int32), lowest, highest, tf.quantization.dequantize(coded, lowest, highest, "MIN_FIRST")


def _make_grouped_quantizer(rule: QuantRule) -> Callable[[tf.Tensor], tuple[tf.Tensor, ...]]:
    """A function to codes, scale and zero point of each value, and dequantized values, by groups along the columns."""

    def quantize(values: tf.Tensor) -> tuple[tf.Tensor, ...]:
        codes, scale, zero = keras.quantizers.abs_max_quantize_grouped_with_zero_point(
            values, rule.group, value_range=(rule.low, rule.high)
        )
        return codes, *in_groups(codes, scale, zero, np.arange(values.shape[0]) // rule.group)

    return quantize


def _fake(rule: FakeRule) -> Callable[[tf.Tensor, tf.Tensor, tf.Tensor], tuple[tf.Tensor, ...]]:
    """A function to fake-quantized values and the gradient of their sum; symmetric codes use the narrow range."""
    quantizer = (
        tf.quantization.fake_quant_with_min_max_vars
        if rule.axis is None
        else tf.quantization.fake_quant_with_min_max_vars_per_channel
    )
    bits = (rule.high - rule.low + 1).bit_length() if rule.low < 0 else rule.high.bit_length()

    def quantize_with_gradient(values: tf.Tensor, lowest: tf.Tensor, highest: tf.Tensor) -> tuple[tf.Tensor, ...]:
        with tf.GradientTape() as tape:
            tape.watch(values)
            result = quantizer(values, lowest, highest, num_bits=bits, narrow_range=rule.low < 0)
        return result, tape.gradient(result, values)

    return quantize_with_gradient


def _histories(read: Callable[[str], keras.Variable]) -> dict[Operand, AmaxHistory]:
    """The delayed-scaling state of a layer; `read` returns a variable by its name."""
    return {
        operand: AmaxHistory(float(as_array(read(f"{name}_scale"))), as_array(read(f"{name}_amax_history")))
        for operand, name in _OPERANDS.items()
    }


class KerasDelayedProduct:
    """A `Dense` layer without a bias under `QuantizedFloat8DTypePolicy`, trained at a learning rate of zero.

    A step casts by the scale stored before it, so the newest amax in this scale is from two steps before.
    """

    rule = RULE.product

    def __init__(self, kernel: Array, *, history: int, accumulation: int, mode: str, device: str) -> None:
        self._initial_kernel, self._place = kernel, device
        with tf.device(device):
            policy = keras.dtype_policies.QuantizedFloat8DTypePolicy("float8", "float32", amax_history_length=history)
            self._layer = keras.layers.Dense(kernel.shape[1], use_bias=False, dtype=policy)
            self._layer.build((None, len(kernel)))
            self._layer._kernel.assign(kernel)
            self._optimizer = keras.optimizers.SGD(
                0.0, gradient_accumulation_steps=accumulation if accumulation > 1 else None
            )
            self._optimizer.build(self._layer.trainable_variables)
        self._pass = compile_function(self._run_pass, mode)
        self._call = compile_function(lambda inputs: self._layer(inputs, training=False), mode)

    def train(self, *window: tuple[Array, Array]) -> tuple[PassResult, ...]:
        results = []
        for inputs, gradient in window:
            with tf.device(self._place):
                outputs = self._pass(tf.constant(inputs), tf.constant(gradient))
                self._layer._kernel.assign(self._initial_kernel)
            results.append(PassResult(*(np.array(tensor) for tensor in outputs)))
        return tuple(results)

    def predict(self, inputs: Array) -> Array:
        with tf.device(self._place):
            return np.array(self._call(tf.constant(inputs)))

    def amax_histories(self) -> dict[Operand, AmaxHistory]:
        return _histories(partial(getattr, self._layer))

    def _run_pass(self, inputs: tf.Tensor, gradient: tf.Tensor) -> tuple[tf.Tensor, ...]:
        variables = self._layer.trainable_variables
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            output = self._layer(inputs, training=True)
        of_inputs, *others = tape.gradient(output, [inputs, *(v.value for v in variables)], output_gradients=gradient)
        self._optimizer.apply(others, variables)
        (of_kernel,) = (g for g, v in zip(others, variables, strict=True) if v is self._layer._kernel)
        return output, of_inputs, of_kernel


def amax_histories(memory: Mapping[str, keras.Variable]) -> dict[str, dict[Operand, AmaxHistory]]:
    """The delayed-scaling state, by the names of weights."""

    def of_layer(path: str) -> dict[Operand, AmaxHistory]:
        return _histories(lambda name: memory[f"{path}.{name}"])

    paths = dict.fromkeys(name.rpartition(".")[0] for name in memory)
    return {f"{path}.weight": of_layer(path) for path in paths}


def delayed_scaling_state(
    memory: Mapping[str, keras.Variable], accumulators: Mapping[str, keras.Variable]
) -> dict[str, Array]:
    """The delayed-scaling state, and the gathered values of an open window."""
    state = {name: as_array(variable) for name, variable in memory.items()}
    return state | {f"gathered/{name}": as_array(variable) for name, variable in accumulators.items()}


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
                _quantize(network, _ARGUMENTS[technique](), skipped)
        return KerasQuantizedModel(network, sources, model, self._mode, self._place)


def _quantize(network: keras.Model, asked: dict[str, Any], skipped: Collection[str]) -> None:
    """Quantizes all layers except some, by `filters`; Keras before 3.13 lacks it, so each layer is quantized alone."""
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
        ValueError: the model has no dense layer for a name in `skip`.
    """
    builder = Builder(0)
    inputs = features = keras.Input(model.sample)
    for path, fixture_layer, shape in list(model.shapes())[:-1]:
        features = builder.layer(fixture_layer, path, shape)(features)
    last = str(len(model.layers) - 1)
    outputs = {head.name: builder.head(head, last)(features) for head in model.heads.heads}
    network, sources = keras.Model(inputs, outputs, name=model.name), builder.sources
    for path, (layer, source) in sources.items():
        for name, variable in parameters_of(layer, source).items():
            variable.assign(weights[f"{path}.{name}"])
    if unknown := set(skip) - set(_dense_names(sources)):
        raise ValueError(f"{model.name} has no dense layers {sorted(unknown)}")
    return network, sources


def _dense_names(sources: Mapping[str, tuple[keras.layers.Layer, Any]]) -> dict[str, str]:
    """Keras' names of the dense layers, by the names of their weights."""
    return {f"{path}.weight": layer.name for path, (layer, kind) in sources.items() if isinstance(kind, Dense | Head)}


def _read_quantized(layer: Any) -> Quantized | None:
    """The stored weight of a dense layer: 8-bit with reciprocal scales, or 4-bit with block scales. Keras has no call
    that dequantizes: like its dense layers, this divides by reciprocals or multiplies by the block's scale.
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


CAPABILITIES = frozenset(
    {
        Capability.ADAPTERS,
        Capability.ADAPTER_LOW_BASE,
        Capability.ADAPTER_INT8,
        Capability.ADAPTER_INT4,
        Capability.LATE_ADAPTERS,
    }
)
ROUNDS_INPUTS = "layers that Keras quantizes to int8 or int4 quantize their inputs too"
_ADAPTER_FILE = "network.keras"
_NAMES = {"kernel": "weight", "bias": "bias", "lora_kernel_a": "a", "lora_kernel_b": "b"}
_CODED = ("int8", "int4")


@keras.saving.register_keras_serializable("conformance")
def weighted_sum(gradient: Any, outputs: Any) -> Any:
    """The loss: the sum of outputs · gradient."""
    return keras.ops.sum(keras.ops.cast(outputs, "float32") * keras.ops.cast(gradient, "float32"))


def keeps_inputs() -> bool:
    """Returns whether an int8 layer of ones gives 1 + 2^-12 for such an input, which no 8-bit code has."""
    layer = keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")
    layer.build((1, 2))
    layer.quantize("int8")
    return float(layer(np.array([[1.0, 2.0**-12]], np.float32))[0, 0]) == 1.0 + 2.0**-12


class _Recomputed(keras.Model):
    """Layers, all but the last of which are one segment in a recomputation variant."""

    def __init__(self, parts: list[keras.layers.Layer], variant: str) -> None:
        super().__init__(name="recomputed")
        self.parts = parts
        self._variant = variant

    def call(self, inputs: Any) -> Any:
        """The outputs of the last layer."""

        def segment(x: Any) -> Any:
            for part in self.parts[:-1]:
                x = part(x)
            return x

        return self.parts[-1](recomputing(segment, self._variant)(inputs))


class KerasAdaptedNetwork:
    """A network of dense layers, trained by `compile` and `train_on_batch`."""

    def __init__(
        self, weights: Mapping[str, Array], adapters: LowRank, recipe: Recipe, *, late: bool = False, mode: str
    ) -> None:
        self._adapters, self._recipe, self._mode = adapters, recipe, mode
        self._names = sorted({name.partition(".")[0] for name in weights})
        if not set(adapters.targets) <= set(self._names):
            raise ValueError(f"the network has no layer of a name in {adapters.targets}")  # as `get_layer` does
        inputs, *_ = weights[f"{self._names[0]}.weight"].shape
        layers = [self._layer(name, weights) for name in self._names]
        if recipe.recompute is None:
            self._model = keras.Sequential([keras.Input((inputs,)), *layers])
        else:
            self._model = _Recomputed(layers, recipe.recompute.variant or VARIANTS[0])
        if not late:
            self._adapt()
        optimizer = make_optimizer(recipe, {}, TapeBackend(mode))
        self._model.compile(
            optimizer, weighted_sum, run_eagerly=mode == "eager", jit_compile=mode == "xla", auto_scale_loss=False
        )

    def _layer(self, name: str, weights: Mapping[str, Array]) -> keras.layers.Dense:
        own, base = weights[f"{name}.weight"], self._adapters.base
        activation = None if name == self._names[-1] else "relu"
        layer = keras.layers.Dense(
            own.shape[1], activation, name=f"dense_{name}", dtype="float32" if base in _CODED else base
        )
        layer.build((None, len(own)))
        layer.set_weights([own, weights[f"{name}.bias"]])
        if name in self._adapters.targets and base in _CODED:
            layer.quantize(base)
        return layer

    def _find(self, name: str) -> keras.layers.Dense:
        parts = self._model.parts if isinstance(self._model, _Recomputed) else self._model.layers
        return next(layer for layer in parts if layer.name == f"dense_{name}")

    def _adapt(self) -> None:
        for name in self._names:
            if name in self._adapters.targets:
                initializer = keras.initializers.HeUniform(self._recipe.seed)
                self._find(name).enable_lora(
                    self._adapters.rank, a_initializer=initializer, lora_alpha=self._adapters.alpha
                )
            else:
                self._find(name).trainable = False

    def _slots(self) -> dict[str, keras.Variable]:
        return {
            f"{name}.{_NAMES[variable.name]}": variable
            for name in self._names
            for variable in self._find(name).trainable_variables
        }

    def predict(self, inputs: Array) -> Array:
        return as_array(self._model(inputs, training=False))

    def gradients(self, *window: tuple[Array, Array]) -> dict[str, Array]:
        slots, total = self._slots(), dict[str, Array]()

        def differentiate(inputs: Any, gradient: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = weighted_sum(gradient, self._model(inputs, training=True))
            return tape.gradient(loss, [variable.value for variable in slots.values()])

        compiled = compile_function(differentiate, self._mode)
        for inputs, gradient in window:
            found = compiled(tf.constant(inputs), tf.constant(gradient))
            for name, value in zip(slots, found, strict=True):
                if value is not None:
                    total[name] = total.get(name, 0) + as_array(value)
        return total

    def update(self, *window: tuple[Array, Array]) -> None:
        for inputs, gradient in window:
            self._model.train_on_batch(inputs, gradient * np.float32(len(window)))

    def trainables(self) -> dict[str, Array]:
        return {name: as_array(variable) for name, variable in self._slots().items()}

    def assign(self, values: Mapping[str, Array]) -> None:
        slots = self._slots()
        for name, value in values.items():
            slots[name].assign(value)

    def base(self) -> dict[str, Array]:
        return {
            f"{name}.{variable.name}": as_array(variable)
            for name in self._names
            for variable in self._find(name).non_trainable_variables
        }

    def switch_on(self) -> None:
        self._adapt()

    def save(self, path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)
        self._model.save(path / _ADAPTER_FILE)

    def load(self, path: Path) -> None:
        self._model = keras.models.load_model(path / _ADAPTER_FILE)
