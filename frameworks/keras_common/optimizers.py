"""Optimizers of recipes, their loss scaling and schedules, and Keras' own optimizers and schedules with examples."""

import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from inspect import signature
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np
from keras.callbacks import BackupAndRestore, Callback, ReduceLROnPlateau
from keras.optimizers import schedules

from fixtures import recipe as recipes
from fixtures.arrays import FORMATS, Array
from fixtures.optimizers import SGD, Adafactor, Adagrad, Adam, AdamW, Muon, Optimizer, RMSprop
from fixtures.recipe import DynamicScaling, Recipe, Steps
from fixtures.schedules import (
    Cosine,
    CosineRestarts,
    Curve,
    Exponential,
    InverseTime,
    Joined,
    Linear,
    Plateau,
    Polynomial,
)
from frameworks.base import optimizer_attempts, ships, takes
from frameworks.base.capability_attempts import Make
from frameworks.base.shipped import FROZEN, HALFWAY, RATE, ListedOptimizers, Options, gradients, infinite
from frameworks.contract import Attempt, Capability, Unsupported
from frameworks.keras_common.layers import Tensor
from frameworks.keras_common.settings import KerasBackend, number, scalars


def make_schedule(rate: float, curve: Curve) -> keras.optimizers.schedules.LearningRateSchedule:
    """The schedule that follows a curve from a rate.

    Raises:
        Unsupported: SCHEDULE, if Keras has no class for the curve.
    """
    match curve:
        case Exponential(ratio=ratio, every=every, staircase=staircase):
            return schedules.ExponentialDecay(rate, every, ratio, staircase=staircase)
        case InverseTime(rate=slope):
            return schedules.InverseTimeDecay(rate, 1, slope)
        case Polynomial(steps=steps, power=power, end=end):
            return schedules.PolynomialDecay(rate, steps, rate * end, power)
        case Cosine(steps=steps, end=end):
            return schedules.CosineDecay(rate, steps, alpha=end)
        case CosineRestarts(first=first, multiply=multiply, end=end):
            return schedules.CosineDecayRestarts(rate, first, t_mul=float(multiply), alpha=end)
        case Joined(parts=(Linear(start=start, end=1.0, steps=steps), Cosine() as cosine), boundaries=(boundary,)) if (
            steps == boundary
        ):
            return schedules.CosineDecay(
                rate * start, cosine.steps, alpha=cosine.end, warmup_target=rate, warmup_steps=steps
            )
    word = {"Chained": "chain", "Joined": "sequential", "Linear": "linear"}.get(type(curve).__name__, "cycl")
    attempt = partial(ships, "keras.optimizers.schedules", word)
    raise Unsupported(Capability.SCHEDULE, f"keras.optimizers.schedules has none for {curve}", attempt)


_ONE = "a Keras optimizer has one implementation on a backend and no argument for another"
REFUSED_OPTIONS: dict[Capability, str] = {
    Capability.SINGLE: _ONE,
    Capability.FOREACH: _ONE,
    Capability.FUSED: _ONE,
    Capability.CAPTURABLE: _ONE,
    Capability.DAMPENING: "keras.optimizers.SGD has no dampening",
    Capability.MAXIMIZE: "Keras' optimizers minimize, and have no argument to maximize",
    Capability.RATE_DECAY: "keras.optimizers.Adagrad has no decay of the rate but a schedule",
    Capability.COUPLED_DECAY: "weight_decay of Keras' optimizers is decoupled in all of them",
    Capability.TENSOR_RATE: "a Keras optimizer takes a number, a schedule or a callable as learning rate, not a tensor",
    Capability.SMALLEST_FACTORED: "keras.optimizers.Adafactor factors every variable of two dimensions or more",
    Capability.WIDTH_RATE: "keras.optimizers.Muon has no adjustment of the rate by the ratio of a matrix' sides",
}
_NEWER: Mapping[type[Optimizer], tuple[Capability, ...]] = {
    Adafactor: (Capability.ADAFACTOR, Capability.ABSOLUTE_RATE),
    Muon: (Capability.MUON, Capability.UNADJUSTED_RATE),
}
"""Optimizers that older versions of Keras lack, each with its capabilities."""
REFUSED_OPTIONS |= {
    capability: f"this version of Keras has no keras.optimizers.{kind.__name__}"
    for kind, capabilities in _NEWER.items()
    for capability in capabilities
    if not hasattr(keras.optimizers, kind.__name__)
}


