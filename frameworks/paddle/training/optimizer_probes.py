"""Attempts with Paddle's optimizers and loss scaler in the dynamic graph, without this adapter's guards."""

from typing import Any

import paddle

from frameworks.contract import Attempt, Capability


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
