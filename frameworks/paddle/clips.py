"""Clipping by one norm where a recipe needs several optimizers, each of which clips its own parameters alone."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import paddle

from frameworks.contract import Capability, Unsupported
from frameworks.paddle.arrays import format_name

MIXED = (
    "ClipGradByGlobalNorm takes the norm of one optimizer's gradients, this recipe needs several optimizers, and "
    "clip_grad_norm_ raises ValueError for gradients in float32 and float64"
)


def refuse_mixed_clip(parameters: Iterable[Any]) -> None:
    """Refuses a clip over several optimizers where the gradients have several formats.

    Raises:
        Unsupported: they have.
    """
    if len({format_name(parameter.dtype) for parameter in parameters}) > 1:
        raise Unsupported(Capability.CLIP, MIXED, _mixed)


def _mixed() -> bool:
    single, double = paddle.create_parameter([1], "float32"), paddle.create_parameter([1], "float64")
    (3.0 * single.astype("float64") + 4.0 * double).sum().backward()
    paddle.nn.utils.clip_grad_norm_([single, double], 1.0)
    return abs(single.grad.item() - 0.6) < 1e-3 and abs(double.grad.item() - 0.8) < 1e-3
