"""Attempts with PyTorch's own calls, without this adapter's refusals, in scopes that restore what they change."""

import warnings
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from importlib import import_module
from typing import Any

import torch
from torch.nn import Linear
from torch.nn.utils import clip_grad_norm_

from fixtures.recipe import SGD, Adam, AdamW, Optimizer
from frameworks.contract import Attempt, Capability
from frameworks.torch.core.settings import MODES, compile_function, module, multiplies_in_tf32, random_apart

Probe = Callable[[str], bool]
"""An attempt that takes the name of the device."""
Guard = Callable[[], AbstractContextManager[Any]]


def guard_probe(probe: Probe, device: str, *guards: Guard) -> Attempt:
    """The attempt on this device, inside scopes that restore the settings it changes."""
    return partial(_inside, probe, device, guards)


def all_guarded(probes: Mapping[Capability, Probe], device: str, *guards: Guard) -> dict[Capability, Attempt]:
    """The guarded attempt (`guard_probe`) of each capability."""
    return {capability: guard_probe(probe, device, *guards) for capability, probe in probes.items()}


def _inside(probe: Probe, device: str, guards: tuple[Guard, ...]) -> bool:
    with ExitStack() as scopes:
        for guard in guards:
            scopes.enter_context(guard())
        return probe(device)


def float16_clipped(optimizer: Optimizer, device: str) -> bool:
    """Returns whether scaled gradients of a float16 parameter can be unscaled, clipped and applied, in any format."""
    kind = {SGD: torch.optim.SGD, Adam: torch.optim.Adam, AdamW: torch.optim.AdamW}[type(optimizer)]
    ways: tuple[dict[str, bool], ...] = ({}, {"foreach": False}, {"foreach": True}, {"fused": True})
    return any(_float16_clipped(kind, way, dtype, device) for dtype in (torch.float16, torch.float32) for way in ways)


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


def _masters(dtype: torch.dtype, device: str) -> bool:
    """Returns whether any optimizer of a model in a low format keeps float32 copies of its weights."""
    for kind in (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW):
        linear = Linear(2, 2, bias=False, device=device, dtype=dtype)
        torch.nn.init.ones_(linear.weight)
        optimizer = kind(linear.parameters(), lr=2.0**-13)
        for _ in range(64):
            linear.weight.grad = torch.ones_like(linear.weight)
            optimizer.step()
        if linear.weight.dtype == dtype and bool((linear.weight != 1.0).all()):
            return True
    return False


def _lists(device: str) -> bool:
    """Returns whether the one call that names operations for autocast makes softmax low and a product wide."""
    names = {"aten::softmax.int": torch.bfloat16, "aten::matmul": torch.float32}
    library = torch.library.Library("aten", "FRAGMENT")
    try:
        for name, dtype in names.items():
            torch.library.register_autocast(name, device, dtype, lib=library)
        x = torch.ones(4, 4, device=device)
        with torch.autocast(device, dtype=torch.bfloat16):
            return torch.softmax(x, -1).dtype == torch.bfloat16 and (x @ x).dtype == torch.float32
    finally:
        del library


def _trace(device: str, mode: str = "eager") -> bool:
    layer, gradients = Linear(2, 2).to(device), list[torch.Tensor]()

    def hook(_module: object, _inputs: object, output: torch.Tensor) -> None:
        output.register_hook(gradients.append)

    layer.register_forward_hook(hook)
    forward: Callable[[torch.Tensor], torch.Tensor] = compile_function(layer, mode) if mode in MODES else layer
    forward(torch.ones(2, device=device)).sum().backward()
    return len(gradients) == 1 and bool((gradients[0] == 1.0).all())


def _peak_bytes(device: str) -> bool:
    torch.ones(2, device=device)
    return bool(module(device).max_memory_allocated() > 0)


def scope_of_everything(device: str) -> bool:
    """Returns whether autocast runs every operation in the low format, including the loss, like a model cast to it."""
    x = torch.ones(2, device=device)
    with torch.autocast(device, dtype=torch.bfloat16):
        return torch.nn.functional.mse_loss(x, x).dtype == torch.bfloat16


def _warned_before(call: Probe, device: str) -> bool:
    """Loads the compiler first, whose own modules warn of each other when they are imported."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import_module("torch._inductor.compile_fx")
    return call(device)


_PROBES: dict[Capability, Probe] = {
    Capability.O2_FLOAT16: partial(_masters, torch.float16),
    Capability.O2_BFLOAT16: partial(_masters, torch.bfloat16),
    Capability.TF32: multiplies_in_tf32,
    Capability.AUTOCAST_LISTS: _lists,
    Capability.PEAK_BYTES: _peak_bytes,
    Capability.TRACE: _trace,
}


def attempts(device: str, mode: str) -> Mapping[Capability, Attempt]:
    """Attempts by capability; each one restores the random streams."""
    calls = dict(_PROBES)
    if mode in MODES:
        calls[Capability.TRACE] = partial(_warned_before, partial(_trace, mode=mode))
    return all_guarded(calls, device, partial(random_apart, device))