def option_attempts(run: Make) -> dict[Capability, Attempt]:
    """Attempts for each option that Keras, or a version of it, lacks."""
    return optimizer_attempts(run, *chain.from_iterable(_NEWER.values())) | {
        Capability.SINGLE: partial(_moves, "SGD", foreach=False, fused=False),
        Capability.FOREACH: partial(_moves, "SGD", foreach=True),
        Capability.FUSED: partial(_moves, "SGD", fused=True),
        Capability.CAPTURABLE: partial(_moves, "SGD", capturable=True),
        Capability.DAMPENING: partial(_moves, "SGD", momentum=0.5, dampening=0.5),
        Capability.MAXIMIZE: partial(_moves, "SGD", maximize=True),
        Capability.RATE_DECAY: partial(_moves, "Adagrad", lr_decay=1.0),
        Capability.COUPLED_DECAY: _couples_decay,
        Capability.TENSOR_RATE: _takes_a_tensor,
        Capability.SMALLEST_FACTORED: partial(_moves, "Adafactor", smallest=9),
        Capability.WIDTH_RATE: partial(_moves, "Muon", rms_rate="width"),
    }


def _moves(name: str, **arguments: Any) -> bool:
    """Returns whether an optimizer accepts the arguments and moves every entry of a matrix."""
    weight = keras.Variable(np.ones((2, 2), np.float32))
    getattr(keras.optimizers, name)(0.5, **arguments).apply([keras.ops.ones((2, 2))], [weight])
    return bool(np.all(keras.ops.convert_to_numpy(weight) != 1.0))


def _update_weight(optimizer: keras.optimizers.Optimizer, *gradients: float) -> float:
    weight = keras.Variable(np.ones((), np.float32))
    for gradient in gradients:
        optimizer.apply([keras.ops.convert_to_tensor(np.float32(gradient))], [weight])
    return float(weight)


def _couples_decay() -> bool:
    """Returns whether weight decay enters the momentum: the weight is 1, 1/2, 0, with decoupled decay 1, 1/2, 1/4."""
    return _update_weight(keras.optimizers.SGD(1.0, momentum=0.5, weight_decay=0.5), 0.0, 0.0) == 0.0


def _takes_a_tensor() -> bool:
    return _update_weight(keras.optimizers.SGD(keras.ops.convert_to_tensor(np.float32(0.5))), 1.0) == 0.5


GROWTH, BACKOFF = 2.0, 0.5
"""Fixed factors of `LossScaleOptimizer`; its documentation says that the scale is doubled and halved."""


def has_factors_of(scaling: DynamicScaling) -> bool:
    """Returns whether `LossScaleOptimizer` has the factors that a recipe asks for."""
    return scaling.growth in (None, GROWTH) and scaling.backoff in (None, BACKOFF)


def is_dynamic(optimizer: keras.optimizers.Optimizer) -> bool:
    """Returns whether the optimizer has a dynamic loss scale."""
    return isinstance(optimizer, keras.optimizers.LossScaleOptimizer)


def inner_of(optimizer: keras.optimizers.Optimizer) -> keras.optimizers.Optimizer:
    """The optimizer without its loss scaling."""
    return optimizer.inner_optimizer if is_dynamic(optimizer) else optimizer


def loss_scale(optimizer: keras.optimizers.Optimizer) -> Any:
    """The loss scale: a variable if it is dynamic, else a number."""
    if is_dynamic(optimizer):
        return optimizer.dynamic_scale
    return 1.0 if optimizer.loss_scale_factor is None else optimizer.loss_scale_factor


