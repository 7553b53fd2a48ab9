"""Attempts with PyTorch's optimizers, schedules, averages and loss scaler, without this adapter's guards."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
from torch.nn import Linear
from torch.nn.utils import clip_grad_norm_
from torch.optim.lr_scheduler import LambdaLR
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from fixtures.recipe import SGD, Adam, AdamW, Optimizer, Recipe
from frameworks.contract import Capability, Unsupported
from frameworks.torch.core.compiling import compiled, without_buffer_donation
from frameworks.torch.core.guards import Probe
from frameworks.torch.training.scaler import no_unscaling

GRADIENTS = (torch.float16, torch.float32)


def weight_of(device: str, value: float = 1.0) -> torch.Tensor:
    """Two weights that require a gradient."""
    return torch.full((2,), value, device=device, requires_grad=True)


def _sgd(*weights: torch.Tensor) -> torch.optim.Optimizer:
    return torch.optim.SGD(weights, lr=0.5)


def _attempt(scaler: torch.amp.GradScaler, weights: Iterable[torch.Tensor], values: Iterable[float]) -> None:
    """One scaled update of each weight from a gradient that is the same everywhere."""
    optimizers = []
    for weight, value in zip(weights, values, strict=True):
        scaler.scale((weight * value).sum()).backward()
        optimizers.append(_sgd(weight))
    for optimizer in optimizers:
        scaler.step(optimizer)
    scaler.update()


def _dynamic_scaling(device: str) -> bool:
    scaler, weight = torch.amp.GradScaler(device, init_scale=1024.0), weight_of(device)
    _attempt(scaler, [weight], [float("inf")])
    skipped = bool((weight == 1.0).all()) and scaler.get_scale() == 512.0
    weight.grad = None
    _attempt(scaler, [weight], [1.0])
    return skipped and bool((weight == 0.5).all())


def _static_scaling(device: str) -> bool:
    scaler, scales = torch.amp.GradScaler(device, init_scale=8.0), []
    for value in (1.0, float("inf"), 1.0):
        weight = weight_of(device)
        scaler.scale((weight * value).sum()).backward()
        scaler.step(_sgd(weight))
        scaler.update(8.0)
        scales.append((scaler.get_scale(), weight[0].item()))
    return scales == [(8.0, 0.5), (8.0, 1.0), (8.0, 0.5)]


def _scaling_factors(device: str) -> bool:
    scaler = torch.amp.GradScaler(device, 16.0, growth_factor=4.0, backoff_factor=0.125, growth_interval=1)
    scales = []
    for value in (1.0, float("nan")):
        _attempt(scaler, [weight_of(device)], [value])
        scales.append(scaler.get_scale())
    return scales == [64.0, 8.0]


def _scaling_disabled(device: str) -> bool:
    scaler, weight = torch.amp.GradScaler(device, enabled=False), weight_of(device)
    _attempt(scaler, [weight], [1.0])
    return scaler.get_scale() == 1.0 and bool((weight == 0.5).all())


def _explicit_unscale(device: str) -> bool:
    scaler, weight = torch.amp.GradScaler(device, init_scale=1024.0), weight_of(device)
    scaler.scale(weight.sum()).backward()
    scaler.unscale_(_sgd(weight))
    return weight.grad is not None and bool((weight.grad == 1.0).all())


def _second_unscale(device: str) -> bool:
    scaler, weight = torch.amp.GradScaler(device, init_scale=1024.0), weight_of(device)
    optimizer = _sgd(weight)
    scaler.scale(weight.sum()).backward()
    scaler.unscale_(optimizer)
    try:
        scaler.unscale_(optimizer)
    except RuntimeError:
        return weight.grad is not None and bool((weight.grad == 1.0).all())
    return False


def _two_optimizers(device: str) -> bool:
    weights = [weight_of(device), weight_of(device)]
    scaler = torch.amp.GradScaler(device, init_scale=1024.0)
    _attempt(scaler, weights, [1.0, 1.0])
    return all(bool((weight == 0.5).all()) for weight in weights) and scaler.get_scale() == 1024.0


def _two_losses(device: str) -> bool:
    scaler, weight = torch.amp.GradScaler(device, init_scale=1024.0), weight_of(device)
    optimizer, shared = _sgd(weight), weight * 1.0
    scaler.scale(shared.sum()).backward(retain_graph=True)
    scaler.scale(shared.sum()).backward()
    scaler.step(optimizer)
    return bool((weight == 0.0).all())


def two_losses_compiled(mode: str, device: str) -> bool:
    """Whether two scaled losses of one compiled pass can each go backward."""
    first, second = Linear(4, 4).to(device), Linear(4, 4).to(device)

    def losses(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        features = torch.tanh(first(x))
        return features.square().sum(), torch.tanh(second(features)).square().sum()

    with without_buffer_donation():
        one, other = compiled(losses, mode)(torch.ones(2, 4, device=device))
        one.backward(retain_graph=True)
        other.backward()
    return second.weight.grad is not None


def _accumulation(device: str) -> bool:
    weight = weight_of(device)
    for _ in range(3):
        weight.sum().backward()
    return weight.grad is not None and bool((weight.grad == 3.0).all())


def _partial_window(device: str) -> bool:
    weight = weight_of(device)
    optimizer = _sgd(weight)
    for _ in range(2):  # of, say, four
        (weight / 2).sum().backward()
    optimizer.step()
    return bool((weight == 0.5).all())


def _clip(device: str) -> bool:
    weight = weight_of(device)
    (weight * 8.0).sum().backward()
    clip_grad_norm_([weight], 1.0)
    return weight.grad is not None and float(weight.grad.norm()) < 1.001


def _schedule(device: str) -> bool:
    optimizer = _sgd(weight_of(device))
    scheduler = LambdaLR(optimizer, lambda step: 0.5**step)
    optimizer.step()
    scheduler.step()
    return float(optimizer.param_groups[0]["lr"]) == 0.25


def _groups(device: str) -> bool:
    weights = [weight_of(device), weight_of(device)]
    groups: list[dict[str, Any]] = [{"params": weights[:1]}, {"params": weights[1:], "lr": 0.25}]
    optimizer = torch.optim.SGD(groups, lr=0.5)
    sum(weights[1:], weights[0]).sum().backward()
    optimizer.step()
    return [weight[0].item() for weight in weights] == [0.5, 0.75]


def _missing_gradients(device: str) -> bool:
    weights = [weight_of(device), weight_of(device)]
    optimizer = torch.optim.AdamW(weights, weight_decay=0.5)
    weights[0].sum().backward()
    optimizer.step()
    return bool((weights[0] != 1.0).all()) and bool((weights[1] == 1.0).all())


def _average(device: str) -> bool:
    network = Linear(1, 1, bias=False, device=device)
    average, values = AveragedModel(network, multi_avg_fn=get_ema_multi_avg_fn(0.5)), []
    for value in (1.0, 0.0):
        torch.nn.init.constant_(network.weight, value)
        average.update_parameters(network)
        values += [weight.item() for weight in average.parameters()]
    return values == [1.0, 0.5]


def by_hand_refused(recipe: Recipe, device: str) -> Unsupported:
    """The refusal to unscale the gradients of a float16 model by hand."""
    attempt = partial(float16_clipped, recipe.optimizer, device)
    return Unsupported(Capability.EXPLICIT_UNSCALE, no_unscaling(), attempt)


def float16_clipped(optimizer: Optimizer, device: str) -> bool:
    """Whether scaled gradients of a float16 parameter can be unscaled, clipped and applied, in any format of theirs."""
    kind = {SGD: torch.optim.SGD, Adam: torch.optim.Adam, AdamW: torch.optim.AdamW}[type(optimizer)]
    ways: tuple[dict[str, bool], ...] = ({}, {"foreach": False}, {"foreach": True}, {"fused": True})
    return any(_float16_clipped(kind, way, dtype, device) for dtype in GRADIENTS for way in ways)


def _float16_clipped(kind: Any, way: dict[str, bool], dtype: torch.dtype, device: str) -> bool:
    weight = torch.ones(2, dtype=torch.float16, device=device, requires_grad=True)
    try:
        weight.grad_dtype = dtype
        scaler, stepper = torch.amp.GradScaler(device, init_scale=16.0), kind([weight], lr=0.5, **way)
        scaler.scale(weight.sum()).backward()
        scaler.unscale_(stepper)
        clip_grad_norm_([weight], 0.5)
        scaler.step(stepper)
    except (RuntimeError, ValueError):
        return False
    return bool((weight != 1.0).all())


def _feed(device: str) -> bool:
    weight, given = weight_of(device), torch.tensor([0.5, 2.0], device=device)
    optimizer = _sgd(weight)
    (weight * given).sum().backward()
    optimizer.step()
    return weight.tolist() == [0.75, 0.0]


OF_OPTIMIZERS: dict[Capability, Probe] = {
    Capability.DYNAMIC_SCALING: _dynamic_scaling,
    Capability.STATIC_SCALING: _static_scaling,
    Capability.SCALING_FACTORS: _scaling_factors,
    Capability.SCALING_DISABLED: _scaling_disabled,
    Capability.EXPLICIT_UNSCALE: _explicit_unscale,
    Capability.SECOND_UNSCALE: _second_unscale,
    Capability.TWO_OPTIMIZERS: _two_optimizers,
    Capability.TWO_LOSSES: _two_losses,
    Capability.ACCUMULATION: _accumulation,
    Capability.PARTIAL_WINDOW: _partial_window,
    Capability.GROUPS: _groups,
    Capability.CLIP: _clip,
    Capability.SCHEDULE: _schedule,
    Capability.MISSING_GRADIENTS: _missing_gradients,
    Capability.AVERAGE: _average,
    Capability.FEED: _feed,
}
"""Attempts for each capability of optimizers and of the loss scaler."""
