"""Schedules that PyTorch ships: those for the fixtures' curves, and `ReduceLROnPlateau`."""

import io
from collections.abc import Sequence
from functools import partial

import torch
from torch.optim import lr_scheduler

from fixtures.schedules import (
    Chained,
    Cosine,
    CosineRestarts,
    Curve,
    Exponential,
    InverseTime,
    Joined,
    Linear,
    OneCycle,
    Plateau,
    Polynomial,
    Steps,
    Triangular,
)
from frameworks.base import ships, takes
from frameworks.contract import Capability, Unsupported

_LONG = 2**31


def make_schedule(
    optimizer: torch.optim.Optimizer, curve: Curve | Steps, last_epoch: int = -1
) -> lr_scheduler.LRScheduler:
    """The schedule of an optimizer that follows a curve, after update `last_epoch`, from 0.

    Raises:
        Unsupported: SCHEDULE, where PyTorch has no class for it.
    """
    bases = [float(group.get("initial_lr", group["lr"])) for group in optimizer.param_groups]
    end = getattr(curve, "end", 0.0) * bases[0]
    if isinstance(curve, Cosine | CosineRestarts) and end and len({*bases}) > 1:
        raise Unsupported(Capability.SCHEDULE, "a cosine's eta_min is one for all groups", _has_floors)
    match curve:
        case Steps(boundaries=(), factors=(factor,)):
            return lr_scheduler.ConstantLR(optimizer, factor, _LONG, last_epoch)
        case Exponential(ratio=ratio, every=1):
            return lr_scheduler.ExponentialLR(optimizer, ratio, last_epoch)
        case Exponential(ratio=ratio, every=every, staircase=True):
            return lr_scheduler.StepLR(optimizer, every, ratio, last_epoch)
        case Linear(start=start, end=end, steps=steps):
            return lr_scheduler.LinearLR(optimizer, start, end, steps, last_epoch)
        case Polynomial(steps=steps, power=power, end=0.0):
            return lr_scheduler.PolynomialLR(optimizer, steps, power, last_epoch)
        case Cosine(steps=steps):
            return lr_scheduler.CosineAnnealingLR(optimizer, steps, end, last_epoch)
        case CosineRestarts(first=first, multiply=multiply):
            return lr_scheduler.CosineAnnealingWarmRestarts(optimizer, first, multiply, end, last_epoch)
        case Triangular(top=top, up=up, shrink=shrink):
            form, tops = "triangular2" if shrink else "triangular", [top * base for base in bases]
            return lr_scheduler.CyclicLR(
                optimizer, bases, tops, up, mode=form, cycle_momentum=False, last_epoch=last_epoch
            )
        case OneCycle(momenta=momenta):
            return _one_cycle(optimizer, curve, bases, momenta or (), last_epoch)
        case Chained(parts=parts):
            return lr_scheduler.ChainedScheduler(
                [make_schedule(optimizer, part, last_epoch) for part in parts], optimizer
            )
        case Joined(parts=parts, boundaries=boundaries):
            return lr_scheduler.SequentialLR(
                optimizer, [make_schedule(optimizer, part) for part in parts], list(boundaries), last_epoch
            )
        case InverseTime():
            attempt = partial(ships, "torch.optim.lr_scheduler", "inverse")
        case Polynomial():
            attempt = partial(takes, lr_scheduler.PolynomialLR, "end", "end_lr", "eta_min")
        case _:
            attempt = partial(takes, lr_scheduler.ExponentialLR, "every", "step_size", "decay_steps")
    raise Unsupported(Capability.SCHEDULE, f"torch.optim.lr_scheduler has no {curve} but the user's LambdaLR", attempt)


def _one_cycle(
    optimizer: torch.optim.Optimizer, curve: OneCycle, bases: list[float], momenta: tuple[float, ...], last_epoch: int
) -> lr_scheduler.LRScheduler:
    cycled = {"max_momentum": momenta[0], "base_momentum": momenta[1]} if momenta else {}
    return lr_scheduler.OneCycleLR(
        optimizer,
        [curve.top * base for base in bases],
        curve.steps + 1,
        pct_start=(curve.up + 1) / (curve.steps + 1),
        div_factor=curve.top,
        final_div_factor=1.0 / curve.end,
        cycle_momentum=bool(momenta),
        last_epoch=last_epoch,
        **cycled,
    )


def _has_floors() -> bool:
    """Returns whether a cosine schedule has an end rate for each group."""
    weights = [torch.ones(1, requires_grad=True) for _ in range(2)]
    optimizer = torch.optim.SGD(
        [{"params": [weight], "lr": rate} for weight, rate in zip(weights, (1.0, 2.0), strict=True)]
    )
    schedule = lr_scheduler.CosineAnnealingLR(optimizer, 1, [0.5, 1.0])
    optimizer.step()
    schedule.step()
    return [group["lr"] for group in optimizer.param_groups] == [0.5, 1.0]


def plateau_rates(plateau: Plateau, metrics: Sequence[float], saved: int | None = None) -> tuple[float, ...]:
    """The learning rate after each metric; optimizer and schedule are saved and loaded after `saved` metrics."""
    stepper, scheduler = _make_schedule(plateau)
    result: list[float] = []
    for index, metric in enumerate(metrics):
        if index == saved:
            file = io.BytesIO()
            torch.save([stepper.state_dict(), scheduler.state_dict()], file)
            file.seek(0)
            stepper, scheduler = _make_schedule(plateau)
            for part, state in zip((stepper, scheduler), torch.load(file, weights_only=True), strict=True):
                part.load_state_dict(state)
        stepper.step()
        scheduler.step(metric)
        result.append(float(stepper.param_groups[0]["lr"]))
    return tuple(result)


def _make_schedule(plateau: Plateau) -> tuple[torch.optim.Optimizer, lr_scheduler.ReduceLROnPlateau]:
    """An optimizer and its schedule. PyTorch documents patience as the number of bad metrics that are still allowed."""
    stepper = torch.optim.SGD([torch.ones(1, requires_grad=True)], lr=1.0)
    return stepper, lr_scheduler.ReduceLROnPlateau(
        stepper,
        plateau.mode,
        plateau.factor,
        plateau.patience - 1,
        plateau.threshold,
        "rel" if plateau.relative else "abs",
        plateau.cooldown,
        plateau.minimum,
    )
