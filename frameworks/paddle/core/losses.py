"""Micro-batches on the device, and the losses of their items."""

from dataclasses import dataclass
from functools import reduce
from operator import add as add_two
from typing import Any

import numpy as np
import paddle

from fixtures.model import Batch, Model


@dataclass(frozen=True)
class BatchTensors:
    """A micro-batch on the device; `targets` by name of the heads that take part, in model order."""

    inputs: Any
    targets: dict[str, Any]
    mask: Any | None


def batch_tensors(model: Model, batch: Batch) -> BatchTensors:
    """The batch as tensors; values for squared error in the format of their head."""
    kinds = dict(model.losses)
    targets = {}
    for head in model.heads.heads:
        if head.name in batch.targets:
            target = np.asarray(batch.targets[head.name])
            if kinds[head.name] == "squared_error":
                target = target.astype(np.float64 if head.format == "float64" else np.float32)
            targets[head.name] = paddle.to_tensor(target)
    mask = None if batch.mask is None else paddle.to_tensor(batch.mask)
    return BatchTensors(paddle.to_tensor(batch.inputs), targets, mask)


def add(values: list[Any]) -> Any:
    """Sum of scalars, in the widest of their formats."""
    return reduce(add_two, values)


def item_losses(kind: str, output: Any, target: Any) -> Any:
    """Losses of single items: cross-entropy with integer labels, or squared error averaged over the units."""
    if kind == "cross_entropy":
        return paddle.nn.functional.cross_entropy(output, target, reduction="none")
    return paddle.nn.functional.mse_loss(output, target, reduction="none").mean(-1)
