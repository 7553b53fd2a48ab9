"""Recipes' optimizers, learning-rate schedules and clipping in Paddle's own classes."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import paddle

from fixtures.arrays import Array
from fixtures.recipe import SGD, Adagrad, Adam, AdamW, Optimizer, Recipe, RMSprop, written
from frameworks.contract import Capability, Unsupported
from frameworks.paddle.core import ways
from frameworks.paddle.core.arrays import canonical, format_name, to_numpy

_MIXED_FORMATS = (
    "ClipGradByGlobalNorm takes the norm of one optimizer's gradients, this recipe needs several optimizers, and "
    "clip_grad_norm_ raises ValueError for gradients in float32 and float64"
)


@dataclass
class Share:
    """One optimizer with the parameters, by canonical name, that it updates, and its schedule if there is one."""

    names: tuple[str, ...]
    optimizer: Any
    scheduler: Any | None


def _shares(recipe: Recipe, parameters: Mapping[str, Any]) -> list[tuple[str, ...]]:
    names = tuple(parameters)
    halves = [names[::2], names[1::2]] if recipe.optimizers == 2 else [names]
    formats = sorted({format_name(parameters[name].dtype) for name in names})
    wide = "float64" in formats and len(formats) > 1
    if not wide or (isinstance(recipe.optimizer, SGD) and not recipe.optimizer.momentum):
        return halves
    split = []
    for half in halves:
        double = tuple(name for name in half if format_name(parameters[name].dtype) == "float64")
        single = tuple(name for name in half if name not in double)
        split += [part for part in (single, double) if part]
    return split


def build_shares(
    recipe: Recipe, parameters: Mapping[str, Any], *, implicit: bool = False, schedulers: Sequence[Any] = ()
) -> list[Share]:
    """The recipe's optimizers over `parameters`.

    Two optimizers get the parameters at even and at odd places. Paddle's optimizers keep one learning-rate tensor in
    one format, and all but plain SGD fail when a parameter has another format, so the float64 heads get an optimizer of
    their own there.

    Args:
        implicit: whether a single optimizer is given no parameters, because it finds them in a program itself.
        schedulers: those made before, for the next program of the same run.
    """
    shares = _shares(recipe, parameters)
    given = [{name: parameters[name] for name in names} for names in shares]
    made = list(schedulers) or [None] * len(shares)
    own = not implicit or len(shares) > 1
    alone = len(shares) == 1
    return [
        _share(recipe, part, scheduler, own=own, clipped=alone) for part, scheduler in zip(given, made, strict=True)
    ]


def schedule_of(recipe: Recipe, last: int = -1) -> Any | None:
    """A new schedule as the recipe asks for it, at its beginning or after update `last`, from 0; None without one."""
    if recipe.schedule is None:
        return None
    return ways.schedule(recipe.way("schedule"), recipe.optimizer.learning_rate, recipe.schedule, last)


def _share(recipe: Recipe, parameters: Mapping[str, Any], scheduler: Any | None, *, own: bool, clipped: bool) -> Share:
    rate = recipe.optimizer.learning_rate
    scheduler = schedule_of(recipe) if scheduler is None else scheduler
    common: dict[str, Any] = {"learning_rate": rate if scheduler is None else scheduler}
    if own:
        listed = list(parameters.values())
        halves = (listed[::2], listed[1::2])
        groups = [{"params": part} | _own_options(recipe, place) for place, part in enumerate(halves) if part]
        one = [{"params": listed}] if recipe.way("optimizer") == "one-group" else listed
        common["parameters"] = groups if recipe.groups == 2 else one
    if recipe.undecayed:
        left_out = {parameters[name].name for name in recipe.undecayed if name in parameters}
        common["apply_decay_param_fun"] = lambda name: name not in left_out
    if recipe.clip is not None and clipped and recipe.way("clip") == "":
        common["grad_clip"] = paddle.nn.ClipGradByGlobalNorm(recipe.clip)
    return Share(tuple(parameters), _make(recipe, common), scheduler)


def _own_options(recipe: Recipe, place: int) -> dict[str, float]:
    """Options of a group that differ from the optimizer's; its rate is a factor of the optimizer's."""
    own, options = recipe.of_groups[min(place, recipe.groups - 1)], {}
    if recipe.second_rate is not None and place:
        options["learning_rate"] = own.learning_rate / recipe.optimizer.learning_rate
    if recipe.second_decay is not None and place:
        options["weight_decay"] = own.weight_decay
    return options


_KINDS: Mapping[type[Optimizer], Any] = {
    SGD: paddle.optimizer.SGD,
    Adam: paddle.optimizer.Adam,
    AdamW: paddle.optimizer.AdamW,
    Adagrad: paddle.optimizer.Adagrad,
    RMSprop: paddle.optimizer.RMSProp,
}
_ARGUMENTS = {"decay": "rho", "centred": "centered", "nesterov": "use_nesterov", "initial": "initial_accumulator_value"}
"""Arguments that Paddle calls differently from a recipe."""


def _make(recipe: Recipe, common: dict[str, Any]) -> Any:
    optimizer = recipe.optimizer
    given = {name: value for name, value in written(optimizer).items() if value is not None and name != "learning_rate"}
    kind = _KINDS[type(optimizer)]
    if isinstance(optimizer, SGD):
        kind = paddle.optimizer.Momentum if given.get("momentum") else kind
        given = {name: value for name, value in given.items() if value}
    if recipe.implementation == "foreach":
        given["use_multi_tensor"] = True
    return kind(**{_ARGUMENTS.get(name, name): value for name, value in given.items()}, **common)


def slots(share: Share, parameters: Mapping[str, Any]) -> dict[str, Array]:
    """The optimizer's accumulators from its `state_dict` as "SLOT/PARAMETER", and "schedule" where there is one."""
    own = {parameters[name].name: name for name in share.names}
    result: dict[str, Array] = {}
    for key, value in share.optimizer.state_dict().items():
        if key == "LR_Scheduler":
            result["schedule"] = np.array(value["last_epoch"], np.int64)
        elif key != "master_weights":
            stored = max((name for name in own if key.startswith(f"{name}_")), key=len)
            slot = key[len(stored) + 1 :].rsplit("_", 1)[0]
            array = to_numpy(value)
            result[f"{slot}/{own[stored]}"] = canonical(array)
    return result


