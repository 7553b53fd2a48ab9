"""PyTorch's own calls, run without this adapter's guards: did each take effect?"""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from importlib import import_module
from typing import Any

import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import Linear
from torch.nn.utils import clip_grad_norm_
from torch.optim.lr_scheduler import LambdaLR
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.checkpoint import checkpoint

from fixtures.recipe import SGD, Adam, AdamW, Optimizer
from frameworks.contract import Attempt, Capability
from frameworks.operations import CATALOGUE
from frameworks.torch.arrays import to_tensor
from frameworks.torch.compiling import compiled, kept_buffers
from frameworks.torch.operations import OPERATIONS
from frameworks.torch.segments import SegmentCalls, segment_begins
from frameworks.torch.settings import tf32_products

Probe = Callable[[str], bool]
LOW = (torch.float16, torch.bfloat16)
GRADIENTS = (torch.float16, torch.float32)


def _weight(device: str, value: float = 1.0) -> torch.Tensor:
    return torch.full((2,), value, device=device, requires_grad=True)


def _sgd(*weights: torch.Tensor) -> torch.optim.Optimizer:
    return torch.optim.SGD(weights, lr=0.5)


def _autocast(dtype: torch.dtype, device: str) -> bool:
    x = torch.ones(4, 4, device=device)
    with torch.autocast(device, dtype=dtype):
        return (x @ x).dtype == dtype


def _all_low(dtype: torch.dtype, device: str) -> bool:
    linear = Linear(4, 4).to(device=device, dtype=dtype)
    linear(torch.ones(2, 4, device=device, dtype=dtype)).sum().backward()
    return linear.weight.grad is not None and linear.weight.grad.dtype == dtype


def _masters(dtype: torch.dtype, device: str) -> bool:
    """Whether any optimizer of a model in a low format keeps float32 copies of its weights."""
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


def _float64_heads(device: str) -> bool:
    head = Linear(4, 1, dtype=torch.float64, device=device)
    with torch.autocast(device, dtype=torch.bfloat16):
        return head(torch.ones(2, 4, device=device).double()).dtype == torch.float64


def _scope(device: str) -> bool:
    x = torch.ones(4, 4, device=device)
    seen = [(x @ x).dtype]
    with torch.autocast(device, dtype=torch.bfloat16):
        seen.append((x @ x).dtype)
    seen.append((x @ x).dtype)
    return seen == [torch.float32, torch.bfloat16, torch.float32]


def _lists(device: str) -> bool:
    """Whether softmax can be named low and a product wide, by the one call that names an operation for autocast."""
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


def _operations(device: str) -> bool:
    for dtype in LOW:
        for name, example in CATALOGUE.items():
            tensors = [to_tensor(array, device) for array in example()]
            for cast in (None, dtype):
                given = [t.to(cast) if cast and t.is_floating_point() else t for t in tensors]
                with torch.autocast(device, dtype=dtype):
                    OPERATIONS[name](*given)
    return True


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
    scaler, weight = torch.amp.GradScaler(device, init_scale=1024.0), _weight(device)
    _attempt(scaler, [weight], [float("inf")])
    skipped = bool((weight == 1.0).all()) and scaler.get_scale() == 512.0
    weight.grad = None
    _attempt(scaler, [weight], [1.0])
    return skipped and bool((weight == 0.5).all())


def _static_scaling(device: str) -> bool:
    scaler, scales = torch.amp.GradScaler(device, init_scale=8.0), []
    for value in (1.0, float("inf"), 1.0):
        weight = _weight(device)
        scaler.scale((weight * value).sum()).backward()
        scaler.step(_sgd(weight))
        scaler.update(8.0)
        scales.append((scaler.get_scale(), weight[0].item()))
    return scales == [(8.0, 0.5), (8.0, 1.0), (8.0, 0.5)]


def _scaling_factors(device: str) -> bool:
    scaler = torch.amp.GradScaler(device, 16.0, growth_factor=4.0, backoff_factor=0.125, growth_interval=1)
    seen = []
    for value in (1.0, float("nan")):
        _attempt(scaler, [_weight(device)], [value])
        seen.append(scaler.get_scale())
    return seen == [64.0, 8.0]


def _scaling_disabled(device: str) -> bool:
    scaler, weight = torch.amp.GradScaler(device, enabled=False), _weight(device)
    _attempt(scaler, [weight], [1.0])
    return scaler.get_scale() == 1.0 and bool((weight == 0.5).all())


def _explicit_unscale(device: str) -> bool:
    scaler, weight = torch.amp.GradScaler(device, init_scale=1024.0), _weight(device)
    scaler.scale(weight.sum()).backward()
    scaler.unscale_(_sgd(weight))
    return weight.grad is not None and bool((weight.grad == 1.0).all())


