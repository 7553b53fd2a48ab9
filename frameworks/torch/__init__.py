"""PyTorch: `torch.autocast`, `torch.amp.GradScaler`, `.grad` accumulation and `torch.utils.checkpoint`.

A mode with the name of a library trains by that library. Other modes do not need the library.
"""

from importlib import import_module

from frameworks.base import BaseFramework
from frameworks.torch.framework import STACKS, TorchFramework

__all__ = ["TorchFramework", "adapter"]


def adapter(device: str = "auto", mode: str | None = None) -> BaseFramework:
    """The framework of a mode: PyTorch's own, or that of a library on top of PyTorch, which this call imports.

    Raises:
        MissingDevice: the device is not there.
        ValueError: there is no such mode, or its library is not installed or too old.
    """
    if mode is None or mode not in STACKS:
        return TorchFramework(device, mode)
    if problem := STACKS[mode].problem(mode):
        raise ValueError(problem)
    module, _, name = STACKS[mode].path.partition(":")
    return getattr(import_module(module), name)(device, mode)
