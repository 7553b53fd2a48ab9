"""PyTorch: `torch.autocast`, `torch.amp.GradScaler`, `.grad` accumulation and `torch.utils.checkpoint`.

Modes named after libraries train by these; they need not be installed for the other modes.
"""

from frameworks.base import BaseFramework
from frameworks.torch.framework import TorchFramework
from frameworks.torch.libraries import STACKS, framework_of

__all__ = ["TorchFramework", "adapter"]


def adapter(device: str = "auto", mode: str | None = None) -> BaseFramework:
    """The framework of a mode: that of a library on top of PyTorch, which is imported now, or PyTorch's own.

    Raises:
        MissingDevice: the device is not there.
        ValueError: there is no such mode, or its library is not installed or too old.
    """
    return framework_of(mode, device) if mode is not None and mode in STACKS else TorchFramework(device, mode)
