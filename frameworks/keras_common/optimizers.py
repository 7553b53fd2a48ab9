"""Keras optimizers from recipes, and their state by canonical names."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import keras
import numpy as np

from fixtures import recipe as recipes
from fixtures.schedules import Curve
from frameworks.contract import Capability, Unsupported
from frameworks.keras_common import ways
from frameworks.keras_common.backend import KerasBackend, number, scalars
from frameworks.keras_common.scaler import inner_of, loss_scaled
from frameworks.keras_common.schedules import shipped

ACCUMULATOR, AVERAGE = "gradient_accumulator/", "average/"
"""Slots of a parameter's accumulated gradient and of its average."""

CLIPS_APART = "MultiOptimizer clips nothing itself, and each of its optimizers clips by the norm of its own variables"


def _rate(recipe: recipes.Recipe) -> float | keras.optimizers.schedules.LearningRateSchedule:
    """The recipe's rate; `PiecewiseConstantDecay` keeps a value up to and including its boundary step."""
    base = recipe.optimizer.learning_rate
    if recipe.schedule is None:
        return float(base)
    if isinstance(recipe.schedule, Curve):
        return shipped(base, recipe.schedule)
    return keras.optimizers.schedules.PiecewiseConstantDecay(
        [boundary - 1 for boundary in recipe.schedule.boundaries], [base * factor for factor in recipe.schedule.factors]
    )


NEWER: tuple[type[recipes.Optimizer], ...] = (recipes.Adafactor, recipes.Muon)
"""Optimizers that older versions lack."""
_KINDS: Mapping[type[recipes.Optimizer], type[keras.optimizers.Optimizer]] = {
    recipes.SGD: keras.optimizers.SGD,
    recipes.Adam: keras.optimizers.Adam,
    recipes.AdamW: keras.optimizers.AdamW,
    recipes.Adagrad: keras.optimizers.Adagrad,
    recipes.RMSprop: keras.optimizers.RMSprop,
    **{kind: getattr(keras.optimizers, kind.__name__) for kind in NEWER if hasattr(keras.optimizers, kind.__name__)},
}
_ARGUMENTS = {
    "beta1": "beta_1",
    "beta2": "beta_2",
    "initial": "initial_accumulator_value",
    "decay": "rho",
    "centred": "centered",
    "epsilon1": "epsilon_1",
    "epsilon2": "epsilon_2",
    "threshold": "clip_threshold",
    "steps": "ns_steps",
}
"""Arguments that Keras calls differently from a recipe."""


def _own(optimizer: recipes.Optimizer) -> dict[str, Any]:
    """The arguments of an optimizer, by Keras' names; Muon takes in embeddings, and decays matrices alone."""
    given = {name: value for name, value in recipes.written(optimizer).items() if value is not None}
    match optimizer:
        case recipes.Adafactor():
            given["beta_2_decay"] = -given.pop("decay")
        case recipes.Muon(adjustment=adjustment, coefficients=coefficients, weight_decay=decay):
            del given["coefficients"], given["adjustment"]
            given |= dict(zip(("muon_a", "muon_b", "muon_c"), coefficients, strict=True))
            given |= {"rms_rate": _RMS_RATES[adjustment], "weight_decay": decay or None, "adam_weight_decay": None}
            given["exclude_embeddings"] = False
    return {_ARGUMENTS.get(name, name): value for name, value in given.items()}


_RMS_RATES = {"rms": 0.2, "none": None, "width": "width"}


def _one(
    recipe: recipes.Recipe, given: Mapping[str, Any], undecayed: Sequence[keras.Variable]
) -> keras.optimizers.Optimizer:
    common: dict[str, Any] = {
        **given,
        **_own(recipe.optimizer),
        "learning_rate": _rate(recipe),
        "global_clipnorm": recipe.clip,
        "gradient_accumulation_steps": recipe.accumulation if recipe.accumulation > 1 else None,
        "loss_scale_factor": recipe.scaling.scale if isinstance(recipe.scaling, recipes.StaticScaling) else None,
    }
    if recipe.average is not None:
        common |= {"use_ema": True, "ema_momentum": recipe.average}
    made = ways.rebuilt(recipe, ways.made(recipe, _KINDS[type(recipe.optimizer)], common))
    if undecayed:
        made.exclude_from_weight_decay(var_list=list(undecayed))
    return made


