"""Float8 with Keras: the scales and amax histories of dense layers are variables that their gradients overwrite."""

from collections.abc import Callable, Mapping
from functools import partial

import keras
import numpy as np
import tensorflow as tf

from fixtures.arrays import Array
from frameworks.contract import AmaxHistory, DelayedRule, Float8Rule, Operand, PassResult
from frameworks.tf.core.layers import as_array
from frameworks.tf.core.steps import compile_function

RULE = Float8Rule(DelayedRule("float8_e4m3fn", "float8_e5m2", lag=2), skipped="stays", mean="micro-batch")
"""A pass casts by the scale that is stored before it, and each micro-batch's loss is its own mean."""
_OPERANDS: dict[Operand, str] = {"input": "inputs", "kernel": "kernel", "gradient": "outputs_grad"}


def _histories(read: Callable[[str], keras.Variable]) -> dict[Operand, AmaxHistory]:
    """The delayed-scaling state of a layer, whose variables are read by their names."""
    return {
        operand: AmaxHistory(float(as_array(read(f"{name}_scale"))), as_array(read(f"{name}_amax_history")))
        for operand, name in _OPERANDS.items()
    }


class KerasDelayedProduct:
    """A `Dense` layer without a bias under `QuantizedFloat8DTypePolicy`, trained at a learning rate of zero.

    A step casts by the scale that is stored before it, so that its newest value is that of two steps before.
    """

    rule = RULE.product

    def __init__(self, kernel: Array, history: int, accumulation: int, mode: str, device: str) -> None:
        self._given, self._place = kernel, device
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
                self._layer._kernel.assign(self._given)
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