class OptimizerReadings(NamedTuple):
    """Loss scale, number of applied updates, learning rate, and the scaler's growth counter (-1 without one)."""

    scale: Any
    updates: Any
    rate: Any
    good: Any


def read_optimizer(optimizer: keras.optimizers.Optimizer) -> OptimizerReadings:
    """The present readings of the optimizer, in Keras' own types."""
    reader = readable_optimizer(optimizer)
    good = optimizer.step_counter if is_dynamic(optimizer) else -1
    return OptimizerReadings(loss_scale(optimizer), reader.iterations, reader.learning_rate, good)


def scaler_settings(optimizer: keras.optimizers.Optimizer, backend: KerasBackend) -> dict[str, float]:
    """Settings of a dynamic loss scale; empty for any other optimizer.

    Keras has no attribute for the factors, so that they are measured on copies of the scaler.
    """
    if not is_dynamic(optimizer):
        return {}
    config = optimizer.get_config() | {"inner_optimizer": keras.optimizers.SGD(0.0), "dynamic_growth_steps": 1}
    scales = []
    for gradient in (0.0, np.inf):
        scaler, weights = keras.optimizers.LossScaleOptimizer(**(config | {"initial_scale": 1.0})), scalars(1)
        scaler.build(weights)
        backend.apply(scaler, [gradient], weights)
        scales.append(number(scaler.dynamic_scale))
    growth, backoff = scales
    return {
        "initial": float(optimizer.initial_scale),
        "growth": growth,
        "backoff": backoff,
        "interval": float(optimizer.dynamic_growth_steps),
    }


class _Rates(Callback):
    """Reads the rate after every epoch, and interrupts `fit` before the epoch `saved`."""

    def __init__(self, saved: int | None = None) -> None:
        super().__init__()
        self.saved, self.rates = saved, list[float]()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if epoch == self.saved:
            raise InterruptedError

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.rates.append(float(keras.ops.convert_to_numpy(self.model.optimizer.learning_rate)))


def rates(plateau: Plateau, metrics: Sequence[float], saved: int | None = None) -> tuple[float, ...]:
    """The learning rate after each epoch, whose metric is its loss. `fit` is interrupted after `saved` epochs.

    A new model then resumes by `BackupAndRestore`, as documented.

    Raises:
        Unsupported: PLATEAU, for a relative threshold.
    """
    if plateau.relative:
        attempt = partial(takes, ReduceLROnPlateau, "threshold_mode", "relative")
        raise Unsupported(Capability.PLATEAU, "keras.callbacks.ReduceLROnPlateau has an absolute threshold", attempt)
    if saved is None:
        return tuple(_run_hooks(plateau, metrics))
    with tempfile.TemporaryDirectory() as folder:
        first = _run_fit(plateau, metrics, 0, _Rates(saved), BackupAndRestore(folder))
        return (*first, *_run_fit(plateau, metrics, saved, _Rates(), BackupAndRestore(folder)))


def _run_hooks(plateau: Plateau, metrics: Sequence[float]) -> list[float]:
    """The rates from direct calls of the callback hooks that `fit` calls."""
    callbacks = keras.callbacks.CallbackList([_follower(plateau), reader := _Rates()], model=_model())
    callbacks.on_train_begin()
    for epoch, metric in enumerate(metrics):
        callbacks.on_epoch_end(epoch, {"loss": metric})
    return reader.rates


def _run_fit(plateau: Plateau, metrics: Sequence[float], start: int, reader: _Rates, backup: Callback) -> list[float]:
    """The rates after each epoch of one call of `fit`, from epoch `start` on."""
    rows = ((np.ones((1, 1), np.float32), np.full((1, 1), metric, np.float32)) for metric in metrics[start:])
    callbacks = [_follower(plateau), reader, backup]
    with suppress(InterruptedError):
        _model().fit(rows, steps_per_epoch=1, epochs=len(metrics), verbose=0, shuffle=False, callbacks=callbacks)
    return reader.rates


