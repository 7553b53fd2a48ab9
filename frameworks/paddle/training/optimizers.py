"""Recipes' optimizers, schedules, clipping and loss scaling in Paddle's own classes, and options that these lack.

The scaler's constructor asks the tracer for the expected place and disables the scaler on anything but a GPU, an XPU or
a custom device, and `scale()` disables it for good unless the last precision scope of the process was a float16 one.
Everything behind those two questions (unscaling, detection, skipping, the automaton) is plain arithmetic that runs on a
CPU. `forced_scaler()` answers the first question with "GPU" and the second with "float16", only inside its scope, so
that the scaler's state machine can be tested without a GPU. No kernel and no rule is replaced.

The kernels differ in one thing: a CPU's looks for non-finite gradients before it unscales them, a GPU's afterwards. So
only a GPU detects values that unscaling makes non-finite, for example by a scale of 0: see `refuse_what_differs`.
"""

import contextlib
import io
import logging
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import paddle
from paddle.amp import grad_scaler
from paddle.amp.auto_cast import amp_global_state

from fixtures.arrays import Array
from fixtures.optimizers import SGD, Adagrad, Adam, AdamW, Optimizer, RMSprop, collect_fields
from fixtures.recipe import Recipe, Scaling, StaticScaling
from frameworks.contract import Attempt, Capability, Unsupported
from frameworks.paddle.core import ways
from frameworks.paddle.core.settings import canonical, format_name, in_dynamic_mode, to_numpy

_fleet_log = logging.getLogger("paddle.distributed.fleet.utils.log_util")
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


