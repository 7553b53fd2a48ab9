"""Recipes' optimizers by Optax, options that Optax lacks, and loss scales of JMP and Flax."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from inspect import signature
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import jmp
import numpy as np
import optax
from flax.training.dynamic_scale import DynamicScale
from flax.training.train_state import TrainState

from fixtures import recipe as recipes
from fixtures.arrays import Array
from fixtures.optimizers import SGD, Adafactor, Adagrad, Adam, AdamW, Muon, Optimizer, RMSprop
from fixtures.recipe import DynamicScaling, Recipe, StaticScaling
from fixtures.schedules import Curve
from frameworks.contract import Attempt, Capability, Unsupported
from frameworks.jax.core import ways
from frameworks.jax.core.layers import Layout
from frameworks.jax.core.settings import Flat, Place
from frameworks.jax.probes import flax_moves_once_in_two_gradients, flax_unscales_manually

REFUSED_OPTIONS: dict[Capability, str] = {
    Capability.SINGLE: "optax updates a tree of parameters; optax.flatten is the one other way",
    Capability.FUSED: "Optax has no kernels of its own: jax.jit fuses what it compiles",
    Capability.CAPTURABLE: "Optax keeps all state in arrays, and has no other way to keep it",
}
if not (hasattr(optax.contrib, "muon") and "consistent_rms" in signature(optax.contrib.muon).parameters):
    _NONE = "this version of Optax has no optax.contrib.muon with consistent_rms"
    REFUSED_OPTIONS |= dict.fromkeys((Capability.MUON, Capability.WIDTH_RATE, Capability.UNADJUSTED_RATE), _NONE)
_FLOOR = "optax.adafactor has no argument for the least RMS of a parameter, which is 1e-3"
_JOINED = "optax.flatten makes one vector of all parameters, which has no rows and columns"
_MASK = "optax.flatten joins all parameters, so that a mask of weight decay cannot name one"


def attempts() -> dict[Capability, Attempt]:
    """Attempts for each option that is refused."""
    return {
        Capability.SINGLE: partial(_steps, optax.sgd, foreach=False),
        Capability.FUSED: partial(_steps, optax.sgd, fused=True),
        Capability.CAPTURABLE: partial(_steps, optax.adam, capturable=True),
        **({} if Capability.MUON not in REFUSED_OPTIONS else {Capability.MUON: _makes_muon}),
    }


def require(recipe: Recipe) -> None:
    """Refuses combinations of options.

    Raises:
        Unsupported: Optax has no combination of these options.
    """
    optimizer = recipe.optimizer
    if isinstance(optimizer, Adafactor) and optimizer.epsilon2 != Adafactor().epsilon2:
        raise Unsupported(Capability.ADAFACTOR, _FLOOR, partial(_steps, optax.adafactor, eps2=optimizer.epsilon2))
    if isinstance(optimizer, Adafactor | Muon) and recipe.implementation == "foreach":
        raise Unsupported(Capability.FOREACH, _JOINED, _factors_flat)
    if recipe.implementation == "foreach" and recipe.undecayed:
        raise Unsupported(Capability.DECAY_EXCLUDED, _MASK, _masks_flat)


def _update_params(optimizer: optax.GradientTransformation, params: Any) -> Any:
    gradients = {name: jnp.ones_like(value) for name, value in params.items()}
    updates, _ = optimizer.update(gradients, optimizer.init(params), params)
    return optax.apply_updates(params, updates)


def _steps(kind: Callable[..., optax.GradientTransformation], **arguments: Any) -> bool:
    return bool(_update_params(kind(0.5, **arguments), {"a": jnp.ones(2)})["a"][0] != 1.0)


def _masks_flat() -> bool:
    params = {"a": jnp.ones(2), "b": jnp.ones(2)}
    optimizer = optax.flatten(
        optax.adamw(0.5, weight_decay=0.5, mask=lambda tree: {name: name == "a" for name in tree})
    )
    moved = _update_params(optimizer, params)
    return bool((moved["a"] != moved["b"]).all())


def _makes_muon() -> bool:
    return bool(_update_params(optax.contrib.muon(0.5), {"a": jnp.ones((2, 2))})["a"][0, 0] != 1.0)


def _factors_flat() -> bool:
    """Returns whether Adafactor's state of a matrix is the same with and without flattening."""
    params = {"a": jnp.ones((2, 3))}
    plain, flat = (optimizer.init(params)[0] for optimizer in (_adafactor(), optax.flatten(_adafactor())))
    return bool(jnp.shape(flat.v_row) == plain.v_row["a"].shape)


