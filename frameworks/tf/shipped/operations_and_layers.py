"""TensorFlow's operations and Keras' layers with examples, and what techniques make of them."""

import inspect
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from fixtures.arrays import Array
from frameworks.base.shipped import FACTOR, ListedParts, incoming
from frameworks.contract import Capability, Unsupported, Values
from frameworks.keras_common.settings import dtype_policy

Call = Callable[[Callable[..., Any], Sequence[Any]], Any]
Tensors = Sequence[tf.Tensor]

_TRAINED = ("Bidirectional", "TimeDistributed", "SpectralNormalization")
"""Layers around another layer."""


def _plain(call: Callable[..., Any], arguments: Sequence[Any]) -> Any:
    return call(*arguments)


def _recompute_call(call: Callable[..., Any], arguments: Sequence[Any]) -> Any:
    return keras.remat(call)(*arguments)


def _compile_and_call(by_xla: bool, call: Callable[..., Any], arguments: Sequence[Any]) -> Any:
    try:
        return tf.function(call, jit_compile=by_xla)(*arguments)
    except (tf.errors.InvalidArgumentError, tf.errors.UnimplementedError) as error:
        raise Unsupported(Capability.SHIPPED_OPERATIONS, str(error)) from error


def _leaf(value: Any) -> Any:
    if isinstance(value, list):
        return [_leaf(element) for element in value]
    return tf.constant(value) if isinstance(value, np.ndarray) else value


def _floating(nest: Any) -> list[Any]:
    return [leaf for leaf in tf.nest.flatten(nest) if tf.is_tensor(leaf) and leaf.dtype in (tf.float32, tf.float16)]


def _array(value: Any) -> Any:
    return None if value is None else tf.convert_to_tensor(value).numpy()


class _Parts(ListedParts):
    """What operations and layers share.

    Args:
        compiled_by_xla: by which compiler "compiled" goes, XLA or tf.function alone.
    """

    file = Path(__file__).with_name("shipped.toml")
    own: tuple[str, ...]

    def __init__(self, *, compiled_by_xla: bool) -> None:
        super().__init__()
        self.by_xla = compiled_by_xla
        self.calls: dict[str, Call] = {"recomputed": _recompute_call}
        if compiled_by_xla or self.part == "layers":
            self.calls |= {"compiled": partial(_compile_and_call, compiled_by_xla)}

    def techniques(self) -> tuple[str, ...]:
        return (*self.calls, *self.own)

    def arguments(self, name: str) -> list[Any]:
        """The inputs of a part."""
        return [_leaf(value) for value in self.inputs(name)]

    def run_and_differentiate(
        self, call: Callable[..., Any], arguments: Sequence[Any], weights: Tensors, technique: str
    ) -> Values:
        """Outputs and gradients of a call; `weights` are the variables that it reads."""
        leaves = [*_floating(list(arguments)), *weights]
        with tf.GradientTape(persistent=technique == "used-twice") as tape:
            tape.watch(leaves)
            outputs = _floating(self.calls.get(technique, _plain)(call, arguments))
        output_gradients = [tf.cast(tf.constant(incoming(tuple(output.shape))), output.dtype) for output in outputs]
        if technique == "used-twice":
            tape.gradient(outputs, leaves, output_gradients)
        if technique == "scaled":
            result = tape.gradient(outputs, leaves, [gradient * FACTOR for gradient in output_gradients])
            result = [None if gradient is None else tf.convert_to_tensor(gradient) / FACTOR for gradient in result]
        else:
            result = tape.gradient(outputs, leaves, output_gradients)
        values = {f"value/{index}": _array(output) for index, output in enumerate(outputs)}
        return values | {f"gradient/{index}": _array(gradient) for index, gradient in enumerate(result)}


def _with(call: Callable[..., Any], numbers: Sequence[Any]) -> Callable[..., Any]:
    """The call with plain numbers at its end, which recomputation would make tensors of."""
    return lambda *arguments: call(*arguments, *numbers)


