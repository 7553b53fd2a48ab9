"""Low-rank adapters by `enable_lora` of Keras' dense layers, over float layers and over layers that Keras quantizes."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from fixtures.arrays import Array
from fixtures.recipe import Recipe
from frameworks.contract import Capability, LowRank
from frameworks.keras_common.optimizers import make_optimizer
from frameworks.tf.core.steps import VARIANTS, TapeBackend, as_array, compile_function, recomputing

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
_FILE = "network.keras"
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
        self._model.save(path / _FILE)

    def load(self, path: Path) -> None:
        self._model = keras.models.load_model(path / _FILE)