def _adafactor() -> optax.GradientTransformation:
    return optax.adafactor(0.5, min_dim_size_to_factor=0)


_CHOOSES_ACCUMULATOR = "accumulator_dtype" in signature(optax.MultiSteps).parameters
"""True if Optax has an argument for the accumulator's format; older versions use the parameters' format."""


_FROZEN = "frozen"


class RunState(TrainState):
    """Flax's train state, with the average of the weights if there is one.

    Attributes:
        overwritten: values that an open window has gathered to overwrite the collection; None without a collection.
    """

    average: Any = None
    overwritten: Any = None


@dataclass(frozen=True)
class Rules:
    """The parts of a recipe that determine updates from gradients.

    Attributes:
        length: number of micro-batches of a window, None without accumulation.
        accumulator: format of the accumulator.
        parts: parameters of each optimizer and group, empty if there is one of each.
        own: the optimizer of each part.
        undecayed: parameters without weight decay.
        frozen: parameters that are not trained; they are a separate part.
        flat: one update of all parameters of a part, joined by `optax.flatten`.
        tensor_rate: the learning rate is an array.
        ways: a recipe that has only the chosen ways.
    """

    optimizer: recipes.Optimizer
    schedule: recipes.Steps | Curve | None
    clip: float | None
    length: int | None
    accumulator: str
    parts: tuple[tuple[str, ...], ...]
    own: tuple[recipes.Optimizer, ...]
    undecayed: tuple[str, ...]
    frozen: tuple[str, ...]
    flat: bool
    tensor_rate: bool
    ways: recipes.Recipe = recipes.Recipe()


def rules_of(recipe: recipes.Recipe, parameters: Mapping[str, str], wide: bool) -> Rules:
    """The rules for parameters, whose paths are given by canonical name; `wide`: some of them are float64.

    Two optimizers are two parts of `optax.partition`, each with a separate transformation and state. So are two groups
    of one optimizer, for which Optax has nothing else.
    """
    places = tuple(parameters.values())
    owned = [places[start :: recipe.optimizers] for start in range(recipe.optimizers)]
    every = [(own[start :: recipe.groups], recipe.of_groups[start]) for own in owned for start in range(recipe.groups)]
    if recipe.way("optimizer") == "partition":
        every = [((path,), optimizer) for part, optimizer in every for path in part]
    frozen = tuple(parameters[name] for name in recipe.frozen)
    trained = [(tuple(path for path in part if path not in frozen), optimizer) for part, optimizer in every]
    parts = [(part, optimizer) for part, optimizer in trained if part]
    skips = isinstance(recipe.scaling, recipes.DynamicScaling) and recipe.scaling.enabled
    return Rules(
        optimizer=recipe.optimizer,
        schedule=recipe.schedule,
        clip=recipe.clip,
        length=recipe.accumulation if recipe.accumulation > 1 else None,
        accumulator="float64" if wide else "float32",
        parts=tuple(part for part, _ in parts) if len(parts) > 1 or frozen else (),
        own=tuple(optimizer for _, optimizer in parts),
        undecayed=tuple(parameters[name] for name in recipe.undecayed),
        frozen=frozen,
        flat=recipe.implementation == "foreach",
        tensor_rate=recipe.tensor_rate,
        ways=recipe.ways_of("clip", "optimizer", "schedule", *(("scaling",) if skips else ())),
    )


def schedule_of(rules: Rules | recipes.Recipe) -> optax.Schedule:
    """The learning rate by the number of applied updates."""
    chosen = rules if isinstance(rules, recipes.Recipe) else rules.ways
    return ways.schedule(chosen.way("schedule"), rules.optimizer.learning_rate, rules.schedule)


