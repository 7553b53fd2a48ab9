"""Optimizers of Optax, and what its wrappers and JAX's transformations make of them."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from inspect import signature
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib
from flax import serialization

from fixtures.arrays import Array
from frameworks.base.shipped import FROZEN, HALFWAY, RATE, ListedOptimizers, Options, gradients, infinite
from frameworks.contract import Capability, Unsupported

Tree = dict[str, Any]
_VALUED = ("polyak_sgd", "contrib.momo", "contrib.momo_adam")
"""Optimizers that take the loss too."""
_JOINT = ("contrib.dog", "contrib.dowg", "contrib.dadapt_adamw", "contrib.prodigy", *_VALUED)
"""Optimizers with one rate for all parameters."""
_NEVER_AT_REST = ("fromage", "yogi")
"""Optimizers whose rule shrinks weights, or whose moments begin above zero."""
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
        return optax.with_extra_args_support(_WRAPPED.get(technique, _same)(optimizer))


def _same(optimizer: Any) -> Any:
    return optimizer


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
"""Techniques whose update is one program; those of conditions compile with each call otherwise."""
_LOOPS = ("contrib.muon",)
"""Optimizers that compile a loop with each call otherwise."""
_QUICKLY = {"xla_backend_optimization_level": 0}


def _apply_step(optimizer: Any, more: Mapping[str, Any], weights: Tree, state: Any, update: Tree) -> tuple[Tree, Any]:
    moves, state = optimizer.update(update, state, weights, **more)
    return optax.apply_updates(weights, moves), state


def _tree(values: Sequence[Array], weights: Tree) -> Tree:
    update = {str(index): jnp.asarray(value) for index, value in enumerate(values)}
    return {name: update.get(name, jnp.ones_like(weight)) for name, weight in weights.items()}


def _save_and_load(saved: Any, start: Sequence[Array], optimizer: Any) -> Any:
    """What was saved, read into new weights and a new state."""
    weights = {str(index): jnp.asarray(value) for index, value in enumerate(start)}
    restored: Any = serialization.from_bytes((weights, optimizer.init(weights)), serialization.to_bytes(saved))
    return jax.tree.map(jnp.asarray, restored)
