"""Keras optimizers from recipes, and their state by canonical names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import keras

from fixtures.recipe import (
    SGD,
    Adagrad,
    Adam,
    AdamW,
    DynamicScaling,
    Optimizer,
    Recipe,
    RMSprop,
    StaticScaling,
    written,
)
from frameworks.contract import Attempt, Capability, Unsupported
from frameworks.keras_parts.scaler import inner_of, loss_scaled

CLIPS_APART = "MultiOptimizer clips nothing itself, and each of its optimizers clips by the norm of its own variables"


def _rate(recipe: Recipe) -> float | keras.optimizers.schedules.LearningRateSchedule:
    """The recipe's rate; `PiecewiseConstantDecay` keeps a value up to and including its boundary step."""
    base = recipe.optimizer.learning_rate
    if recipe.schedule is None:
        return float(base)
    return keras.optimizers.schedules.PiecewiseConstantDecay(
        [boundary - 1 for boundary in recipe.schedule.boundaries],
        [base * factor for factor in recipe.schedule.factors],
    )


_KINDS: Mapping[type[Optimizer], type[keras.optimizers.Optimizer]] = {
    SGD: keras.optimizers.SGD,
    Adam: keras.optimizers.Adam,
    AdamW: keras.optimizers.AdamW,
    Adagrad: keras.optimizers.Adagrad,
    RMSprop: keras.optimizers.RMSprop,
}
_ARGUMENTS = {
    "beta1": "beta_1",
    "beta2": "beta_2",
    "initial": "initial_accumulator_value",
    "decay": "rho",
    "centred": "centered",
}
"""Arguments that Keras calls differently from a recipe."""


def _one(recipe: Recipe, given: Mapping[str, Any], undecayed: Sequence[keras.Variable]) -> keras.optimizers.Optimizer:
    own = {name: value for name, value in written(recipe.optimizer).items() if value is not None}
    common: dict[str, Any] = {
        **given,
        **{_ARGUMENTS.get(name, name): value for name, value in own.items()},
        "learning_rate": _rate(recipe),
        "global_clipnorm": recipe.clip,
        "gradient_accumulation_steps": recipe.accumulation if recipe.accumulation > 1 else None,
        "loss_scale_factor": recipe.scaling.scale if isinstance(recipe.scaling, StaticScaling) else None,
    }
    if recipe.average is not None:
        common |= {"use_ema": True, "ema_momentum": recipe.average}
    made = _KINDS[type(recipe.optimizer)](**common)
    if undecayed:
        made.exclude_from_weight_decay(var_list=list(undecayed))
    return made


def _inner(
    recipe: Recipe, named: Mapping[str, keras.Variable], clips_together: Attempt, given: Mapping[str, Any]
) -> keras.optimizers.Optimizer:
    """One optimizer, or a `MultiOptimizer` with one for the variables at even and one for those at odd places."""
    variables, undecayed = list(named.values()), [named[name] for name in recipe.undecayed]
    if recipe.groups == recipe.optimizers == 1:
        return _one(recipe, given, undecayed)
    if recipe.clip is not None:
        asked = Capability.GROUPS if recipe.groups > 1 else Capability.TWO_OPTIMIZERS
        raise Unsupported(asked, CLIPS_APART, clips_together)
    second = _one(recipe, given, undecayed)
    chosen = keras.optimizers.OptimizerMap(
        _one(recipe, given, undecayed), {variable.path: second for variable in variables[1::2]}
    )
    scale = recipe.scaling.scale if isinstance(recipe.scaling, StaticScaling) else None
    return keras.optimizers.MultiOptimizer(chosen, loss_scale_factor=scale)


def make_optimizer(
    recipe: Recipe, variables: Mapping[str, keras.Variable], clips_together: Attempt, **given: Any
) -> keras.optimizers.Optimizer:
    """The recipe's optimizer for the variables, inside a `LossScaleOptimizer` if its scaling is dynamic.

    Args:
        variables: by canonical name, in model order.
        clips_together: tries whether two optimizers clip by the norm of all gradients.
        given: additional arguments of optimizers, such as a name.

    Raises:
        Unsupported: GROUPS or TWO_OPTIMIZERS, together with a clip.
    """
    inner = _inner(recipe, variables, clips_together, given)
    return loss_scaled(inner, recipe.scaling) if isinstance(recipe.scaling, DynamicScaling) else inner


def shown_by(optimizer: keras.optimizers.Optimizer) -> keras.optimizers.Optimizer:
    """The optimizer whose count of updates and rate are read.

    One of a `MultiOptimizer`'s own, as its documentation says: it has no rate, and its count is one of calls.
    """
    return next(iter(getattr(inner_of(optimizer), "optimizers", [])), optimizer)


def slots(optimizer: keras.optimizers.Optimizer, variables: dict[str, keras.Variable]) -> dict[str, keras.Variable]:
    """Per-parameter state of the optimizer as "SLOT/PARAMETER", the gradient accumulators among it.

    Keras names such a variable by its parameter's path and the slot, joined by "_".
    """
    prefixes = {f"{variable.path.replace('/', '_')}_": name for name, variable in variables.items()}
    found = {}
    for variable in inner_of(optimizer).variables:
        owners = [prefix for prefix in prefixes if variable.name.startswith(prefix)]
        if owners:
            prefix = max(owners, key=len)
            found[f"{variable.name.removeprefix(prefix)}/{prefixes[prefix]}"] = variable
    return found
