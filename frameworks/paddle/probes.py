"""Calls Paddle's own functions, without this adapter's guards, to see whether a capability acts."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import paddle

from frameworks.contract import Capability
from frameworks.paddle import memory, recomputation, settings
from frameworks.paddle.arrays import format_name
from frameworks.paddle.declarations import FORCED, STATIC
from frameworks.paddle.forced import forced_scaler
from frameworks.paddle.scaling import quiet

Probe = Callable[[], bool]


def run(capability: Capability, mode: str) -> bool | None:
    """What was seen: True it acted, False it raised, warned or did nothing, None there is nothing to observe."""
    if mode == STATIC:
        from frameworks.paddle.static_probes import run_static

        return run_static(capability)
    probe = _PROBES.get(capability)
    if probe is None:
        return None
    scope = forced_scaler() if mode == FORCED else nullcontext()
    before = settings.read_settings()
    try:
        with warnings.catch_warnings(record=True) as caught, quiet(), scope:
            warnings.simplefilter("always")
            acted = probe()
    except Exception:
        return False
    finally:
        settings.restore_settings(before)
    return acted and not any("makes no effect" in str(warning.message) for warning in caught)


def _scope(dtype: str, **lists: Any) -> str:
    x = paddle.ones([2, 2])
    with paddle.amp.auto_cast(level="O1", dtype=dtype, **lists):
        return format_name(paddle.matmul(x, x).dtype)


def _decorated(dtype: str, master: bool | None) -> bool:
    layer = paddle.nn.Linear(2, 2)
    optimizer = paddle.optimizer.Adam(parameters=layer.parameters())
    paddle.amp.decorate(models=layer, optimizers=optimizer, level="O2", dtype=dtype, master_weight=master)
    return format_name(layer.weight.dtype) == dtype


def _weight(value: float = 1.0) -> Any:
    weight = paddle.create_parameter([1], "float32", default_initializer=paddle.nn.initializer.Constant(value))
    return weight, paddle.optimizer.SGD(0.5, parameters=[weight])


def _step(scaler: Any, weight: Any, optimizer: Any, gradient: float) -> tuple[float, float]:
    scaler.scale((weight * gradient).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.clear_grad()
    return weight.item(), float(scaler.state_dict()["scale"][0])


def _dynamic() -> bool:
    weight, optimizer = _weight()
    scaler = paddle.amp.GradScaler(init_loss_scaling=8.0)
    return _step(scaler, weight, optimizer, float("inf")) == (1.0, 4.0)


def _static() -> bool:
    weight, optimizer = _weight()
    scaler = paddle.amp.GradScaler(init_loss_scaling=8.0, use_dynamic_loss_scaling=False)
    return scaler.scale(weight.sum()).item() == 8.0 and _step(scaler, weight, optimizer, float("inf")) == (1.0, 8.0)


def _factors() -> bool:
    weight, optimizer = _weight()
    scaler = paddle.amp.GradScaler(init_loss_scaling=8.0, incr_ratio=4.0, decr_ratio=0.25, incr_every_n_steps=1)
    grown = _step(scaler, weight, optimizer, 1.0)
    return grown == (0.5, 32.0) and _step(scaler, weight, optimizer, float("nan")) == (0.5, 8.0)


def _disabled() -> bool:
    scaler = paddle.amp.GradScaler(enable=False)
    weight, _ = _weight()
    return not scaler.is_enable() and scaler.scale(weight.sum()).item() == 1.0


def _unscale() -> bool:
    weight, optimizer = _weight()
    scaler = paddle.amp.GradScaler(init_loss_scaling=8.0)
    scaler.scale((weight * 3.0).sum()).backward()
    before = weight.grad.item()
    scaler.unscale_(optimizer)
    return before == 24.0 and weight.grad.item() == 3.0


def _float64() -> bool:
    weight = paddle.create_parameter([1], "float64")
    optimizer = paddle.optimizer.Adam(parameters=[weight])
    with paddle.amp.auto_cast(enable=False):
        output = paddle.nn.functional.linear(paddle.ones([1, 1], "float64"), weight.reshape([1, 1]))
    output.sum().backward()
    optimizer.step()
    return format_name(output.dtype) == "float64" == format_name(weight.dtype)


def _accumulation() -> bool:
    weight, _ = _weight()
    for _ in range(2):
        (weight * 3.0).sum().backward()
    return bool(weight.grad.item() == 6.0)


def _recompute() -> bool:
    x, w = np.full((2, 2), 0.5, np.float32), np.full((2, 2), 0.25, np.float32)
    plain, again = (recomputation.run_case(case, x, w, None) for case in ("plain", "positional"))
    return plain.w is not None and again.w is not None and bool((plain.w == again.w).all())


def _nested() -> bool:
    from paddle.distributed.fleet.utils import recompute

    calls = 0

    def inner(x: Any) -> Any:
        nonlocal calls
        calls += 1
        return paddle.tanh(x)

    x = paddle.ones([2])
    x.stop_gradient = False
    recompute(lambda y: recompute(inner, y), x).sum().backward()
    return calls == 3 and x.grad is not None


def _groups() -> bool:
    a, b = _weight()[0], _weight()[0]
    optimizer = paddle.optimizer.SGD(1.0, parameters=[{"params": [a]}, {"params": [b], "learning_rate": 0.5}])
    (a + b).sum().backward()
    optimizer.step()
    return (a.item(), b.item()) == (0.0, 0.5)


def _clip() -> bool:
    weight, _ = _weight()
    optimizer = paddle.optimizer.SGD(1.0, parameters=[weight], grad_clip=paddle.nn.ClipGradByGlobalNorm(0.5))
    (weight * 4.0).sum().backward()
    optimizer.step()
    return bool(weight.item() == 0.5)


def _schedule() -> bool:
    weight, _ = _weight()
    scheduler = paddle.optimizer.lr.PiecewiseDecay([1], [1.0, 0.5])
    optimizer = paddle.optimizer.SGD(scheduler, parameters=[weight])
    scheduler.step()
    return optimizer.get_lr() == 0.5


def _missing() -> bool:
    weight, _ = _weight()
    other, _ = _weight()
    optimizer = paddle.optimizer.Momentum(1.0, parameters=[weight, other])
    weight.sum().backward()
    optimizer.step()
    return (weight.item(), other.item()) == (0.0, 1.0)


def _average() -> bool:
    weight, _ = _weight()
    average = paddle.static.ExponentialMovingAverage(0.5)
    average.update()
    return weight.item() == 1.0


def _bytes() -> bool:
    layer = paddle.nn.Linear(64, 64)
    x = paddle.ones([64, 64])
    return memory.bytes_held(lambda: layer(layer(x)).sum()) >= 64 * 64 * 4


_PROBES: dict[Capability, Probe] = {
    Capability.O1_FLOAT16: lambda: _scope("float16") == "float16",
    Capability.O1_BFLOAT16: lambda: _scope("bfloat16") == "bfloat16",
    Capability.O2_FLOAT16: lambda: _decorated("float16", None),
    Capability.O2_BFLOAT16: lambda: _decorated("bfloat16", None),
    Capability.O3_FLOAT16: lambda: _decorated("float16", False),
    Capability.O3_BFLOAT16: lambda: _decorated("bfloat16", False),
    Capability.FLOAT64_HEADS: _float64,
    Capability.AUTOCAST_SCOPE: lambda: _scope("bfloat16") == "bfloat16",
    Capability.AUTOCAST_LISTS: lambda: (
        _scope("bfloat16") == "bfloat16" and _scope("bfloat16", custom_black_list={"matmul"}) == "float32"
    ),
    Capability.DYNAMIC_SCALING: _dynamic,
    Capability.STATIC_SCALING: _static,
    Capability.SCALING_FACTORS: _factors,
    Capability.SCALING_DISABLED: _disabled,
    Capability.EXPLICIT_UNSCALE: _unscale,
    Capability.ACCUMULATION: _accumulation,
    Capability.RECOMPUTE: _recompute,
    Capability.RECOMPUTE_NESTED: _nested,
    Capability.GROUPS: _groups,
    Capability.CLIP: _clip,
    Capability.SCHEDULE: _schedule,
    Capability.MISSING_GRADIENTS: _missing,
    Capability.AVERAGE: _average,
    Capability.SAVED_BYTES: _bytes,
}