def _inner(
    recipe: recipes.Recipe, named: Mapping[str, keras.Variable], backend: KerasBackend, given: Mapping[str, Any]
) -> keras.optimizers.Optimizer:
    """One optimizer, or a `MultiOptimizer` with one for the variables at even and one for those at odd places."""
    variables, undecayed = list(named.values()), [named[name] for name in recipe.undecayed]
    if recipe.groups == recipe.optimizers == 1:
        return _one(recipe, given, undecayed)
    if recipe.clip is not None:
        asked = Capability.GROUPS if recipe.groups > 1 else Capability.TWO_OPTIMIZERS
        raise Unsupported(asked, CLIPS_APART, partial(clips_together, backend))
    second = _one(recipe.replace(optimizer=recipe.of_groups[-1]), given, undecayed)
    first = _one(recipe, given, undecayed)
    at_even_places = {variable.path: first for variable in variables[::2]}  # a MultiOptimizer lists its default last
    chosen = keras.optimizers.OptimizerMap(second, at_even_places)
    scale = recipe.scaling.scale if isinstance(recipe.scaling, recipes.StaticScaling) else None
    return keras.optimizers.MultiOptimizer(chosen, loss_scale_factor=scale)


def make_optimizer(
    recipe: recipes.Recipe, variables: Mapping[str, keras.Variable], backend: KerasBackend, **given: Any
) -> keras.optimizers.Optimizer:
    """The recipe's optimizer for the variables, inside a `LossScaleOptimizer` if its scaling is dynamic.

    Args:
        variables: by canonical name, in model order.
        backend: makes the updates of an attempt that a refusal names.
        given: additional arguments of optimizers, such as a name.

    Raises:
        Unsupported: GROUPS or TWO_OPTIMIZERS, together with a clip.
    """
    inner = _inner(recipe, variables, backend, given)
    if not isinstance(recipe.scaling, recipes.DynamicScaling):
        return inner
    scaled = loss_scaled(inner, recipe.scaling)
    return scaled if recipe.undecayed else ways.rebuilt(recipe, scaled)


def clips_together(backend: KerasBackend) -> bool:
    """Whether two optimizers in a `MultiOptimizer` clip by the global norm of all gradients."""
    for inside, around in (({"global_clipnorm": 1.0}, {}), ({}, {"global_clipnorm": 1.0})):
        weights = scalars(value=0.0)
        first, second = (keras.optimizers.SGD(1.0, **inside) for _ in weights)
        chosen = keras.optimizers.OptimizerMap(first, {weights[1].path: second})
        try:
            both = keras.optimizers.MultiOptimizer(chosen, **around)
        except TypeError:
            continue
        both.build(weights)
        backend.apply(both, [3.0, 4.0], weights)
        if np.allclose([number(weight) for weight in weights], [-0.6, -0.8]):
            return True
    return False


def readable_optimizer(optimizer: keras.optimizers.Optimizer) -> keras.optimizers.Optimizer:
    """The optimizer whose count of updates and rate are read.

    One of a `MultiOptimizer`'s own, as its documentation says: it has no rate, and its count is one of calls.
    """
    return next(iter(getattr(inner_of(optimizer), "optimizers", [])), optimizer)


def slots(optimizer: keras.optimizers.Optimizer, variables: dict[str, keras.Variable]) -> dict[str, keras.Variable]:
    """Per-parameter state of the optimizer as "SLOT/PARAMETER", the gradient accumulators among it.

    Keras names such a variable by its parameter's path and the slot, joined by "_".
    """
    prefixes = {f"{variable.path.replace('/', '_')}_": name for name, variable in variables.items()}
    result = {}
    for variable in inner_of(optimizer).variables:
        owners = [prefix for prefix in prefixes if variable.name.startswith(prefix)]
        if owners:
            prefix = max(owners, key=len)
            result[f"{variable.name.removeprefix(prefix)}/{prefixes[prefix]}"] = variable
    return result
