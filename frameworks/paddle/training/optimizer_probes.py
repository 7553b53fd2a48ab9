"""Attempts with Paddle's optimizers and loss scaler in the dynamic graph, without this adapter's guards."""

from __future__ import annotations

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


def _two_optimizers() -> bool:
    (a, first), (b, second) = _weight(), _weight()
    (a + b).sum().backward()
    for optimizer in (first, second):
        optimizer.step()
    return (a.item(), b.item()) == (0.5, 0.5)


def _two_losses() -> bool:
    weight, optimizer = _weight()
    for factor in (1.0, 0.5):
        (weight * factor).sum().backward()
    optimizer.step()
    return bool(weight.item() == 0.25)


def _accumulation() -> bool:
    weight, _ = _weight()
    for _ in range(2):
        (weight * 3.0).sum().backward()
    return bool(weight.grad.item() == 6.0)


def _partial_window() -> bool:
    weight, optimizer = _weight()
    for _ in range(2):  # of, say, four
        (weight / 2.0).sum().backward()
    optimizer.step()
    return bool(weight.item() == 0.5)


def _feed() -> bool:
    weight, optimizer = _weight()
    (weight * 0.5).sum().backward()
    optimizer.step()
    return bool(weight.item() == 0.75)


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


OF_OPTIMIZERS: dict[Capability, Attempt] = {
    Capability.DYNAMIC_SCALING: _dynamic,
    Capability.STATIC_SCALING: _static,
    Capability.SCALING_FACTORS: _factors,
    Capability.SCALING_DISABLED: _disabled,
    Capability.EXPLICIT_UNSCALE: _unscale,
    Capability.SECOND_UNSCALE: _unscale_twice,
    Capability.TWO_OPTIMIZERS: _two_optimizers,
    Capability.TWO_LOSSES: _two_losses,
    Capability.ACCUMULATION: _accumulation,
    Capability.PARTIAL_WINDOW: _partial_window,
    Capability.GROUPS: _groups,
    Capability.CLIP: _clip,
    Capability.SCHEDULE: _schedule,
    Capability.MISSING_GRADIENTS: _missing,
    Capability.AVERAGE: _average,
    Capability.FEED: _feed,
}
"""Attempts for each capability of optimizers and of the loss scaler."""
