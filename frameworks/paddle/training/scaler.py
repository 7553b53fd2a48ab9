"""The recipe's loss scaling as a `paddle.amp.GradScaler`, and its documented state."""

import contextlib
import io
import logging
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np
import paddle

from fixtures.arrays import Array
from fixtures.recipe import DynamicScaling, Scaling, StaticScaling

_fleet_log = logging.getLogger("paddle.distributed.fleet.utils.log_util")

UpdateAfterLosses = tuple[float, float, int | None, bool, float | None, float]
"""The fields of `Update` after the losses."""


def scaler_settings(scaling: Scaling) -> dict[str, Any]:
    """Arguments of `GradScaler` for what the recipe sets; everything else keeps Paddle's defaults."""
    if isinstance(scaling, StaticScaling):
        return {"init_loss_scaling": scaling.scale, "use_dynamic_loss_scaling": False}
    names = {
        "init_loss_scaling": scaling.initial,
        "incr_ratio": scaling.growth,
        "decr_ratio": scaling.backoff,
        "incr_every_n_steps": scaling.interval,
    }
    return {name: value for name, value in names.items() if value is not None}


def build_scaler(scaling: Scaling) -> Any:
    """A `GradScaler` as the recipe asks for."""
    enabled = not isinstance(scaling, DynamicScaling) or scaling.enabled
    return paddle.amp.GradScaler(enable=enabled, **scaler_settings(scaling))


def scope_for_a_scaler() -> AbstractContextManager[None]:
    """A scope that casts nothing: `GradScaler.scale` works only where the last precision scope was a float16 one."""
    return paddle.amp.auto_cast(enable=False, dtype="float16")


def scales_by_itself(dtype: str) -> bool:
    """Whether a `GradScaler` scales after a precision scope of this format."""
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
    """Whether two `state_dict`s of a dynamic scaler, before and after `update()`, show a skipped step.

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
    moved = float(after["scale"][0]), float(before["scale"][0])
    return None if moved[0] == moved[1] else moved[0] < moved[1]


def reported(before: Mapping[str, Any], after: Mapping[str, Any], rate: float, *, skipped: bool) -> UpdateAfterLosses:
    """An update by the scaler's `state_dict` before and after it; Paddle has no gradient norm to read."""
    scales = [float(state["scale"][0]) if state else 1.0 for state in (before, after)]
    good = int(after["incr_count"]) if after and after["use_dynamic_loss_scaling"] else None
    return scales[0], scales[1], good, skipped, None, rate


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
