"""What draws random numbers or couples the rows of a batch in training, switched off and on again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from frameworks.torch.stacks.heads.passes import Gradients, same_bits

DROPOUT = 0.1


def quiet(model: Any) -> Any:
    """The model without dropout, its batch norms in evaluation mode for good."""
    for module in model.modules():
        for name, value in list(vars(module).items()):
            if "drop" in name and isinstance(value, float):
                setattr(module, name, 0.0)
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.p = 0.0
        if isinstance(module, _BatchNorm):
            module.eval()
            module.train = lambda mode=True, module=module: module  # noqa: ARG005
    return model


def loud(model: Any) -> Any:
    """The model with dropout in all its dropout layers."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = DROPOUT
    return model


def has_batch_norm(model: Any) -> bool:
    """Whether statistics of a micro-batch would decide its outputs."""
    return any(isinstance(module, _BatchNorm) for module in model.modules())


DRAWS = "two equal runs differ: the model draws random numbers in training"
KEEPS = "a second pass from the same random state differs from the first: the model keeps state between passes"


def unsteady(make: Callable[[], Any], gradients: Callable[[Any], Gradients]) -> str:
    """Why passes of a model cannot be compared, "" if they can.

    Args:
        make: gives a new model each time, all of them equal.
        gradients: of one pass.
    """
    model, other = make(), make()
    torch.manual_seed(1)
    one = gradients(model)
    torch.manual_seed(2)
    if same_bits(one, gradients(other)):
        return DRAWS
    torch.manual_seed(1)
    return KEEPS if same_bits(one, gradients(model)) else ""
