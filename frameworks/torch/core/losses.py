"""A micro-batch on the device, and the loss of a model's outputs on it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch.nn import functional

from fixtures.arrays import Array
from fixtures.model import Batch, LossKind, Model
from frameworks.torch.core.arrays import DTYPES

IGNORED = -100
"""The label that `cross_entropy` ignores by default."""


@dataclass(frozen=True, eq=False)
class DeviceBatch:
    """A micro-batch as tensors: labels outside the mask are `IGNORED`, other targets have their head's format."""

    inputs: torch.Tensor
    targets: Mapping[str, torch.Tensor]
    items: int

    def tensors(self) -> Iterator[torch.Tensor]:
        """Every tensor of the micro-batch."""
        yield self.inputs
        yield from self.targets.values()


def load_batch(model: Model, batch: Batch, device: str, dtype: torch.dtype | None = None) -> DeviceBatch:
    """The micro-batch on `device`, its floating inputs rounded to `dtype` if one is given."""
    kinds = dict(model.losses)
    inputs = _read(batch.inputs, device, None if model.integer_inputs else dtype)
    targets: dict[str, torch.Tensor] = {}
    for name, array in batch.targets.items():
        if kinds[name] == "cross_entropy":
            labels = array if batch.mask is None else np.where(batch.mask == 0, IGNORED, array)
            targets[name] = _read(labels, device, torch.int64)
        else:
            wanted = DTYPES[model.parameter_format(f"{len(model.layers) - 1}.{name}.")]
            targets[name] = _read(array, device, wanted)
    return DeviceBatch(inputs, targets, batch.items)


def _read(array: Array, device: str, dtype: torch.dtype | None) -> torch.Tensor:
    """The array as a tensor, which shares its memory where it can: nothing writes to a micro-batch."""
    if not (array.flags.c_contiguous and array.flags.writeable):
        array = np.require(array, requirements=("C", "W"))
    return torch.from_numpy(array).to(device=device, dtype=dtype)


def item_loss_sums(
    kinds: tuple[tuple[str, LossKind], ...], outputs: Mapping[str, torch.Tensor], targets: Mapping[str, torch.Tensor]
) -> list[torch.Tensor]:
    """For each head that has a target, in model order: the sum of the losses of the micro-batch's items."""
    return [_item_loss_sum(kind, outputs[name], targets[name]) for name, kind in kinds if name in targets]


def _item_loss_sum(kind: LossKind, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    if kind == "cross_entropy":
        return functional.cross_entropy(output.flatten(0, -2), target.flatten(), ignore_index=IGNORED, reduction="sum")
    return functional.mse_loss(output, target, reduction="sum") / output.shape[-1]


def item_losses(
    kinds: tuple[tuple[str, LossKind], ...], outputs: Mapping[str, torch.Tensor], targets: Mapping[str, torch.Tensor]
) -> torch.Tensor:
    """The loss of each item of a micro-batch, (items,), added up over the heads that have a target."""
    every = [_item_losses(kind, outputs[name], targets[name]) for name, kind in kinds if name in targets]
    return sum(every[1:], every[0])


def _item_losses(kind: LossKind, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    if kind == "cross_entropy":
        labels = target.flatten()
        losses = functional.cross_entropy(output.flatten(0, -2), labels, ignore_index=IGNORED, reduction="none")
        return losses[labels != IGNORED]
    return functional.mse_loss(output, target, reduction="none").mean(-1)