def _model() -> keras.Model:
    """A model whose loss is its target, at a rate of 1."""
    inputs = keras.Input((1,))
    model = keras.Model(inputs, keras.layers.Dense(1)(inputs))
    model.compile(keras.optimizers.SGD(1.0), lambda target, output: keras.ops.mean(target + 0.0 * output))
    return model


def _follower(plateau: Plateau) -> ReduceLROnPlateau:
    return ReduceLROnPlateau(
        "loss",
        plateau.factor,
        plateau.patience,
        mode=plateau.mode,
        min_delta=plateau.threshold,
        cooldown=plateau.cooldown,
        min_lr=plateau.minimum,
    )


class Piecewise(keras.optimizers.schedules.LearningRateSchedule):
    """A user's own schedule of piecewise constant rates."""

    def __init__(self, boundaries: Sequence[int], rates: Sequence[float]) -> None:
        super().__init__()
        self.boundaries, self.rates = list(boundaries), list(rates)

    def __call__(self, step: Tensor) -> Tensor:
        boundaries = keras.ops.convert_to_tensor(self.boundaries, "int32")
        index = keras.ops.searchsorted(boundaries, keras.ops.reshape(keras.ops.cast(step, "int32"), (1,)), side="right")
        return keras.ops.take(keras.ops.convert_to_tensor(self.rates, "float32"), index[0])

    def get_config(self) -> dict[str, Any]:
        return {"boundaries": self.boundaries, "rates": self.rates}


def create(
    recipe: Recipe, kind: Callable[..., keras.optimizers.Optimizer], arguments: dict[str, Any]
) -> keras.optimizers.Optimizer:
    """An optimizer of class `kind`. The recipe's way decides if it has the schedule or `set_rate` assigns rates."""
    if isinstance(recipe.schedule, Steps):
        base = recipe.optimizer.learning_rate
        rates = [base * factor for factor in recipe.schedule.factors]
        own = Piecewise(recipe.schedule.boundaries, rates)
        match recipe.way("schedule"):
            case "assigned":
                arguments = arguments | {"learning_rate": base * recipe.schedule.factor(0)}
            case "subclass":
                arguments = arguments | {"learning_rate": own}
            case "callable":
                optimizer: keras.optimizers.Optimizer = kind(
                    **arguments | {"learning_rate": lambda: own(optimizer.iterations)}
                )
                return optimizer
    return kind(**arguments)


def rebuilt(recipe: Recipe, optimizer: keras.optimizers.Optimizer) -> keras.optimizers.Optimizer:
    """The optimizer, or a new one from its configuration if the recipe's way asks for it."""
    if recipe.way("optimizer") != "from-config":
        return optimizer
    config = keras.optimizers.serialize(optimizer)
    return keras.optimizers.deserialize(config, custom_objects={"Piecewise": Piecewise})


def set_rate(recipe: Recipe, optimizers: Sequence[keras.optimizers.Optimizer]) -> None:
    """Assigns the rate of the next update if the recipe's way does not put a schedule into the optimizer."""
    if isinstance(recipe.schedule, Steps) and recipe.way("schedule") == "assigned":
        for index, optimizer in enumerate(optimizers):
            own = recipe.of_groups[min(index, recipe.groups - 1)]
            optimizer.learning_rate = own.learning_rate * recipe.schedule.factor(int(optimizer.iterations))


ACCUMULATOR, AVERAGE = "gradient_accumulator/", "average/"
"""Slots of a parameter's accumulated gradient and of its average."""

CLIPS_APART = "MultiOptimizer clips nothing itself, and each of its optimizers clips by the norm of its own variables"


def _rate(recipe: recipes.Recipe) -> float | keras.optimizers.schedules.LearningRateSchedule:
    """The recipe's rate; `PiecewiseConstantDecay` keeps a value up to and including its boundary step."""
    base = recipe.optimizer.learning_rate
    if recipe.schedule is None:
        return float(base)
    if isinstance(recipe.schedule, Curve):
        return make_schedule(base, recipe.schedule)
    return keras.optimizers.schedules.PiecewiseConstantDecay(
        [boundary - 1 for boundary in recipe.schedule.boundaries], [base * factor for factor in recipe.schedule.factors]
    )


