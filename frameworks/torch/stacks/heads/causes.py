"""Where a transformers head computes its loss, and whether the number of items of the window gets there."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

_LOSSES = (
    "cross_entropy", "nll_loss", "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "ctc_loss",
    "binary_cross_entropy", "binary_cross_entropy_with_logits", "kl_div",
)  # fmt: skip
COUNT = "num_items_in_batch"


@dataclass(frozen=True)
class _Frame:
    """One call inside transformers: its file below the package, its function, and whether it has the count."""

    file: str
    function: str
    counted: bool


class _Watching(TorchFunctionMode):
    """Notes the calls that lead to the first loss of PyTorch."""

    def __init__(self) -> None:
        super().__init__()
        self.loss, self.frames = "", list[_Frame]()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if not self.loss and name in _LOSSES:
            self.loss, self.frames = name, _inside_transformers(sys._getframe(1))
        return func(*args, **(kwargs or {}))


def _inside_transformers(frame: FrameType | None) -> list[_Frame]:
    result = []
    while frame is not None:
        _, mark, below = frame.f_code.co_filename.partition("/transformers/")
        if mark and not below.startswith(("utils/", "trainer")):
            variables = {**frame.f_locals.get("kwargs", {}), **frame.f_locals}
            result.append(_Frame(below, frame.f_code.co_qualname, variables.get(COUNT) is not None))
        frame = frame.f_back
    return result


def cause(forward: Callable[[], Any], passed: bool) -> str:
    """Why the loss of `forward` does not depend on the count that it was called with, in words that all heads with the
    same code share.

    Args:
        passed: whether Trainer passes the count to this class.
    """
    with _Watching() as watching, torch.no_grad():
        forward()
    if not passed:
        return "Trainer averages the means of micro-batches: the class does not accept the count"
    if not watching.frames:
        return "the model's own file computes the loss without a loss function of PyTorch, and ignores the count"
    shared = [frame for frame in watching.frames if not frame.file.startswith("models/")]
    if not shared:
        return f"forward in the model's own file calls {watching.loss} itself, and ignores the count"
    losses = [frame for frame in shared if frame.file.startswith("loss/")]
    callers = [frame for frame in watching.frames if not frame.file.startswith("loss/")]
    place = f"{losses[-1].file}:{losses[-1].function}" if losses else watching.loss
    if losses and losses[-1].counted:
        return f"{place} gets the count and ignores it"
    if callers and not callers[0].file.startswith("models/"):
        return f"{callers[0].file}:{callers[0].function} calls {place} without the count"
    return f"forward in the model's own file calls {place} without the count"
