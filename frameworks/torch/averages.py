"""The average of the weights by `torch.optim.swa_utils`."""

from __future__ import annotations

from torch.nn import Module
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn


def averaged_model(network: Module, decay: float | None) -> AveragedModel | None:
    """A model of the exponential moving average of the network's weights; None without a decay."""
    if decay is None:
        return None
    return AveragedModel(network, multi_avg_fn=get_ema_multi_avg_fn(decay))