def _second_unscale(device: str) -> bool:
    scaler, weight = torch.amp.GradScaler(device, init_scale=1024.0), _weight(device)
    optimizer = _sgd(weight)
    scaler.scale(weight.sum()).backward()
    scaler.unscale_(optimizer)
    try:
        scaler.unscale_(optimizer)
    except RuntimeError:
        return weight.grad is not None and bool((weight.grad == 1.0).all())
    return False


def _two_optimizers(device: str) -> bool:
    weights = [_weight(device), _weight(device)]
    scaler = torch.amp.GradScaler(device, init_scale=1024.0)
    _attempt(scaler, weights, [1.0, 1.0])
    return all(bool((weight == 0.5).all()) for weight in weights) and scaler.get_scale() == 1024.0


def _two_losses(device: str) -> bool:
    scaler, weight = torch.amp.GradScaler(device, init_scale=1024.0), _weight(device)
    optimizer, shared = _sgd(weight), weight * 1.0
    scaler.scale(shared.sum()).backward(retain_graph=True)
    scaler.scale(shared.sum()).backward()
    scaler.step(optimizer)
    return bool((weight == 0.0).all())


def _two_losses_compiled(device: str) -> bool:
    first, second = Linear(4, 4).to(device), Linear(4, 4).to(device)

    def losses(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        features = torch.tanh(first(x))
        return features.square().sum(), torch.tanh(second(features)).square().sum()

    with kept_buffers():
        one, other = compiled(losses)(torch.ones(2, 4, device=device))
        one.backward(retain_graph=True)
        other.backward()
    return second.weight.grad is not None


def _accumulation(device: str) -> bool:
    weight = _weight(device)
    for _ in range(3):
        weight.sum().backward()
    return weight.grad is not None and bool((weight.grad == 3.0).all())


def _partial_window(device: str) -> bool:
    weight = _weight(device)
    optimizer = _sgd(weight)
    for _ in range(2):  # of, say, four
        (weight / 2).sum().backward()
    optimizer.step()
    return bool((weight == 0.5).all())


def _recompute(device: str, depth: int = 1) -> bool:
    runs: list[int] = []

    def function(x: torch.Tensor) -> torch.Tensor:
        runs.append(1)
        return torch.tanh(x)

    def outer(x: torch.Tensor) -> torch.Tensor:
        inner: torch.Tensor = checkpoint(function, x, use_reentrant=False)
        return inner

    weight = _weight(device)
    value = checkpoint(function if depth == 1 else outer, weight, use_reentrant=False)
    before = len(runs)
    value.sum().backward()
    return before == 1 and len(runs) > 1 and weight.grad is not None


def _recompute_compiled(device: str, depth: int = 1) -> bool:
    calls = SegmentCalls(1)

    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(segment_begins(x, calls.number, 0))

    def inner(x: torch.Tensor) -> torch.Tensor:
        value: torch.Tensor = checkpoint(function, x, use_reentrant=False)
        return value

    def outer(x: torch.Tensor) -> torch.Tensor:
        value: torch.Tensor = checkpoint(function if depth == 1 else inner, x, use_reentrant=False)
        return value

    weight = _weight(device)
    value = compiled(outer)(weight)
    before = calls.counts[0]
    value.sum().backward()
    return before == 1 and calls.counts[0] > 1 and weight.grad is not None


def _clip(device: str) -> bool:
    weight = _weight(device)
    (weight * 8.0).sum().backward()
    clip_grad_norm_([weight], 1.0)
    return weight.grad is not None and float(weight.grad.norm()) < 1.001


def _schedule(device: str) -> bool:
    optimizer = _sgd(_weight(device))
    scheduler = LambdaLR(optimizer, lambda step: 0.5**step)
    optimizer.step()
    scheduler.step()
    return float(optimizer.param_groups[0]["lr"]) == 0.25


def _groups(device: str) -> bool:
    weights = [_weight(device), _weight(device)]
    groups: list[dict[str, Any]] = [{"params": weights[:1]}, {"params": weights[1:], "lr": 0.25}]
    optimizer = torch.optim.SGD(groups, lr=0.5)
    sum(weights[1:], weights[0]).sum().backward()
    optimizer.step()
    return [weight[0].item() for weight in weights] == [0.5, 0.75]


def _missing_gradients(device: str) -> bool:
    weights = [_weight(device), _weight(device)]
    optimizer = torch.optim.AdamW(weights, weight_decay=0.5)
    weights[0].sum().backward()
    optimizer.step()
    return bool((weights[0] != 1.0).all()) and bool((weights[1] == 1.0).all())


def _average(device: str) -> bool:
    network = Linear(1, 1, bias=False, device=device)
    average, seen = AveragedModel(network, multi_avg_fn=get_ema_multi_avg_fn(0.5)), []
    for value in (1.0, 0.0):
        torch.nn.init.constant_(network.weight, value)
        average.update_parameters(network)
        seen += [weight.item() for weight in average.parameters()]
    return seen == [1.0, 0.5]


def _checkpoint(device: str) -> bool:
    file, weight = io.BytesIO(), _weight(device, 3.0)
    torch.save({"weight": weight.detach()}, file)
    file.seek(0)
    return torch.equal(torch.load(file, weights_only=True)["weight"], weight.detach())


def _trace(device: str, *, compile_it: bool = False) -> bool:
    layer, gradients = Linear(2, 2).to(device), list[torch.Tensor]()

    def hook(_module: object, _inputs: object, output: torch.Tensor) -> None:
        output.register_hook(gradients.append)

    layer.register_forward_hook(hook)
    forward: Callable[[torch.Tensor], torch.Tensor] = compiled(layer) if compile_it else layer
    forward(torch.ones(2, device=device)).sum().backward()
    return len(gradients) == 1 and bool((gradients[0] == 1.0).all())


def _saved_bytes(device: str) -> bool:
    packed: list[int] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        packed.append(tensor.nbytes)
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        torch.tanh(_weight(device))
    return packed == [8]


def _peak_bytes(device: str) -> bool:
    _weight(device)
    module = torch.get_device_module(device)
    return bool(module.max_memory_allocated() > 0)


def _tf32(device: str) -> bool:
    factor = torch.full((64, 64), 1.0 + 2.0**-12, device=device)
    with tf32_products(True):
        return bool((factor @ torch.eye(64, device=device) == 1.0).all())


def scope_of_everything(device: str) -> bool:
    """Whether autocast has every operation in the low format, the loss too, as a model in that format has."""
    x = torch.ones(2, device=device)
    with torch.autocast(device, dtype=torch.bfloat16):
        return torch.nn.functional.mse_loss(x, x).dtype == torch.bfloat16


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


def _warned_before(call: Probe, device: str) -> bool:
    """Loads the compiler first, whose own modules warn of each other when they are imported."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import_module("torch._inductor.compile_fx")
    return call(device)


PROBES: dict[Capability, Probe] = {
    Capability.O1_FLOAT16: partial(_autocast, torch.float16),
    Capability.O1_BFLOAT16: partial(_autocast, torch.bfloat16),
    Capability.O2_FLOAT16: partial(_masters, torch.float16),
    Capability.O2_BFLOAT16: partial(_masters, torch.bfloat16),
    Capability.O3_FLOAT16: partial(_all_low, torch.float16),
    Capability.O3_BFLOAT16: partial(_all_low, torch.bfloat16),
    Capability.FLOAT64_HEADS: _float64_heads,
    Capability.TF32: _tf32,
    Capability.AUTOCAST_SCOPE: _scope,
    Capability.AUTOCAST_LISTS: _lists,
    Capability.OPERATIONS: _operations,
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
    Capability.RECOMPUTE: _recompute,
    Capability.RECOMPUTE_NESTED: partial(_recompute, depth=2),
    Capability.RECOMPUTE_CASES: _recompute,
    Capability.SEGMENT_CALLS: _recompute,
    Capability.GROUPS: _groups,
    Capability.CLIP: _clip,
    Capability.SCHEDULE: _schedule,
    Capability.MISSING_GRADIENTS: _missing_gradients,
    Capability.AVERAGE: _average,
    Capability.CHECKPOINT: _checkpoint,
    Capability.SAVED_BYTES: _saved_bytes,
    Capability.PEAK_BYTES: _peak_bytes,
    Capability.TRACE: _trace,
}
COMPILED: dict[Capability, Probe] = {
    Capability.TWO_LOSSES: partial(_warned_before, _two_losses_compiled),
    Capability.RECOMPUTE: partial(_warned_before, _recompute_compiled),
    Capability.RECOMPUTE_NESTED: partial(_warned_before, partial(_recompute_compiled, depth=2)),
    Capability.RECOMPUTE_CASES: partial(_warned_before, _recompute_compiled),
    Capability.SEGMENT_CALLS: partial(_warned_before, _recompute_compiled),
    Capability.TRACE: partial(_warned_before, partial(_trace, compile_it=True)),
}
"""What is tried otherwise where forward passes are compiled."""


def attempts(device: str, mode: str) -> Mapping[Capability, Attempt]:
    """PyTorch's call for each capability; every one leaves the random streams as they were."""
    calls = PROBES | (COMPILED if mode == "compile" else {})
    return {capability: partial(_undisturbed, call, device) for capability, call in calls.items()}


def _undisturbed(call: Probe, device: str) -> bool:
    devices = [torch.cuda.current_device()] if device == "cuda" else []
    with torch.random.fork_rng(devices):
        return call(device)
