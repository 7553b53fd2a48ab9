"""Schedules that PyTorch ships, for the fixtures' curves."""

from __future__ import annotations

from functools import partial

import torch
from torch.optim import lr_scheduler

from fixtures.schedules import (
    Cosine,
    CosineRestarts,
    Curve,
    Exponential,
    InverseTime,
    Joined,
    Linear,
    Polynomial,
    Steps,
    Triangular,
)
from frameworks.base import ships, takes
from frameworks.contract import Capability, Unsupported

_LONG = 2**31


def shipped(made: torch.optim.Optimizer, curve: Curve | Steps, last: int = -1) -> lr_scheduler.LRScheduler:
    """The schedule of an optimizer that follows a curve, after update `last`, from 0.

    Raises:
        Unsupported: SCHEDULE, where PyTorch has no class for it.
    """
    base = float(made.param_groups[0].get("initial_lr", made.param_groups[0]["lr"]))
    match curve:
        case Steps(boundaries=(), factors=(factor,)):
            return lr_scheduler.ConstantLR(made, factor, _LONG, last)
        case Exponential(ratio=ratio, every=1):
            return lr_scheduler.ExponentialLR(made, ratio, last)
        case Exponential(ratio=ratio, every=every, staircase=True):
            return lr_scheduler.StepLR(made, every, ratio, last)
        case Linear(start=start, end=end, steps=steps):
            return lr_scheduler.LinearLR(made, start, end, steps, last)
        case Polynomial(steps=steps, power=power, end=0.0):
            return lr_scheduler.PolynomialLR(made, steps, power, last)
        case Cosine(steps=steps, end=end):
            return lr_scheduler.CosineAnnealingLR(made, steps, end * base, last)
        case CosineRestarts(first=first, multiply=multiply, end=end):
            return lr_scheduler.CosineAnnealingWarmRestarts(made, first, multiply, end * base, last)
        case Triangular(top=top, up=up, shrink=shrink):
            form = "triangular2" if shrink else "triangular"
            return lr_scheduler.CyclicLR(made, base, top * base, up, mode=form, cycle_momentum=False, last_epoch=last)
        case Joined(parts=parts, boundaries=boundaries):
            return lr_scheduler.SequentialLR(made, [shipped(made, part) for part in parts], list(boundaries), last)
        case InverseTime():
            attempt = partial(ships, "torch.optim.lr_scheduler", "inverse")
        case Polynomial():
            attempt = partial(takes, lr_scheduler.PolynomialLR, "end", "end_lr", "eta_min")
        case _:
            attempt = partial(takes, lr_scheduler.ExponentialLR, "every", "step_size", "decay_steps")
    raise Unsupported(Capability.SCHEDULE, f"torch.optim.lr_scheduler has no {curve} but the user's LambdaLR", attempt)
