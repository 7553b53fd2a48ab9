"""What draws random numbers or couples the rows of a batch in training, switched off and on again."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

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


def draws(run: Any) -> bool:
    """Whether two passes from different random states differ. `run` makes one pass and returns its gradients."""
    results = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        results.append(run())
    one, other = results
    return any(not torch.equal(one[name], other[name]) for name in one)
