"""Attempts with PyTorch's own calls, without this adapter's guards."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module

import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import Linear
from torch.utils.checkpoint import checkpoint

from frameworks.contract import Attempt, Capability
from frameworks.operations import CATALOGUE
from frameworks.torch.core.arrays import to_tensor
from frameworks.torch.core.compiling import MODES, compiled
from frameworks.torch.core.devices import module, random_apart
from frameworks.torch.core.guards import Probe, all_guarded
from frameworks.torch.core.operations import OPERATIONS
from frameworks.torch.core.recompute import SegmentCalls, segment_begins
from frameworks.torch.core.settings import multiplies_in_tf32
from frameworks.torch.training.optimizer_probes import OF_OPTIMIZERS, two_losses_compiled, weight_of

LOW = (torch.float16, torch.bfloat16)


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
    formats = [(x @ x).dtype]
    with torch.autocast(device, dtype=torch.bfloat16):
        formats.append((x @ x).dtype)
    formats.append((x @ x).dtype)
    return formats == [torch.float32, torch.bfloat16, torch.float32]


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


def _recompute(device: str, depth: int = 1) -> bool:
    runs: list[int] = []

    def function(x: torch.Tensor) -> torch.Tensor:
        runs.append(1)
        return torch.tanh(x)

    def outer(x: torch.Tensor) -> torch.Tensor:
        inner: torch.Tensor = checkpoint(function, x, use_reentrant=False)
        return inner

    weight = weight_of(device)
    value = checkpoint(function if depth == 1 else outer, weight, use_reentrant=False)
    before = len(runs)
    value.sum().backward()
    return before == 1 and len(runs) > 1 and weight.grad is not None


def _recompute_compiled(mode: str, device: str, depth: int = 1) -> bool:
    calls = SegmentCalls(1)

    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(segment_begins(x, calls.number, 0))

    def inner(x: torch.Tensor) -> torch.Tensor:
        value: torch.Tensor = checkpoint(function, x, use_reentrant=False)
        return value

    def outer(x: torch.Tensor) -> torch.Tensor:
        value: torch.Tensor = checkpoint(function if depth == 1 else inner, x, use_reentrant=False)
        return value

    weight = weight_of(device)
    value = compiled(outer, mode)(weight)
    before = calls.counts[0]
    value.sum().backward()
    return before == 1 and calls.counts[0] > 1 and weight.grad is not None


def _checkpoint(device: str) -> bool:
    file, weight = io.BytesIO(), weight_of(device, 3.0)
    torch.save({"weight": weight.detach()}, file)
    file.seek(0)
    return torch.equal(torch.load(file, weights_only=True)["weight"], weight.detach())


def _trace(device: str, mode: str = "eager") -> bool:
    layer, gradients = Linear(2, 2).to(device), list[torch.Tensor]()

    def hook(_module: object, _inputs: object, output: torch.Tensor) -> None:
        output.register_hook(gradients.append)

    layer.register_forward_hook(hook)
    forward: Callable[[torch.Tensor], torch.Tensor] = compiled(layer, mode) if mode in MODES else layer
    forward(torch.ones(2, device=device)).sum().backward()
    return len(gradients) == 1 and bool((gradients[0] == 1.0).all())


def _saved_bytes(device: str) -> bool:
    packed: list[int] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        packed.append(tensor.nbytes)
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        torch.tanh(weight_of(device))
    return packed == [8]


def _peak_bytes(device: str) -> bool:
    weight_of(device)
    return bool(module(device).max_memory_allocated() > 0)


def scope_of_everything(device: str) -> bool:
    """Whether autocast has every operation in the low format, the loss too, as a model in that format has."""
    x = torch.ones(2, device=device)
    with torch.autocast(device, dtype=torch.bfloat16):
        return torch.nn.functional.mse_loss(x, x).dtype == torch.bfloat16


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
    Capability.TF32: multiplies_in_tf32,
    Capability.AUTOCAST_SCOPE: _scope,
    Capability.AUTOCAST_LISTS: _lists,
    Capability.OPERATIONS: _operations,
    Capability.RECOMPUTE: _recompute,
    Capability.RECOMPUTE_NESTED: partial(_recompute, depth=2),
    Capability.RECOMPUTE_CASES: _recompute,
    Capability.SEGMENT_CALLS: _recompute,
    Capability.CHECKPOINT: _checkpoint,
    Capability.SAVED_BYTES: _saved_bytes,
    Capability.PEAK_BYTES: _peak_bytes,
    Capability.TRACE: _trace,
    **OF_OPTIMIZERS,
}


def _compiled_probes(mode: str) -> dict[Capability, Probe]:
    """Attempts that differ with compiled forward passes."""
    recomputed = partial(_recompute_compiled, mode)
    result: dict[Capability, Probe] = {
        Capability.TWO_LOSSES: partial(two_losses_compiled, mode),
        Capability.RECOMPUTE: recomputed,
        Capability.RECOMPUTE_NESTED: partial(recomputed, depth=2),
        Capability.RECOMPUTE_CASES: recomputed,
        Capability.SEGMENT_CALLS: recomputed,
        Capability.TRACE: partial(_trace, mode=mode),
    }
    return {capability: partial(_warned_before, call) for capability, call in result.items()}


def attempts(device: str, mode: str) -> Mapping[Capability, Attempt]:
    """Attempts by capability; each one restores the random streams."""
    calls = PROBES | (_compiled_probes(mode) if mode in MODES else {})
    return all_guarded(calls, device, partial(random_apart, device))