_KINDS: Mapping[type[Optimizer], Callable[..., optax.GradientTransformation]] = {
    SGD: optax.sgd,
    Adam: optax.adam,
    AdamW: optax.adamw,
    Adagrad: optax.adagrad,
    RMSprop: optax.rmsprop,
    Adafactor: optax.adafactor,
    **({Muon: optax.contrib.muon} if hasattr(optax.contrib, "muon") else {}),
}
OPTIMIZERS = Capability.of_optimizers(_KINDS)
"""The capabilities of Optax' optimizers, without their options."""
_ARGUMENTS = {
    "beta1": "b1",
    "beta2": "b2",
    "epsilon": "eps",
    "initial": "initial_accumulator_value",
    "centred": "centered",
    "threshold": "clipping_threshold",
    "steps": "ns_steps",
    "coefficients": "ns_coeffs",
}
"""Optax's names of arguments, where they differ from a recipe's."""


_MASKS = {AdamW: "mask", Adafactor: "weight_decay_mask", Muon: "weight_decay_mask"}
"""Optimizers with decoupled decay, and their argument for the parameters that have it."""
_RMS_RATES = {"rms": 0.2, "width": None}


def _arguments_of(optimizer: recipes.Optimizer) -> dict[str, Any]:
    """The arguments of an optimizer, including those that differ from a recipe's in more than the name."""
    arguments = {name: value for name, value in recipes.collect_fields(optimizer).items() if value is not None}
    match optimizer:
        case Adafactor(decay=decay, smallest=smallest):
            fixed = ("decay", "epsilon2", "relative_step", "smallest")
            arguments = {name: value for name, value in arguments.items() if name not in fixed}
            arguments |= {"decay_rate": decay, "min_dim_size_to_factor": smallest}
            for name, its in (("epsilon1", "eps"), ("weight_decay", "weight_decay_rate")):
                arguments |= {its: arguments.pop(name)} if name in arguments else {}
        case Muon():
            arguments["beta"] = arguments.pop("momentum")
            adjustment = arguments.pop("adjustment")
            arguments |= {} if adjustment == "none" else {"consistent_rms": _RMS_RATES[adjustment]}
    return arguments


def _unadjusted_muon(
    learning_rate: Any, weight_decay: float = 0.0, weight_decay_mask: Any = None, **options: Any
) -> optax.GradientTransformation:
    """The chain of Muon's parts without the factor by a matrix' sides."""
    return optax.chain(
        optax.contrib.scale_by_muon(**options, weight_dimension_numbers=_dimensions),
        optax.add_decayed_weights(weight_decay, weight_decay_mask),
        optax.scale_by_learning_rate(learning_rate),
    )


def _decayed_amsgrad(
    learning_rate: Any, weight_decay: float = 0.0, mask: Any = None, **options: Any
) -> optax.GradientTransformation:
    """The chain of AMSGrad's parts with decoupled decay, which no optimizer of Optax has."""
    return optax.chain(
        optax.scale_by_amsgrad(**options),
        optax.add_decayed_weights(weight_decay, mask),
        optax.scale_by_learning_rate(learning_rate),
    )


def _dimensions(tree: Any) -> Any:
    return jax.tree.map(lambda _: optax.contrib.MuonDimensionNumbers(), tree)


def _before(arguments: dict[str, Any], *, decoupled: bool) -> list[optax.GradientTransformation]:
    """Transformations before the optimizer, for arguments that Optax' optimizers lack; removes these arguments."""
    result = [optax.scale(-1.0)] if arguments.pop("maximize", False) else []
    if not decoupled and (decay := arguments.pop("weight_decay", 0.0)):
        result.append(optax.add_decayed_weights(decay))
    if dampening := arguments.pop("dampening", 0.0):
        rest = optax.constant_schedule(1.0 - dampening)
        result.append(optax.scale_by_schedule(optax.join_schedules([optax.constant_schedule(1.0), rest], [1])))
    return result


