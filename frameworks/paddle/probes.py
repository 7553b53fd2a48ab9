"""Attempts with Paddle's own calls in the dynamic graph, without this adapter's guards."""

import warnings
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from functools import partial
from typing import Any

import numpy as np
import paddle

from frameworks.contract import Attempt, Capability
from frameworks.operations import CATALOGUE
from frameworks.paddle.core import settings
from frameworks.paddle.core.devices import format_name, to_tensor
from frameworks.paddle.core.layers import OPERATIONS
from frameworks.paddle.training.optimizers import forced_scaler, quiet


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


def _unscale() -> bool:
    weight, optimizer = _weight()
    scaler = paddle.amp.GradScaler(init_loss_scaling=8.0)
    scaler.scale((weight * 3.0).sum()).backward()
    before = weight.grad.item()
    scaler.unscale_(optimizer)
    return before == 24.0 and weight.grad.item() == 3.0


def _unscale_twice() -> bool:
    weight, optimizer = _weight()
    scaler = paddle.amp.GradScaler(init_loss_scaling=8.0)
    scaler.scale((weight * 3.0).sum()).backward()
    scaler.unscale_(optimizer)
    try:
        scaler.unscale_(optimizer)
    except RuntimeError:
        return True
    return False


def _average() -> bool:
    weight, _ = _weight()
    average = paddle.static.ExponentialMovingAverage(0.5)
    average.update()
    return weight.item() == 1.0


OF_OPTIMIZERS: dict[Capability, Attempt] = {
    Capability.DYNAMIC_SCALING: _dynamic,
    Capability.STATIC_SCALING: _static,
    Capability.SCALING_FACTORS: _factors,
    Capability.EXPLICIT_UNSCALE: _unscale,
    Capability.SECOND_UNSCALE: _unscale_twice,
    Capability.AVERAGE: _average,
}
"""Attempts for each capability of optimizers and of the loss scaler."""


def dynamic_attempts(*, forced: bool) -> Mapping[Capability, Attempt]:
    """The attempts; each leaves the process-wide settings as they were.

    Deprecation warnings of NumPy caused by Paddle's own code are ignored.

    Args:
        forced: whether a `GradScaler` is driven where Paddle turns it off.
    """
    return {capability: partial(_alone, attempt, forced=forced) for capability, attempt in _ATTEMPTS.items()}


def _alone(attempt: Attempt, *, forced: bool) -> bool:
    before = settings.read_settings()
    try:
        with quiet(), forced_scaler() if forced else nullcontext(), warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            return attempt()
    finally:
        settings.restore_settings(before)


def any_way(ways: Iterable[Attempt]) -> bool:
    """Whether one of several ways takes effect; one that raises does not."""
    for way in ways:
        try:
            if way():
                return True
        except Exception:
            continue
    return False


def _scope(dtype: str, **lists: Any) -> str:
    x = paddle.ones([2, 2])
    with paddle.amp.auto_cast(level="O1", dtype=dtype, **lists):
        return format_name(paddle.matmul(x, x).dtype)


def _low(dtype: str, *, master: bool, decorated: bool) -> bool:
    layer = paddle.nn.Linear(2, 2)
    optimizer = paddle.optimizer.Adam(parameters=layer.parameters(), multi_precision=master)
    if decorated:
        paddle.amp.decorate(
            models=layer, optimizers=optimizer, level="O2", dtype=dtype, master_weight=None if master else False
        )
    else:
        layer.to(dtype=dtype)
    if format_name(layer.weight.dtype) != dtype:
        return False
    with paddle.amp.auto_cast(level="O2", dtype=dtype) if decorated else nullcontext():
        output = layer(paddle.ones([2, 2], dtype))
    output.astype("float32").sum().backward()
    optimizer.step()
    return bool(optimizer.state_dict().get("master_weights")) == master


def _low_model(dtype: str, *, master: bool) -> Attempt:
    """A model in a low format, by `amp.decorate` or by `Layer.to`, makes an update, with float32 masters or without."""
    return lambda: any_way(partial(_low, dtype, master=master, decorated=way) for way in (True, False))


def _tf32() -> bool:
    ones = paddle.full([16, 16], 1.0 + 2.0**-12)
    products = []
    for allowed in (True, False):
        with settings.tf32_products(allowed):
            products.append(paddle.matmul(ones, ones).numpy())
    return not np.array_equal(*products)


def _operations() -> bool:
    for dtype in ("float16", "bfloat16"):
        for name, arrays in CATALOGUE.items():
            tensors = [to_tensor(array) for array in arrays()]
            OPERATIONS[name](*(t.astype(dtype) if t.is_floating_point() else t for t in tensors))
    return True


def _peak() -> bool:
    return int(paddle.device.max_memory_allocated()) > 0


_ATTEMPTS: dict[Capability, Attempt] = {
    **OF_OPTIMIZERS,
    Capability.O1_FLOAT16: lambda: _scope("float16") == "float16",
    Capability.O1_BFLOAT16: lambda: _scope("bfloat16") == "bfloat16",
    Capability.O2_FLOAT16: _low_model("float16", master=True),
    Capability.O2_BFLOAT16: _low_model("bfloat16", master=True),
    Capability.O3_FLOAT16: _low_model("float16", master=False),
    Capability.O3_BFLOAT16: _low_model("bfloat16", master=False),
    Capability.AUTOCAST_SCOPE: lambda: _scope("bfloat16") == "bfloat16",
    Capability.AUTOCAST_LISTS: lambda: (
        _scope("bfloat16") == "bfloat16" and _scope("bfloat16", custom_black_list={"matmul"}) == "float32"
    ),
    Capability.TF32: _tf32,
    Capability.OPERATIONS: _operations,
    Capability.PEAK_BYTES: _peak,
}
