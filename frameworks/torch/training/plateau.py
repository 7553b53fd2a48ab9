"""PyTorch's schedule that follows a metric."""

from __future__ import annotations

import io
from collections.abc import Sequence

import torch
from torch.optim.lr_scheduler import ReduceLROnPlateau

from fixtures.plateau import Plateau


def rates(plateau: Plateau, metrics: Sequence[float], saved: int | None = None) -> tuple[float, ...]:
    """The learning rate after each metric; both parts are saved and loaded after `saved` of them."""
    stepper, scheduler = _made(plateau)
    result: list[float] = []
    for place, metric in enumerate(metrics):
        if place == saved:
            file = io.BytesIO()
            torch.save([stepper.state_dict(), scheduler.state_dict()], file)
            file.seek(0)
            stepper, scheduler = _made(plateau)
            for part, state in zip((stepper, scheduler), torch.load(file, weights_only=True), strict=True):
                part.load_state_dict(state)
        stepper.step()
        scheduler.step(metric)
        result.append(float(stepper.param_groups[0]["lr"]))
    return tuple(result)


def _made(plateau: Plateau) -> tuple[torch.optim.Optimizer, ReduceLROnPlateau]:
    """An optimizer and its schedule, whose patience is documented as the metrics that are still allowed."""
    stepper = torch.optim.SGD([torch.ones(1, requires_grad=True)], lr=1.0)
    return stepper, ReduceLROnPlateau(
        stepper,
        plateau.mode,
        plateau.factor,
        plateau.patience - 1,
        plateau.threshold,
        "rel" if plateau.relative else "abs",
        plateau.cooldown,
        plateau.minimum,
    )