def _alone(rules: Rules) -> optax.GradientTransformation:
    """The optimizer of one part; options without an argument select another transformation or optimizer."""
    optimizer = rules.optimizer
    arguments = _arguments_of(optimizer)
    before = _before(arguments, decoupled=type(optimizer) in _MASKS)
    arguments["learning_rate"] = rules.optimizer.learning_rate if rules.schedule is None else schedule_of(rules)
    if rules.tensor_rate and rules.schedule is None:
        arguments["learning_rate"] = jnp.asarray(optimizer.learning_rate, jnp.float32)
    if "momentum" in arguments:
        arguments["momentum"] = arguments["momentum"] or None
    rate_decay = arguments.pop("rate_decay", 0.0)
    if rules.undecayed and type(optimizer) in _MASKS:
        arguments[_MASKS[type(optimizer)]] = lambda tree: {path: path not in rules.undecayed for path in tree}
    kind = _KINDS[type(optimizer)]
    if arguments.pop("amsgrad", False):
        kind = _decayed_amsgrad if isinstance(optimizer, AdamW) else optax.amsgrad
    if isinstance(optimizer, Muon) and "consistent_rms" not in arguments:
        kind = _unadjusted_muon
    chosen = ways.optimizer(rules.ways, kind, {_ARGUMENTS.get(name, name): value for name, value in arguments.items()})
    if rate_decay:
        chosen = optax.chain(chosen, optax.scale_by_schedule(lambda count: 1.0 / (1.0 + rate_decay * count)))
    if before:
        chosen = optax.chain(*before, chosen)
    return optax.flatten(chosen) if rules.flat else chosen


@cache
def transformation(rules: Rules) -> optax.GradientTransformation:
    """The optimizer; the same object for equal rules, so that runs share compiled programs."""
    chosen = _alone(rules)
    if rules.parts:
        labels = {path: str(index) for index, part in enumerate(rules.parts) for path in part}
        transforms = {str(index): _alone(replace(rules, optimizer=own)) for index, own in enumerate(rules.own)}
        if rules.frozen:
            labels |= dict.fromkeys(rules.frozen, _FROZEN)
            transforms[_FROZEN] = optax.set_to_zero()
        partition = optax.partition if hasattr(optax, "partition") else optax.multi_transform  # before Optax 0.2.5
        chosen = partition(transforms, labels)
    if rules.clip is not None:
        chosen = ways.add_clipping(rules.ways.way("clip"), rules.clip, chosen)
    skips = {"should_skip_update_fn": optax.skip_not_finite} if rules.ways.way("scaling") == "skip-not-finite" else {}
    if rules.length is not None or skips:
        wide = {"accumulator_dtype": rules.accumulator} if _CHOOSES_ACCUMULATOR else {}
        window = optax.MultiSteps(chosen, every_k_schedule=rules.length or 1, use_grad_mean=False, **skips, **wide)
        chosen = window.gradient_transformation()
    return chosen


def is_window(state: RunState) -> bool:
    """Returns whether gradients are accumulated by `optax.MultiSteps`."""
    return isinstance(state.opt_state, optax.MultiStepsState)


def count_applied_updates(state: RunState) -> Any:
    """The number of applied updates."""
    return state.opt_state.gradient_step if is_window(state) else state.step


def read_accumulators(state: RunState) -> Flat:
    """The accumulated gradients in `optax.MultiSteps`, by joined path; empty if no window is open."""
    return dict(state.opt_state.acc_grads) if is_window(state) and int(state.opt_state.mini_step) else {}