def counters(optimizer: Optimizer, state: Mapping[str, Array]) -> dict[str, Array]:
    """Applied updates as Adam's accumulated powers of beta2 show them: "steps.PARAMETER" of each, "steps" the most.

    Empty for optimizers that count nothing, and where a power is not one.
    """
    if not isinstance(optimizer, Adam | AdamW):
        return {}
    powers = {slot.partition("/")[2]: float(value) for slot, value in state.items() if slot.startswith("beta2_pow")}
    if not all(0.0 < power < 1.0 for power in powers.values()):
        return {}
    counts = {name: round(math.log(power) / math.log(optimizer.beta2)) - 1 for name, power in powers.items()}
    result = {"steps": np.array(max(counts.values(), default=0), np.int64)}
    return result | {f"steps.{name}": np.array(count, np.int64) for name, count in counts.items()}


def refuse_mixed_clip(parameters: Iterable[Any]) -> None:
    """Refuses a clip over several optimizers where the gradients have several formats.

    Raises:
        Unsupported: they have.
    """
    if len({format_name(parameter.dtype) for parameter in parameters}) > 1:
        raise Unsupported(Capability.CLIP, _MIXED_FORMATS, _mixed)


def _mixed() -> bool:
    single, double = paddle.create_parameter([1], "float32"), paddle.create_parameter([1], "float64")
    (3.0 * single.astype("float64") + 4.0 * double).sum().backward()
    paddle.nn.utils.clip_grad_norm_([single, double], 1.0)
    return abs(single.grad.item() - 0.6) < 1e-3 and abs(double.grad.item() - 0.8) < 1e-3


def mark_of(share: Share, named: Mapping[str, Any]) -> dict[str, bytes]:
    """Fingerprint of everything that an update changes: parameters and optimizer state."""
    parameters = {f"parameter/{name}": to_numpy(named[name]) for name in share.names}
    return {name: value.tobytes() for name, value in {**slots(share, named), **parameters}.items()}


def has_moved(before: Mapping[str, bytes], after: Mapping[str, bytes]) -> bool:
    """Whether a fingerprint has changed."""
    return any(after[name] != value for name, value in before.items())


def overflowed(share: Share) -> bool:
    """Whether `GradScaler` skipped the last step because of a non-finite gradient."""
    return bool(share.optimizer._get_auxiliary_var("found_inf"))