_KINDS: Mapping[type[Optimizer], type[keras.optimizers.Optimizer]] = {
    SGD: keras.optimizers.SGD,
    Adam: keras.optimizers.Adam,
    AdamW: keras.optimizers.AdamW,
    Adagrad: keras.optimizers.Adagrad,
    RMSprop: keras.optimizers.RMSprop,
    **{kind: getattr(keras.optimizers, kind.__name__) for kind in _NEWER if hasattr(keras.optimizers, kind.__name__)},
}
OPTIMIZERS = Capability.of_optimizers(_KINDS)
"""The capabilities of Keras' optimizers, without their options."""
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
"""Keras' names of arguments that have other names in a recipe."""


def _own(optimizer: recipes.Optimizer) -> dict[str, Any]:
    """The arguments of an optimizer by Keras' names; they make Muon train embeddings and decay only matrices."""
    arguments = {name: value for name, value in recipes.collect_fields(optimizer).items() if value is not None}
    match optimizer:
        case Adafactor():
            arguments["beta_2_decay"] = -arguments.pop("decay")
        case Muon(adjustment=adjustment, coefficients=coefficients, weight_decay=decay):
            del arguments["coefficients"], arguments["adjustment"]
            arguments |= dict(zip(("muon_a", "muon_b", "muon_c"), coefficients, strict=True))
            arguments |= {"rms_rate": _RMS_RATES[adjustment], "weight_decay": decay or None, "adam_weight_decay": None}
            arguments["exclude_embeddings"] = False
    return {_ARGUMENTS.get(name, name): value for name, value in arguments.items()}


_RMS_RATES = {"rms": 0.2, "none": None, "width": "width"}


def _one(
    recipe: recipes.Recipe, options: Mapping[str, Any], undecayed: Sequence[keras.Variable]
) -> keras.optimizers.Optimizer:
    common: dict[str, Any] = {
        **options,
        **_own(recipe.optimizer),
        "learning_rate": _rate(recipe),
        "global_clipnorm": recipe.clip,
        "gradient_accumulation_steps": recipe.accumulation if recipe.accumulation > 1 else None,
        "loss_scale_factor": recipe.scaling.scale if isinstance(recipe.scaling, recipes.StaticScaling) else None,
    }
    if recipe.average is not None:
        common |= {"use_ema": True, "ema_momentum": recipe.average}
    optimizer = rebuilt(recipe, create(recipe, _KINDS[type(recipe.optimizer)], common))
    if undecayed:
        optimizer.exclude_from_weight_decay(var_list=list(undecayed))
    return optimizer


def _inner(
    recipe: recipes.Recipe, named: Mapping[str, keras.Variable], backend: KerasBackend, options: Mapping[str, Any]
) -> keras.optimizers.Optimizer:
    """One optimizer, or a `MultiOptimizer` with one for the variables at even and one for those at odd places."""
    variables, undecayed = list(named.values()), [named[name] for name in recipe.undecayed]
    if recipe.groups == recipe.optimizers == 1:
        return _one(recipe, options, undecayed)
    if recipe.clip is not None:
        asked = Capability.GROUPS if recipe.groups > 1 else Capability.TWO_OPTIMIZERS
        raise Unsupported(asked, CLIPS_APART, partial(clips_together, backend))
    second = _one(recipe.replace(optimizer=recipe.of_groups[-1]), options, undecayed)
    first = _one(recipe, options, undecayed)
    at_even_places = {variable.path: first for variable in variables[::2]}  # a MultiOptimizer lists its default last
    chosen = keras.optimizers.OptimizerMap(second, at_even_places)
    scale = recipe.scaling.scale if isinstance(recipe.scaling, recipes.StaticScaling) else None
    return keras.optimizers.MultiOptimizer(chosen, loss_scale_factor=scale)