def optimizer_state(state: RunState, layout: Layout, rules: Rules) -> dict[str, Array]:
    """Moments as "SLOT/PARAMETER" by Optax's names for the slots, and every counter.

    Optax's counters have the name of their state; parts step together, so each counter is listed once.
    """
    inner = state.opt_state.inner_opt_state if is_window(state) else state.opt_state
    result: dict[str, Array] = {"steps": np.array(count_applied_updates(state), np.int64)}
    slots: dict[str, dict[str, Any]] = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(inner):
        slot = next((key.name for key in reversed(path) if isinstance(key, jax.tree_util.GetAttrKey)), "")
        leaf_path = getattr(path[-1], "key", None)
        if leaf_path in layout.canonical:
            slots.setdefault(slot, {})[leaf_path] = leaf
        elif slot and leaf.ndim == 1 and rules.flat:
            slots.setdefault(slot, {}).update(_split(leaf, state.params, _own(path, rules.parts)))
    for slot, leaves in slots.items():
        result |= {f"{slot}/{name}": value for name, value in layout.arrays(leaves).items()}
    for keys, value in optax.tree_utils.tree_get_all_with_path(inner, "count"):
        owner = keys[-1].tuple_name
        if owner not in _INJECTED or rules.schedule is not None:
            result[_COUNTERS.get(owner, owner)] = np.array(value)
    if state.average is not None:
        result |= {f"average/{name}": value for name, value in layout.arrays(state.average).items()}
    return result


def _own(path: Any, parts: tuple[tuple[str, ...], ...]) -> tuple[str, ...]:
    """The parameters of the part of `optax.partition` that a state belongs to; empty without parts."""
    labels = {str(index): part for index, part in enumerate(parts)}
    return next((labels[key.key] for key in path if getattr(key, "key", None) in labels), ())


def _split(joined: jax.Array, tree: Any, own: tuple[str, ...]) -> dict[str, jax.Array]:
    """The arrays that `optax.flatten` joined, by path: the leaves of a tree, or of one part, in order."""
    every = {path[-1].key: leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}
    leaves = {key: leaf for key, leaf in every.items() if not own or key in own}
    ends = np.cumsum([leaf.size for leaf in leaves.values()])
    pieces = jnp.split(joined, ends[:-1])
    return {key: piece.reshape(leaves[key].shape) for key, piece in zip(leaves, pieces, strict=True)}


_INJECTED = ("InjectStatefulHyperparamsState", "WrappedScheduleState")
_COUNTERS = dict.fromkeys(("ScaleByScheduleState", *_INJECTED), "schedule")


INITIAL = 2.0**15
"""JMP has no default scale; its documentation begins with this."""

MINIMUM = 1.0
"""JMP's lower limit of the scale, also kept with a recipe's factors."""

MOVES_ALWAYS = "flax's DynamicScale, which alone has two factors, moves with every gradient that it takes"
UNSCALES_ITSELF = (
    "flax's DynamicScale, which alone has two factors, unscales by itself and has no call to do so by hand"
)

LossScale: TypeAlias = jmp.NoOpLossScale | jmp.StaticLossScale | jmp.DynamicLossScale | DynamicScale


class ScaleUpdate(NamedTuple):
    """The result of Flax's scale for gradients: `finite` if all of them are, and the next scale."""

    finite: jax.Array
    scale: DynamicScale


def loss_scale(recipe: Recipe, device: Place) -> LossScale:
    """The loss scale of a recipe; settings that are None keep the defaults of JMP or Flax.

    JMP multiplies and divides by the same integer factor. Flax's scale has a separate factor for each.
    """
    match recipe.scaling:
        case DynamicScaling(enabled=True) as scaling:
            factor = scaling.growth or (1.0 / scaling.backoff if scaling.backoff else 2.0)
            one = float(factor).is_integer() and scaling.backoff in (None, 1.0 / factor)
            one = one and recipe.way("scaling") != "flax"
            return jax.device_put(_of_jmp(scaling, int(factor)) if one else _of_flax(scaling), device)
        case StaticScaling(scale=constant):
            return jmp.StaticLossScale(constant)
        case _:
            return jmp.NoOpLossScale()


def _of_jmp(scaling: DynamicScaling, factor: int) -> jmp.DynamicLossScale:
    scale = jnp.asarray(INITIAL if scaling.initial is None else scaling.initial, jnp.float32)
    default = jmp.DynamicLossScale(scale)
    period = default.period if scaling.interval is None else scaling.interval
    return jmp.DynamicLossScale(scale, jnp.asarray(default.counter), period, factor)


