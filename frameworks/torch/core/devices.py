"""Devices of PyTorch: the CPU, and every accelerator through the module that PyTorch has for its type."""

from contextlib import AbstractContextManager
from typing import Any

import torch

from frameworks.base import processor

CPU = "cpu"
_BACKENDS = ("mtia", "hpu", "npu", "mps", "xpu", "cuda")
"""Types of accelerators that have had a module `torch.TYPE` in PyTorch or one of its extensions."""


def available() -> tuple[str, ...]:
    """The CPU and the types of the accelerators that are available here, the one of `torch.accelerator` last."""
    preferred = _accelerator()
    others = (name for name in _BACKENDS if name not in preferred and _is_available(name))
    return (CPU, *others, *preferred)


def _accelerator() -> tuple[str, ...]:
    """The type that `torch.accelerator` names; versions before 2.6 have no such module."""
    if not hasattr(torch, "accelerator") or not torch.accelerator.is_available():
        return ()
    current = torch.accelerator.current_accelerator()
    return () if current is None else (current.type,)


def _is_available(name: str) -> bool:
    check = getattr(getattr(torch, name, None), "is_available", None)
    return check is not None and bool(check())


def module(device: str) -> Any:
    """PyTorch's module of an accelerator, such as `torch.cuda` or `torch.xpu`."""
    return torch.get_device_module(device)


def index(device: str) -> int:
    """Number of the accelerator in use; 0 where there is one alone, as with MPS."""
    current = getattr(module(device), "current_device", None)
    return 0 if current is None else int(current())


def model_name(device: str) -> str:
    """Model of the processor or accelerator; the type of an accelerator whose module does not say."""
    if device == CPU:
        return processor()
    describe = getattr(module(device), "get_device_name", None)
    return device if describe is None else str(describe())


def has_peak(device: str) -> bool:
    """Whether the device's allocator keeps a peak that can be reset."""
    return device != CPU and all(
        hasattr(module(device), name) for name in ("max_memory_allocated", "reset_peak_memory_stats")
    )


def random_apart(device: str) -> AbstractContextManager[None]:
    """A scope after which the generators of the CPU and the device have the states that they had before."""
    return torch.random.fork_rng([] if device == CPU else [index(device)], device_type=device)
