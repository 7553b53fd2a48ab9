"""Keras optimizers from recipes, and their state by canonical names."""

from __future__ import annotations

import keras
import numpy as np

from fixtures.arrays import Array
from fixtures.recipe import SGD, Adam, AdamW, DynamicScaling, Recipe, StaticScaling
from frameworks.contract import Capability, Unsupported

GROWTH, BACKOFF = 2.0, 0.5
"""Factors that are written into `LossScaleOptimizer`; its documentation says doubled and halved."""


def _rate(recipe: Recipe) -> float | keras.optimizers.schedules.LearningRateSchedule:
    """The recipe's rate; `PiecewiseConstantDecay` keeps a value up to and including its boundary step."""
    base = recipe.optimizer.learning_rate
    if recipe.schedule is None:
        return float(base)
    return keras.optimizers.schedules.PiecewiseConstantDecay(
        [boundary - 1 for boundary in recipe.schedule.boundaries],
        [base * factor for factor in recipe.schedule.factors],
    )


def _inner(recipe: Recipe) -> keras.optimizers.Optimizer:
    common = {
        "global_clipnorm": recipe.clip,
        "gradient_accumulation_steps": recipe.accumulation if recipe.accumulation > 1 else None,
        "loss_scale_factor": recipe.scaling.scale if isinstance(recipe.scaling, StaticScaling) else None,
    }
    if recipe.average is not None:
        common |= {"use_ema": True, "ema_momentum": recipe.average}
    rate = _rate(recipe)
    match recipe.optimizer:
        case SGD(momentum=momentum):
            return keras.optimizers.SGD(rate, momentum=momentum, **common)
        case Adam() as adam:
            return keras.optimizers.Adam(rate, beta_1=adam.beta1, beta_2=adam.beta2, epsilon=adam.epsilon, **common)
        case AdamW() as adamw:
            return keras.optimizers.AdamW(
                rate,
                weight_decay=adamw.weight_decay,
                beta_1=adamw.beta1,
                beta_2=adamw.beta2,
                epsilon=adamw.epsilon,
                **common,
            )


def make_optimizer(recipe: Recipe) -> keras.optimizers.Optimizer:
    """The recipe's optimizer, inside a `LossScaleOptimizer` if its scaling is dynamic.

    Raises:
        Unsupported: SCALING_FACTORS, for factors other than 2 and 1/2.
    """
    inner = _inner(recipe)
    scaling = recipe.scaling
    if not isinstance(scaling, DynamicScaling):
        return inner
    if scaling.growth not in (None, GROWTH) or scaling.backoff not in (None, BACKOFF):
        raise Unsupported(Capability.SCALING_FACTORS, "LossScaleOptimizer always doubles and halves its scale")
    given = {"initial_scale": scaling.initial, "dynamic_growth_steps": scaling.interval}
    return keras.optimizers.LossScaleOptimizer(inner, **{name: v for name, v in given.items() if v is not None})


def inner_of(optimizer: keras.optimizers.Optimizer) -> keras.optimizers.Optimizer:
    """The optimizer that updates, without its loss scaling."""
    return optimizer.inner_optimizer if isinstance(optimizer, keras.optimizers.LossScaleOptimizer) else optimizer


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


def measured_factors(optimizer: keras.optimizers.LossScaleOptimizer) -> tuple[float, float]:
    """Growth and backoff factor, seen on a copy of the scaler: Keras has no attribute to read them from."""
    config = optimizer.get_config() | {"inner_optimizer": keras.optimizers.SGD(0.0), "dynamic_growth_steps": 1}
    weight = keras.Variable(np.zeros((), np.float32))
    seen: list[float] = []
    for gradient in (0.0, np.inf):
        copy = keras.optimizers.LossScaleOptimizer(**(config | {"initial_scale": 1.0}))
        copy.apply([keras.ops.convert_to_tensor(np.float32(gradient))], [weight])
        seen.append(float(copy.dynamic_scale))
    return seen[0], seen[1]


def as_array(variable: keras.Variable) -> Array:
    """A copy of the variable's value in its true format."""
    return np.array(variable.numpy())
