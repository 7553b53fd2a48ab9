"""Attempts with PyTorch's loss scaler, without this adapter's guards."""

from typing import Any

import torch
from torch.nn.utils import clip_grad_norm_

from fixtures.recipe import SGD, Adam, AdamW, Optimizer

GRADIENTS = (torch.float16, torch.float32)


def weight_of(device: str, value: float = 1.0) -> torch.Tensor:
    """Two weights that require a gradient."""
    return torch.full((2,), value, device=device, requires_grad=True)


def dynamic_scaling(device: str) -> bool:
    """Whether an overflow skips an update and halves the scale, and the next update is applied."""
    scaler, weight = torch.amp.GradScaler(device, init_scale=1024.0), weight_of(device)
    optimizer, results = torch.optim.SGD([weight], lr=0.5), []
    for value in (float("inf"), 1.0):
        scaler.scale((weight * value).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        results.append((weight[0].item(), scaler.get_scale()))
    return results == [(1.0, 512.0), (0.5, 512.0)]


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