def _split_names(recipe: Recipe, parameters: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """The names of the parameters of each optimizer."""
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
        implicit: a single optimizer gets no parameters, because it reads them from the program.
        schedulers: existing schedulers, for the next program of the same run.
    """
    shares = _split_names(recipe, parameters)
    alone = len(shares) == 1
    return [
        _share(
            recipe, {name: parameters[name] for name in names}, scheduler, own=not (implicit and alone), clipped=alone
        )
        for names, scheduler in zip(shares, schedulers or [None] * len(shares), strict=True)
    ]


def schedule_of(recipe: Recipe, last: int = -1) -> Any | None:
    """A new schedule of the recipe, at its beginning or after update `last` (from 0); None if there is none."""
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
        groups = [{"params": part} | _own_options(recipe, index) for index, part in enumerate(halves) if part]
        one = [{"params": listed}] if recipe.way("optimizer") == "one-group" else listed
        common["parameters"] = groups if recipe.groups == 2 else one
    if recipe.undecayed:
        undecayed = {parameters[name].name for name in recipe.undecayed if name in parameters}
        common["apply_decay_param_fun"] = lambda name: name not in undecayed
    if recipe.clip is not None and clipped and recipe.way("clip") == "":
        common["grad_clip"] = paddle.nn.ClipGradByGlobalNorm(recipe.clip)
    return Share(tuple(parameters), _make(recipe, common), scheduler)


def _own_options(recipe: Recipe, index: int) -> dict[str, float]:
    """Options of a group that differ from the optimizer's; its rate is a factor of the optimizer's."""
    own, options = recipe.of_groups[min(index, recipe.groups - 1)], {}
    if recipe.second_rate is not None and index:
        options["learning_rate"] = own.learning_rate / recipe.optimizer.learning_rate
    if recipe.second_decay is not None and index:
        options["weight_decay"] = own.weight_decay
    return options


_KINDS: Mapping[type[Optimizer], Any] = {
    SGD: paddle.optimizer.SGD,
    Adam: paddle.optimizer.Adam,
    AdamW: paddle.optimizer.AdamW,
    Adagrad: paddle.optimizer.Adagrad,
    RMSprop: paddle.optimizer.RMSProp,
}
OPTIMIZERS = Capability.of_optimizers(_KINDS)
"""The capabilities of Paddle's optimizers, without their options."""
_ARGUMENTS = {"decay": "rho", "centred": "centered", "nesterov": "use_nesterov", "initial": "initial_accumulator_value"}
"""Paddle's names of arguments, where they differ from a recipe's."""


def _make(recipe: Recipe, common: dict[str, Any]) -> Any:
    optimizer = recipe.optimizer
    arguments = {
        name: value
        for name, value in collect_fields(optimizer).items()
        if value is not None and name != "learning_rate"
    }
    kind = _KINDS[type(optimizer)]
    if isinstance(optimizer, SGD):
        kind = paddle.optimizer.Momentum if arguments.get("momentum") else kind
        arguments = {name: value for name, value in arguments.items() if value}
    if recipe.implementation == "foreach":
        arguments["use_multi_tensor"] = True
    return kind(**{_ARGUMENTS.get(name, name): value for name, value in arguments.items()}, **common)


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
    """Applied updates as Adam's accumulated powers of beta2 show them: "steps.PARAMETER" for each, "steps" the largest.

    Empty for optimizers without a counter, and if an accumulator is no power of beta2.
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
        Unsupported: the gradients have several formats.
    """
    if len({format_name(parameter.dtype) for parameter in parameters}) > 1:
        raise Unsupported(Capability.CLIP, _MIXED_FORMATS, _can_clip_mixed)


def _can_clip_mixed() -> bool:
    single, double = paddle.create_parameter([1], "float32"), paddle.create_parameter([1], "float64")
    (3.0 * single.astype("float64") + 4.0 * double).sum().backward()
    paddle.nn.utils.clip_grad_norm_([single, double], 1.0)
    return abs(single.grad.item() - 0.6) < 1e-3 and abs(double.grad.item() - 0.8) < 1e-3


def mark_of(share: Share, named: Mapping[str, Any]) -> dict[str, bytes]:
    """Fingerprint of everything that an update changes: parameters and optimizer state."""
    parameters = {f"parameter/{name}": to_numpy(named[name]) for name in share.names}
    return {name: value.tobytes() for name, value in {**slots(share, named), **parameters}.items()}


def has_moved(before: Mapping[str, bytes], after: Mapping[str, bytes]) -> bool:
    """Returns whether a fingerprint has changed; new entries, such as the first moments, do not count."""
    return any(after[name] != value for name, value in before.items())


_MULTI = "only Momentum and Adam have use_multi_tensor"


def require(recipe: Recipe) -> None:
    """Refuses an implementation that an optimizer lacks.

    Raises:
        Unsupported: the optimizer lacks the implementation.
    """
    optimizer = recipe.optimizer
    has = isinstance(optimizer, Adam) or (isinstance(optimizer, SGD) and optimizer.momentum > 0)
    if recipe.implementation == "foreach" and not has:
        raise Unsupported(Capability.FOREACH, _MULTI, partial(_steps, paddle.optimizer.SGD, use_multi_tensor=True))


def _steps(kind: Any, **arguments: Any) -> bool:
    weight = paddle.create_parameter([2], "float32", default_initializer=paddle.nn.initializer.Constant(1.0))
    optimizer = kind(parameters=[weight], **arguments)
    weight.sum().backward()
    optimizer.step()
    return bool((weight != 1.0).all())


_momentum, _adagrad = paddle.optimizer.Momentum, partial(paddle.optimizer.Adagrad, 0.5)
_OPTIONS: dict[Capability, tuple[str, Attempt]] = {
    Capability.SINGLE: (
        "Paddle's optimizers update a parameter at a time unless use_multi_tensor is set",
        partial(_steps, _momentum, foreach=False),
    ),
    Capability.FUSED: (
        "Paddle's optimizers have no argument for a fused kernel",
        partial(_steps, _momentum, fused=True),
    ),
    Capability.CAPTURABLE: (
        "Paddle's optimizers have no argument for graph capture",
        partial(_steps, _momentum, capturable=True),
    ),
    Capability.DAMPENING: ("paddle.optimizer.Momentum has no dampening", partial(_steps, _momentum, dampening=0.5)),
    Capability.MAXIMIZE: (
        "Paddle's optimizers minimize, and have no argument to maximize",
        partial(_steps, _momentum, maximize=True),
    ),
    Capability.RATE_DECAY: (
        "paddle.optimizer.Adagrad has no decay of the rate but a schedule",
        partial(_steps, _adagrad, lr_decay=1.0),
    ),
    Capability.TENSOR_RATE: (
        "a tensor as learning rate raises TypeError, although Momentum and Adagrad document it",
        lambda: _steps(_momentum, learning_rate=paddle.to_tensor(0.5)),
    ),
    Capability.ADAFACTOR: ("there is no paddle.optimizer.Adafactor", lambda: _steps(paddle.optimizer.Adafactor)),
    Capability.MUON: ("there is no paddle.optimizer.Muon", lambda: _steps(paddle.optimizer.Muon)),
}
"""Options that Paddle does not have, each with the reason and an attempt in the dynamic graph."""

REFUSED_OPTIONS = {capability: reason for capability, (reason, _) in _OPTIONS.items()}
REFUSED_IN_BOTH = {c: reason for c, reason in REFUSED_OPTIONS.items() if c != Capability.TENSOR_RATE}
"""Options for which neither graph has an argument or class."""


def refused_attempts() -> dict[Capability, Attempt]:
    """Attempts for each option that Paddle does not have, in the dynamic graph."""
    return {capability: partial(in_dynamic_mode, attempt) for capability, (_, attempt) in _OPTIONS.items()}


class UpdateAfterLosses(NamedTuple):
    """The fields of `Update` after the losses."""

    scale_before: float
    scale_after: float
    good_steps: int | None
    skipped: bool
    gradient_norm: float | None
    learning_rate: float


def build_scaler(scaling: Scaling) -> Any:
    """A `GradScaler` with the recipe's settings; the others keep Paddle's defaults."""
    if isinstance(scaling, StaticScaling):
        return paddle.amp.GradScaler(enable=True, init_loss_scaling=scaling.scale, use_dynamic_loss_scaling=False)
    settings = {
        "init_loss_scaling": scaling.initial,
        "incr_ratio": scaling.growth,
        "decr_ratio": scaling.backoff,
        "incr_every_n_steps": scaling.interval,
    }
    settings = {name: value for name, value in settings.items() if value is not None}
    return paddle.amp.GradScaler(enable=scaling.enabled, **settings)


def scope_for_a_scaler() -> AbstractContextManager[None]:
    """A scope that casts nothing: `GradScaler.scale` works only where the last precision scope was a float16 one."""
    return paddle.amp.auto_cast(enable=False, dtype="float16")


def scales_by_itself(dtype: str) -> bool:
    """Returns whether a `GradScaler` scales after a precision scope of this format."""
    with paddle.amp.auto_cast(dtype=dtype):
        loss = paddle.ones([1])
    return bool(paddle.amp.GradScaler(init_loss_scaling=8.0).scale(loss).item() == 8.0)


def read_settings(scaler: Any) -> dict[str, float]:
    """Start, factors and interval by the scaler's public getters; nothing for a disabled one, whose getters raise."""
    if not scaler.is_enable():
        return {}
    return {
        "initial": float(scaler.get_init_loss_scaling()),
        "growth": float(scaler.get_incr_ratio()),
        "backoff": float(scaler.get_decr_ratio()),
        "interval": float(scaler.get_incr_every_n_steps()),
    }


def read_state(scaler: Any) -> dict[str, Array]:
    """ "scale", "good_steps" and "bad_steps" from `state_dict()`; nothing for a disabled scaler."""
    state = scaler.state_dict()
    if not state:
        return {}
    return {
        "scale": np.asarray(state["scale"]).reshape(()).copy(),
        "good_steps": np.array(state["incr_count"], np.int64),
        "bad_steps": np.array(state["decr_count"], np.int64),
    }


def skipped_by_counters(before: Mapping[str, Any], after: Mapping[str, Any]) -> bool | None:
    """Returns whether two `state_dict`s of a dynamic scaler, before and after `update()`, show a skipped step.

    A step that was applied raises `incr_count`, or takes it from the interval's end to 0 and multiplies the scale by
    `incr_ratio`; a skipped one sets it to 0 and, `decr_every_n_nan_or_inf` being 1, multiplies it by `decr_ratio`.
    None where both look alike, because the scale is static, or stuck at 0 or infinity at the interval's end.
    """
    if not before or not before["use_dynamic_loss_scaling"]:
        return None
    if after["incr_count"]:
        return False
    if before["incr_count"] + 1 < before["incr_every_n_steps"]:
        return True
    scale_before, scale_after = float(before["scale"][0]), float(after["scale"][0])
    return None if scale_after == scale_before else scale_after < scale_before


def read_update(
    before: Mapping[str, Any], after: Mapping[str, Any], rate: float, *, skipped: bool
) -> UpdateAfterLosses:
    """Fields of an update, from the scaler's `state_dict` before and after it; Paddle reports no gradient norm."""
    scale_before, scale_after = (float(state["scale"][0]) if state else 1.0 for state in (before, after))
    good_steps = int(after["incr_count"]) if after and after["use_dynamic_loss_scaling"] else None
    return UpdateAfterLosses(scale_before, scale_after, good_steps, skipped, gradient_norm=None, learning_rate=rate)


@contextmanager
def quiet() -> Iterator[None]:
    """Suppresses the scaler's output at each backoff, and `recompute`'s log lines below level error."""
    level = _fleet_log.level
    _fleet_log.setLevel(logging.ERROR)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        _fleet_log.setLevel(level)


ONLY_A_GPU = (
    "a CPU's kernel looks for non-finite gradients before it unscales them, a GPU's afterwards: only a GPU shows what "
    "an update does whose finite gradients unscaling makes non-finite"
)


_PLACE = SimpleNamespace(is_gpu_place=lambda: True, is_xpu_place=lambda: False, is_custom_place=lambda: False)
_TRACER = SimpleNamespace(_expected_place=_PLACE)


@contextmanager
def forced_scaler() -> Iterator[None]:
    """Context in which a `GradScaler` works on a CPU; the tracer and `amp_dtype` are restored at its end."""
    before = amp_global_state().amp_dtype
    amp_global_state().amp_dtype = "float16"
    try:
        with mock.patch.object(grad_scaler, "_dygraph_tracer", return_value=_TRACER):
            yield
    finally:
        amp_global_state().amp_dtype = before


def refuse_what_differs(scale: float, gradients: Iterable[Array]) -> None:
    """Refuses an update that the kernels of a CPU and a GPU decide differently.

    Raises:
        Unsupported: the scaled gradients are finite, and unscaling makes one of them non-finite.
    """
    scaled = list(gradients)
    with np.errstate(all="ignore"):
        inverse = np.float32(1.0) / np.float32(scale)
        finite = all(np.isfinite(gradient).all() for gradient in scaled)
        if finite and not all(np.isfinite(gradient * inverse).all() for gradient in scaled):
            raise Unsupported(Capability.DYNAMIC_SCALING, ONLY_A_GPU, skips_nan_after_unscaling)


def skips_nan_after_unscaling() -> bool:
    """Returns whether an update is skipped whose gradient becomes NaN when it is unscaled."""
    weight = paddle.create_parameter([1], "float32", default_initializer=paddle.nn.initializer.Constant(1.0))
    optimizer = paddle.optimizer.SGD(0.5, parameters=[weight])
    with forced_scaler():
        scaler = paddle.amp.GradScaler()
        scaler.set_init_loss_scaling(0)
        scaler.scale(weight.sum()).backward()
        scaler.step(optimizer)
    return bool(weight.item() == 1.0)
