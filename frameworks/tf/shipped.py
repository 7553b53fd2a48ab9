"""Operations and layers that TensorFlow and Keras ship, and functions with control flow, plain and by techniques."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from fixtures.arrays import Array
from frameworks.base import shipped
from frameworks.base.shipped import FACTOR, SIZE, BaseFunctions, Function, ListedParts, incoming, square
from frameworks.contract import Capability, Unsupported, Values
from frameworks.keras_common.settings import dtype_policy

Call = Callable[[Callable[..., Any], Sequence[Any]], Any]
Tensors = Sequence[tf.Tensor]

_WRAPPERS = ("Bidirectional", "TimeDistributed", "SpectralNormalization")
"""Layers around another layer."""
_NO_KERNEL = (tf.errors.InvalidArgumentError, tf.errors.UnimplementedError)
"""Errors of XLA for operations that it does not compile."""


def _recompute_call(call: Callable[..., Any], arguments: Sequence[Any]) -> Any:
    return keras.remat(call)(*arguments)


def _compile_and_call(by_xla: bool, call: Callable[..., Any], arguments: Sequence[Any]) -> Any:
    try:
        return tf.function(call, jit_compile=by_xla)(*arguments)
    except _NO_KERNEL as error:
        raise Unsupported(Capability.SHIPPED_OPERATIONS, str(error)) from error


def _to_tensors(value: Any) -> Any:
    """A tensor of an array; lists element by element, anything else unchanged."""
    if isinstance(value, list):
        return [_to_tensors(element) for element in value]
    return tf.constant(value) if isinstance(value, np.ndarray) else value


def _floating(nest: Any) -> list[Any]:
    """The tensors in float32 and float16 of nested containers."""
    return [leaf for leaf in tf.nest.flatten(nest) if tf.is_tensor(leaf) and leaf.dtype in (tf.float32, tf.float16)]


def _array(value: Any) -> Any:
    return tf.convert_to_tensor(value).numpy()


_name_arrays = partial(shipped.name_arrays, _array)


class _Parts(ListedParts):
    """Base of operations and layers.

    Args:
        compiled_by_xla: "compiled" is by XLA; otherwise by tf.function alone.

    Attributes:
        own_techniques: the techniques of a subclass alone.
        calls: functions that make a call, by technique.
    """

    file = Path(__file__).with_name("shipped.toml")
    own_techniques: tuple[str, ...]

    def __init__(self, *, compiled_by_xla: bool) -> None:
        super().__init__()
        self.by_xla = compiled_by_xla
        self.calls: dict[str, Call] = {"recomputed": _recompute_call}
        if compiled_by_xla or self.part == "layers":
            self.calls |= {"compiled": partial(_compile_and_call, compiled_by_xla)}

    def techniques(self) -> tuple[str, ...]:
        return (*self.calls, *self.own_techniques)

    def arguments(self, name: str) -> list[Any]:
        """The inputs of a part."""
        return [_to_tensors(value) for value in self.inputs(name)]

    def run_and_differentiate(
        self, call: Callable[..., Any], arguments: Sequence[Any], weights: Tensors, technique: str
    ) -> Values:
        """Outputs and gradients of a call; `weights` are the variables that it reads."""
        leaves = [*_floating(list(arguments)), *weights]
        with tf.GradientTape(persistent=technique == "used-twice") as tape:
            tape.watch(leaves)
            through = self.calls.get(technique)
            outputs = _floating(through(call, arguments) if through else call(*arguments))
        output_gradients = [tf.cast(tf.constant(incoming(tuple(output.shape))), output.dtype) for output in outputs]
        if technique == "used-twice":
            tape.gradient(outputs, leaves, output_gradients)
        if technique == "scaled":
            result = tape.gradient(outputs, leaves, [gradient * FACTOR for gradient in output_gradients])
            result = [None if gradient is None else tf.convert_to_tensor(gradient) / FACTOR for gradient in result]
        else:
            result = tape.gradient(outputs, leaves, output_gradients)
        return _name_arrays("value", outputs) | _name_arrays("gradient", result)


class Operations(_Parts):
    """Functions of tf.math, tf.nn, tf.linalg, tf.image and tf.signal."""

    part = "operations"
    module = tf
    own_techniques = ("one-input", "used-twice", "scaled")

    def at(self, name: str, *points: Array) -> tuple[Array, ...]:
        leaves = [tf.constant(point) for point in points]
        with tf.GradientTape() as tape:
            tape.watch(leaves)
            value = self.of_arrays(name, len(points))(*leaves)
        return tuple(map(_array, (value, *tape.gradient(value, leaves, unconnected_gradients="zero"))))

    def compute(self, name: str, technique: str) -> Values:
        arguments = self.arguments(name)
        numbers = [argument for argument in arguments if isinstance(argument, int | tuple)]
        arguments, function = arguments[: len(arguments) - len(numbers)], self.find(name)

        def call(*tensors: Any) -> Any:  # recomputation would convert the numbers to tensors
            return function(*tensors, *numbers)

        if technique != "one-input":
            return self.run_and_differentiate(call, arguments, (), technique)
        return _name_arrays("gradient", [self._differentiate(call, arguments, leaf) for leaf in _floating(arguments)])

    @staticmethod
    def _differentiate(call: Callable[..., Any], arguments: Sequence[Any], leaf: tf.Tensor) -> Any:
        """The gradient of one of the arguments, while no other is watched."""
        with tf.GradientTape() as tape:
            tape.watch(leaf)
            outputs = _floating(call(*arguments))
        output_gradients = [tf.constant(incoming(tuple(output.shape))) for output in outputs]
        return tape.gradient(outputs, leaf, output_gradients)


class Layers(_Parts):
    """Layers of keras.layers in training."""

    part = "layers"
    module = keras.layers
    own_techniques = ("scope-off", "loaded", "rebuilt", "saved-whole")

    def compute(self, name: str, technique: str) -> Values:
        if technique == "compiled" and self.by_xla and "seed" in inspect.signature(self.find(name)).parameters:
            raise Unsupported(Capability.SHIPPED_LAYERS, "XLA draws other random numbers, as tf.random documents")
        arguments = self.arguments(name)
        if technique == "scope-off":
            with dtype_policy("mixed_bfloat16"):
                layer = self._build(name, 1, arguments, dtype="float32")
        else:
            layer = self._build(name, 1, arguments)
        if technique in ("loaded", "rebuilt", "saved-whole"):
            layer = self._copy(name, layer, arguments, technique)
        weights = [variable.value for variable in layer.trainable_variables]
        result = self.run_and_differentiate(partial(_call_layer, layer), arguments, weights, technique)
        if technique == "recomputed":  # its second forward pass moves statistics once more
            return result
        state = [variable for variable in layer.non_trainable_variables if variable.dtype.startswith("float")]
        return {**result, **_name_arrays("state", state)}

    def _build(self, name: str, seed: int, arguments: Sequence[Any], **options: Any) -> keras.Layer:
        """A layer with these options, built for the arguments, whose weights are drawn from a seed."""
        layer_class = self.find(name)
        if name in _WRAPPERS:
            inner = keras.layers.LSTM if name == "Bidirectional" else keras.layers.Dense
            options["layer"] = inner(3, dtype=options.get("dtype"))
        if "seed" in inspect.signature(layer_class).parameters:
            options["seed"] = 11
        layer = self.listed.build(layer_class, **options)
        layer(*arguments)
        stream = np.random.default_rng(seed)
        for variable in layer.variables:
            drawn = variable.dtype.startswith("float") and (variable.trainable or np.ptp(variable.numpy()) > 0)
            values = stream.uniform(-0.5, 0.5, variable.shape)  # no global seed, which would empty caches
            variable.assign(values if drawn else variable)
        return layer

    def _copy(self, name: str, layer: keras.Layer, arguments: Sequence[Any], technique: str) -> keras.Layer:
        """A copy of the layer, from its configuration or from a model that was saved and loaded."""
        if technique == "rebuilt":
            copy = type(layer).from_config(layer.get_config())
            copy(*arguments)
            copy.set_weights(layer.get_weights())
            return copy
        model = _model(layer, arguments)
        with TemporaryDirectory() as folder:
            if technique == "saved-whole":
                model.save(f"{folder}/model.keras")
                return keras.models.load_model(f"{folder}/model.keras").layers[-1]
            model.save_weights(f"{folder}/model.weights.h5")
            receiver = _model(self._build(name, 5, arguments), arguments)
            receiver.load_weights(f"{folder}/model.weights.h5")
        return receiver.layers[-1]


def _call_layer(layer: keras.Layer, *arguments: Any) -> Any:
    takes_training = "training" in inspect.signature(layer.call).parameters
    return layer(*arguments, **({"training": True} if takes_training else {}))


def _model(layer: keras.Layer, arguments: Sequence[Any]) -> keras.Model:
    inputs = tf.nest.map_structure(lambda x: keras.Input(batch_shape=x.shape, dtype=x.dtype.name), [*arguments])
    return keras.Model(tf.nest.flatten(inputs), layer(*inputs))


@tf.custom_gradient
def _sine_with_half(x: Any) -> Any:
    return tf.sin(x), lambda gradient: gradient * 0.5


def _update_slices(x: Any) -> Any:
    y = tf.tensor_scatter_nd_update(x, [[0], [2]], 2.0 * x[1:3])
    return tf.concat([y[:1] * x[1:2], y[1:]], 0)


def _scatter_rows(x: Any) -> Any:
    return tf.math.unsorted_segment_sum(x * x, tf.constant([3, 0, 3, 1]), 4)


def _branch_on_values(x: Any) -> Any:
    return tf.cond(tf.reduce_sum(x) > 0.0, lambda: tf.exp(x), lambda: tf.sin(x))


def _loop_three_times(x: Any) -> Any:
    _, y = tf.while_loop(lambda i, _: i < 3, lambda i, y: (i + 1, tf.tanh(tf.matmul(y, x))), (tf.constant(0), x))
    return y


def _map_rows(x: Any) -> Any:
    return tf.map_fn(lambda row: row * tf.reduce_sum(row), x), tf.scan(lambda total, row: total + row * row, x)


def _collect_rows(x: Any) -> Any:
    rows = tf.TensorArray(tf.float32, size=0, dynamic_size=True, element_shape=[SIZE])
    for index in range(SIZE):
        rows = rows.write(index, x[index] * float(index + 1))
    return rows.stack()


def _where_branches(x: Any) -> Any:
    y = tf.where(x > tf.reduce_mean(x, axis=1, keepdims=True), tf.sin(x), tf.cos(x))
    return y * tf.reshape(tf.linspace(0.25, 1.25, tf.size(y)), tf.shape(y))


def _apply_own_gradient(x: Any) -> Any:
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.reduce_sum(_sine_with_half(x))
    return _sine_with_half(x), tape.gradient(y, x)


def _differentiate_inside(x: Any) -> Any:
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.reduce_sum(tf.tanh(x * tf.sin(x)))
    return tape.gradient(y, x)


def _differentiate_by_entry(x: Any) -> Any:
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.reduce_prod(tf.matmul(x, x), axis=0)
    return tape.jacobian(y, x, experimental_use_pfor=False)


def _return_containers(x: Any) -> Any:
    return {"a": x * 2.0, "b": [tf.reduce_sum(x), (x - 1.0,)]}


def _stop_gradient(x: Any) -> Any:
    return x / tf.stop_gradient(tf.math.reduce_std(x)) * tf.stop_gradient(x)


def _determinant(x: Any) -> Any:
    return tf.linalg.slogdet(x + 3.0 * tf.eye(4))


def _sort_rows(x: Any) -> Any:
    places = tf.argsort(x, axis=1)
    return tf.cumsum(tf.sort(x, axis=1), axis=1), tf.gather(x, places[:, :2], batch_dims=1), tf.math.top_k(x, 2).values


def _use_shape(x: Any) -> Any:
    rows = tf.shape(x)[0]
    return tf.reduce_sum(x, 0) / tf.cast(rows, tf.float32), tf.fill([rows], 2.0) * x[:, 0]


def _compute_in_low_formats(x: Any) -> Any:
    half = tf.cast(x, tf.float16)
    return tf.cast(tf.cast(x, tf.bfloat16) * 3, tf.float32) * tf.cast(half * half, tf.float32)


def _image(x: Any) -> Any:
    return tf.reshape(x, [-1, 2, 2, 1])


def _resize_images(x: Any) -> Any:
    return tf.image.resize(_image(x), (5, 3))


def _resize_by_other_methods(x: Any) -> Any:
    return [tf.image.resize(_image(x), (5, 3), method) for method in ("nearest", "bicubic", "lanczos3")]


def _resize_low_images(x: Any) -> Any:
    return tf.image.resize(tf.tanh(tf.cast(_image(x), tf.float16)), (5, 3))


@cache
def _layer() -> keras.Layer:
    layer = keras.layers.Dense(4)
    layer.build((None, SIZE))
    layer.kernel.assign(square()[::-1])
    return layer


def _through_a_layer(x: Any) -> Any:
    return _layer()(x)


class _CompiledLayer(keras.layers.Layer):
    """A layer whose call is a tf.function, in which the inner layer creates its weights."""

    def __init__(self) -> None:
        super().__init__(name="compiled_layer")
        self.inner = keras.layers.Dense(4)

    @tf.function
    def call(self, x: Any) -> Any:
        return self.inner(x)


_compiled_layer = cache(_CompiledLayer)


def _through_a_compiled_layer(x: Any) -> Any:
    return _compiled_layer()(x)


_FUNCTIONS: Mapping[str, Function] = MappingProxyType(
    {
        "updated": _update_slices,
        "scattered": _scatter_rows,
        "branch": _branch_on_values,
        "loop": _loop_three_times,
        "mapped": _map_rows,
        "collected": _collect_rows,
        "chosen": _where_branches,
        "own-gradient": _apply_own_gradient,
        "second": _differentiate_inside,
        "jacobian": _differentiate_by_entry,
        "containers": _return_containers,
        "stopped": _stop_gradient,
        "determinant": _determinant,
        "ordered": _sort_rows,
        "sized": _use_shape,
        "low": _compute_in_low_formats,
        "resized": _resize_images,
        "resized-by-others": _resize_by_other_methods,
        "low-resized": _resize_low_images,
        "through-a-layer": _through_a_layer,
        "through-a-compiled-layer": _through_a_compiled_layer,
    }
)


class TensorFlowFunctions(BaseFunctions):
    """Functions compiled by tf.function, also with XLA."""

    functions = _FUNCTIONS

    def techniques(self) -> tuple[str, ...]:
        return (
            "compiled",
            "compiled-by-xla",
            "compiled-inside",
            "unknown-batch",
            "unknown-batch-by-xla",
            "recomputed",
            "recomputed-in-a-loop",
        )

    def compute(self, name: str, technique: str) -> Values:
        x = tf.constant(square())
        try:
            outputs, gradient = self._apply_technique(self.functions[name], technique)(x)
        except _NO_KERNEL as error:
            if "xla" not in technique and technique != "compiled-inside":
                raise
            raise Unsupported(Capability.CONTROL_FLOW, str(error)) from error
        return _name_arrays("value", tf.nest.flatten(outputs)) | _name_arrays("gradient", [gradient])

    def _apply_technique(self, function: Function, technique: str) -> Function:
        """The technique as a function from x to outputs and gradient."""
        signature = [tf.TensorSpec([None, SIZE], tf.float32)]
        match technique:
            case "compiled":
                return tf.function(_with_gradient(function))
            case "compiled-by-xla":
                return tf.function(_with_gradient(function), jit_compile=True)
            case "compiled-inside":
                return tf.function(_with_gradient(tf.function(function)), jit_compile=True)
            case "unknown-batch":
                return tf.function(_with_gradient(function), input_signature=signature)
            case "unknown-batch-by-xla":
                return tf.function(_with_gradient(function), input_signature=signature, jit_compile=True)
            case "recomputed":
                return tf.function(_with_gradient(tf.recompute_grad(function)))
            case "recomputed-in-a-loop":
                return tf.function(_with_gradient(_in_a_loop(tf.recompute_grad(function))))
        return _with_gradient(function)


def _with_gradient(function: Function) -> Function:
    """A function from x to the outputs of a function and the gradient of x."""

    def both(x: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            outputs = function(x)
        flat = tf.nest.flatten(outputs)
        draws = [tf.constant(incoming((SIZE,) * len(output.shape)), output.dtype) for output in flat]
        output_gradients = [
            tf.reshape(tf.reshape(draw, [-1])[: tf.size(output)], tf.shape(output))
            for draw, output in zip(draws, flat, strict=True)
        ]
        return outputs, tape.gradient(flat, x, output_gradients, unconnected_gradients="zero")

    return both


def _in_a_loop(function: Function) -> Function:
    """The function, called once inside a graph loop."""

    def run_in_loop(x: Any) -> Any:
        first = tf.nest.flatten(function(x))
        outputs = [tf.zeros_like(output) for output in first]
        for _ in tf.range(1):
            outputs = tf.nest.flatten(function(x))
        return tf.nest.pack_sequence_as(function(x), outputs)

    return run_in_loop
