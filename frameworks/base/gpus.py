"""Names of GPUs, which frameworks call "gpu" and records by the platform that runs them."""

from __future__ import annotations

from collections.abc import Sequence

GPU = "gpu"


def gpu_name(*, cuda: bool, rocm: bool) -> str:
    """Name of the GPU of a build for CUDA, for ROCm, or for another platform."""
    return "cuda" if cuda else "rocm" if rocm else GPU


def named_device(asked: str, available: Sequence[str]) -> str:
    """The available device that a user means by "auto" (the last one), by "gpu", or by its own name."""
    if asked == "auto":
        return available[-1]
    if asked == GPU:
        return next((name for name in available if name in ("cuda", "rocm")), GPU)
    return asked