class Operations(_Parts):
    """Functions of tf.math, tf.nn, tf.linalg, tf.image and tf.signal."""

    part = "operations"
    module = tf
    own = ("one-input", "used-twice", "scaled")

    def at(self, name: str, *points: Array) -> tuple[Array, ...]:
        leaves = [tf.constant(point) for point in points]
        with tf.GradientTape() as tape:
            tape.watch(leaves)
            value = self.of_arrays(name, len(points))(*leaves)
        return tuple(map(_array, (value, *tape.gradient(value, leaves, unconnected_gradients="zero"))))

    def compute(self, name: str, technique: str) -> Values:
        arguments = self.arguments(name)
        numbers = [argument for argument in arguments if isinstance(argument, int | tuple)]
        arguments, call = arguments[: len(arguments) - len(numbers)], _with(self.find(name), numbers)
        if technique != "one-input":
            return self.run_and_differentiate(call, arguments, (), technique)
        result: dict[str, Any] = {}
        for index, leaf in enumerate(_floating(arguments)):
            with tf.GradientTape() as tape:
                tape.watch(leaf)
                outputs = _floating(call(*arguments))
            output_gradients = [tf.constant(incoming(tuple(output.shape))) for output in outputs]
            result[f"gradient/{index}"] = _array(tape.gradient(outputs, leaf, output_gradients))
        return result


class Layers(_Parts):
    """Layers of keras.layers in training."""

    part = "layers"
    module = keras.layers
    own = ("scope-off", "loaded", "rebuilt", "saved-whole")

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
            layer = self._other(name, layer, arguments, technique)
        weights = [variable.value for variable in layer.trainable_variables]
        called = self.run_and_differentiate(partial(_call_layer, layer), arguments, weights, technique)
        if technique == "recomputed":
            return called
        state = [variable for variable in layer.non_trainable_variables if variable.dtype.startswith("float")]
        return {**called, **{f"state/{index}": variable.numpy() for index, variable in enumerate(state)}}

    def _build(self, name: str, seed: int, arguments: Sequence[Any], **more: Any) -> keras.Layer:
        kind = self.find(name)
        if name in _TRAINED:
            inner = keras.layers.LSTM if name == "Bidirectional" else keras.layers.Dense
            more["layer"] = inner(3, dtype=more.get("dtype"))
        if "seed" in inspect.signature(kind).parameters:
            more["seed"] = 11
        layer = self.listed.build(kind, **more)
        layer(*arguments)
        stream = np.random.default_rng(seed)
        for variable in layer.variables:
            drawn = variable.dtype.startswith("float") and (variable.trainable or np.ptp(variable.numpy()) > 0)
            values = stream.uniform(-0.5, 0.5, variable.shape)  # without a seed for all, which empties caches
            variable.assign(values if drawn else variable)
        return layer

    def _other(self, name: str, layer: keras.Layer, arguments: Sequence[Any], technique: str) -> keras.Layer:
        """The layer by its configuration, or in a model that was saved and loaded."""
        if technique == "rebuilt":
            other = type(layer).from_config(layer.get_config())
            other(*arguments)
            other.set_weights(layer.get_weights())
            return other
        model = _model(layer, arguments)
        with TemporaryDirectory() as folder:
            if technique == "saved-whole":
                model.save(f"{folder}/model.keras")
                return keras.models.load_model(f"{folder}/model.keras").layers[-1]
            model.save_weights(f"{folder}/model.weights.h5")
            other = _model(self._build(name, 5, arguments), arguments)
            other.load_weights(f"{folder}/model.weights.h5")
        return other.layers[-1]


def _call_layer(layer: keras.Layer, *arguments: Any) -> Any:
    takes = "training" in inspect.signature(layer.call).parameters
    return layer(*arguments, **({"training": True} if takes else {}))


def _model(layer: keras.Layer, arguments: Sequence[Any]) -> keras.Model:
    inputs = tf.nest.map_structure(lambda x: keras.Input(batch_shape=x.shape, dtype=x.dtype.name), [*arguments])
    return keras.Model(tf.nest.flatten(inputs), layer(*inputs))
