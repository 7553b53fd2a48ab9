"""PyTorch's calls for `conformance doctor`; imports PyTorch alone."""

from __future__ import annotations

import numpy as np
import torch

from fixtures.arrays import Array


def version() -> str:
    """PyTorch's version, with the label of its build."""
    return str(torch.__version__)


def gpus() -> int:
    """Number of NVIDIA GPUs."""
    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def product(device: str, left: Array, right: Array) -> Array:
    """Matrix product on a device."""
    result: Array = (torch.tensor(left, device=device) @ torch.tensor(right, device=device)).cpu().numpy()
    return np.asarray(result)


def timed(device: str, left: Array, right: Array) -> float:
    """Seconds of a product between two events."""
    a, b = torch.tensor(left, device=device), torch.tensor(right, device=device)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    torch.mm(a, b)
    end.record()
    torch.cuda.synchronize()
    return float(begin.elapsed_time(end)) / 1e3