def _of_flax(scaling: DynamicScaling) -> DynamicScale:
    arguments = {
        "growth_factor": scaling.growth,
        "backoff_factor": scaling.backoff,
        "growth_interval": scaling.interval,
        "scale": None if scaling.initial is None else jnp.float32(scaling.initial),
    }
    chosen = {name: value for name, value in arguments.items() if value is not None}
    return DynamicScale(**chosen, minimum_scale=MINIMUM, fin_steps=jnp.int32(0))


def is_dynamic(scale: LossScale) -> bool:
    """Returns whether an overflow skips the update: JMP's documentation does so for its dynamic scale only."""
    return isinstance(scale, jmp.DynamicLossScale | DynamicScale)


def unscales_itself(scale: LossScale) -> bool:
    """Returns whether the loss scale returns unscaled float32 gradients, as Flax's does."""
    return isinstance(scale, DynamicScale)


def refuse_several_gradients(scale: LossScale, recipe: Recipe) -> None:
    """Refuses a recipe with several gradients for each update: Flax's scale would move with each of them.

    Raises:
        Unsupported: several micro-batches or backward passes, or another
            way to differentiate, which Flax's scale does itself.
    """
    if isinstance(scale, DynamicScale) and recipe.way("backward"):
        raise Unsupported(Capability.SCALING_FACTORS, UNSCALES_ITSELF, flax_unscales_manually)
    if isinstance(scale, DynamicScale) and (recipe.accumulation > 1 or recipe.separate_losses):
        raise Unsupported(Capability.SCALING_FACTORS, MOVES_ALWAYS, flax_moves_once_in_two_gradients)


def unscale_calls(scale: LossScale, asked: int | None, *, manual: bool) -> int:
    """The number of times that gradients are unscaled before an update; with JMP the caller does it once.

    Raises:
        Unsupported: unscaling by hand, which Flax's scale does not offer.
    """
    if isinstance(scale, DynamicScale) and (manual or asked is not None):
        raise Unsupported(Capability.EXPLICIT_UNSCALE, UNSCALES_ITSELF, flax_unscales_manually)
    return 1 if asked is None else asked


def current(scale: LossScale) -> float:
    """The present factor of losses."""
    return float(scale.scale if isinstance(scale, DynamicScale) else scale.loss_scale)


def settings(scale: LossScale) -> dict[str, float]:
    """The settings of a dynamic loss scale, empty for any other."""
    match scale:
        case jmp.DynamicLossScale():
            growth, backoff, interval = scale.factor, 1.0 / scale.factor, scale.period
        case DynamicScale():
            growth, backoff, interval = scale.growth_factor, scale.backoff_factor, scale.growth_interval
        case _:
            return {}
    return {"initial": current(scale), "growth": float(growth), "backoff": backoff, "interval": float(interval)}


def read_scale(scale: LossScale) -> dict[str, Array]:
    """The scale and the growth counter; empty without scaling."""
    match scale:
        case jmp.DynamicLossScale():
            return {"scale": np.array(scale.loss_scale), "good_steps": np.array(scale.counter)}
        case DynamicScale():
            return {"scale": np.array(scale.scale), "good_steps": np.array(scale.fin_steps)}
        case jmp.StaticLossScale():
            return {"scale": np.array(scale.loss_scale, np.float32)}
        case _:
            return {}


def with_state(scale: LossScale, state: dict[str, Array], device: Place) -> LossScale:
    """The loss scale with the state of another one."""
    if not is_dynamic(scale):
        return scale
    value, counter = (jnp.asarray(state[name]) for name in ("scale", "good_steps"))
    if isinstance(scale, DynamicScale):
        return jax.device_put(scale.replace(scale=value, fin_steps=counter), device)
    assert isinstance(scale, jmp.DynamicLossScale)
    return jax.device_put(jmp.DynamicLossScale(value, counter, scale.period, scale.factor), device)


@jax.jit
def adjust_scale(scale: Any, finite: jax.Array) -> Any:
    """JMP's scale after an update."""
    return scale.adjust(finite)