def make_optimizer(
    recipe: recipes.Recipe, variables: Mapping[str, keras.Variable], backend: KerasBackend, **options: Any
) -> keras.optimizers.Optimizer:
    """The recipe's optimizer for the variables, inside a `LossScaleOptimizer` if its scaling is dynamic.

    Args:
        variables: by canonical name, in model order.
        backend: makes the updates of the attempt of a refusal.
        options: additional arguments of optimizers, such as a name.

    Raises:
        Unsupported: GROUPS or TWO_OPTIMIZERS, together with a clip.
    """
    inner = _inner(recipe, variables, backend, options)
    if not isinstance(recipe.scaling, recipes.DynamicScaling):
        return inner
    asked = {"initial_scale": recipe.scaling.initial, "dynamic_growth_steps": recipe.scaling.interval}
    scaled = keras.optimizers.LossScaleOptimizer(inner, **{name: v for name, v in asked.items() if v is not None})
    return scaled if recipe.undecayed else rebuilt(recipe, scaled)


def clips_together(backend: KerasBackend) -> bool:
    """Returns whether two optimizers in a `MultiOptimizer` clip by the global norm of all gradients."""
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
    """The optimizer whose update count and rate are read.

    For a `MultiOptimizer` it is one of its optimizers, as documented: itself has no rate, and it counts calls.
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


Variables = list[keras.Variable]
Apply = Callable[[Sequence[Any]], None]
_SCALE = 1024.0
_LOOSE = 2.0**30
_DECAYS = ("weight_decay", "adam_weight_decay")
_OPTIONS: Mapping[str, Options] = {
    "accumulated": {"gradient_accumulation_steps": 2},
    "averaged": {"use_ema": True},
    "clipped-loosely": {"global_clipnorm": _LOOSE},
    "clipped-loosely-one-by-one": {"clipnorm": _LOOSE},
}


class KerasOptimizers(ListedOptimizers):
    """The optimizer classes of `keras.optimizers`, whose updates are made by `apply`.

    Args:
        compiled: compiles an update on the backend; None if its updates are functions of their state.
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
        if name == "Ftrl":  # its weights depend on the gradients alone, not on their initial values
            return None
        arguments = signature(self.find(name)).parameters
        return {decay: 0.0 for decay in _DECAYS if decay in arguments and arguments[decay].default}

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
                optimizer = self._save_and_load(name, options, optimizer, variables, technique)
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

    def _save_and_load(
        self, name: str, options: Options, optimizer: Any, variables: Variables, technique: str
    ) -> keras.optimizers.Optimizer:
        """A new optimizer, from the options or the old one's configuration, with the old one's saved state."""
        if technique == "rebuilt":
            resumed = type(optimizer).from_config(optimizer.get_config())
        else:
            resumed = self._make_optimizer(name, options, "")
        resumed.build(variables)
        store: dict[str, Any] = {}
        optimizer.save_own_variables(store)
        resumed.load_own_variables({key: np.array(value) for key, value in store.items()})
        return resumed


def _variables(start: Sequence[Array]) -> Variables:
    return [keras.Variable(value, dtype=value.dtype.name, name=f"weight_{index}") for index, value in enumerate(start)]


def _array(variable: keras.Variable) -> Array:
    """The values of a variable, read in a format that every backend converts to NumPy."""
    wide = np.asarray(keras.ops.stop_gradient(keras.ops.cast(variable, "float32")))
    return wide.astype(FORMATS[variable.dtype].dtype)


def _update(values: Sequence[Array], optimizer: Any, technique: str) -> list[Any]:
    """Gradients for the optimizer, multiplied by its loss scale."""
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
        weights, state = ([variable.value for variable in own] for own in (variables, optimizer.variables))
        weights, state = optimizer.stateless_apply(state, update, weights)
        for variable, value in zip([*variables, *optimizer.variables], [*weights, *state], strict=True):
            variable.assign(value)

    return apply
