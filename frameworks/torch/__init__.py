"""PyTorch: `torch.autocast`, `torch.amp.GradScaler`, `.grad` accumulation and `torch.utils.checkpoint`."""

from frameworks.torch.framework import TorchFramework

__all__ = ["TorchFramework"]
