"""Keras' optimizers, and what techniques make of them on any backend."""

from collections.abc import Callable, Mapping, Sequence
from inspect import signature
from pathlib import Path
from typing import Any

import keras
import numpy as np

from fixtures.arrays import FORMATS, Array
from frameworks.base.shipped import FROZEN, HALFWAY, RATE, ListedOptimizers, Options, gradients, infinite

Variables = list[keras.Variable]
Apply = Callable[[Sequence[Any]], None]
_SCALE = 1024.0
_LOOSE = 2.0**30
_OPTIONS: Mapping[str, Options] = {
    "accumulated": {"gradient_accumulation_steps": 2},
    "averaged": {"use_ema": True},
    "clipped-loosely": {"global_clipnorm": _LOOSE},
    "clipped-loosely-one-by-one": {"clipnorm": _LOOSE},
}


class KerasOptimizers(ListedOptimizers):
    """Classes of keras.optimizers, whose updates go through `apply`.

    Args:
        compiled: how the backend compiles an update; None if its updates are functions of their state.
    """

    file = Path(__file__).with_name("shipped.toml")
    module = keras.optimizers

    def __init__(self, compiled: Callable[[Apply], Apply] | None = None) -> None:
        super().__init__()
        self.compiled = compiled

    def techniques(self) -> tuple[str, ...]:
        own = (*_OPTIONS, "loaded", "rebuilt", "scheduled", "scaled", "beside-frozen")
        return (*own, "without-state" if self.compiled is None else "compiled")

    def get_options_without_decay(self, name: str) -> Options | None:
        if name == "Ftrl":  # weights are a function of the gradients alone, whatever they began with
            return None
        taken = signature(self.find(name)).parameters
        return {
            decay: 0.0 for decay in ("weight_decay", "adam_weight_decay") if decay in taken and taken[decay].default
        }

    def train(self, name: str, options: Options, technique: str, start: Sequence[Array]) -> Sequence[Array]:
        variables = _variables(start)
        optimizer = self._make_optimizer(name, options, technique)
        if technique == "beside-frozen":
            variables.insert(1, keras.Variable(np.ones(FROZEN, np.float32), name="frozen"))
        optimizer.build(variables)
        apply = _apply(optimizer, variables, technique)
        if technique == "compiled" and self.compiled is not None:
            apply = self.compiled(apply)
        for index, values in enumerate(gradients(start, technique)):
            update = _update(values, optimizer, technique)
            if index == HALFWAY and technique in ("loaded", "rebuilt"):
                optimizer = self._again(name, options, optimizer, variables, technique)
                apply = _apply(optimizer, variables, technique)
            if index == HALFWAY and technique == "scaled":
                apply(_update(infinite(start), optimizer, technique))
                update = _update(values, optimizer, technique)
            for _ in range(2 if technique == "accumulated" else 1):
                apply(update)
        return [_array(variable) for variable in variables if variable.name != "frozen"]

    def _make_optimizer(self, name: str, options: Options, technique: str) -> keras.optimizers.Optimizer:
        rate: Any = RATE
        if technique == "scheduled":
            rate = keras.optimizers.schedules.PiecewiseConstantDecay([100], [RATE, RATE])
        optimizer = self.find(name)(learning_rate=rate, **{**options, **_OPTIONS.get(technique, {})})
        return keras.optimizers.LossScaleOptimizer(optimizer, _SCALE) if technique == "scaled" else optimizer

    def _again(
        self, name: str, options: Options, optimizer: Any, variables: Variables, technique: str
    ) -> keras.optimizers.Optimizer:
        """A new optimizer, from the options or the old one's configuration, with the old one's saved state."""
        rebuilt = technique == "rebuilt"
        other = (
            type(optimizer).from_config(optimizer.get_config()) if rebuilt else self._make_optimizer(name, options, "")
        )
        other.build(variables)
        store: dict[str, Any] = {}
        optimizer.save_own_variables(store)
        other.load_own_variables({key: np.array(value) for key, value in store.items()})
        return other


def _variables(start: Sequence[Array]) -> Variables:
    return [keras.Variable(value, dtype=value.dtype.name, name=f"weight_{index}") for index, value in enumerate(start)]


def _array(variable: keras.Variable) -> Array:
    """The values, by way of a format that every backend gives to NumPy."""
    wide = np.asarray(keras.ops.stop_gradient(keras.ops.cast(variable, "float32")))
    return wide.astype(FORMATS[variable.dtype].dtype)


def _update(values: Sequence[Array], optimizer: Any, technique: str) -> list[Any]:
    """Gradients as the optimizer takes them, multiplied by its scale."""
    if technique == "scaled":
        values = [value * np.float32(optimizer.scale_loss(1.0)) for value in values]
    gradients: list[Any] = [keras.ops.convert_to_tensor(value) for value in values]
    if technique == "beside-frozen":
        gradients.insert(1, None)
    return gradients


def _apply(optimizer: Any, variables: Variables, technique: str) -> Apply:
    def apply(update: Sequence[Any]) -> None:
        if technique != "without-state":
            optimizer.apply(update, variables)
            return
        values = [variable.value for variable in variables], [variable.value for variable in optimizer.variables]
        new, state = optimizer.stateless_apply(values[1], update, values[0])
        for variable, value in zip([*variables, *optimizer.variables], [*new, *state], strict=True):
            variable.assign(value)

    return apply
