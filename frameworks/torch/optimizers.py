"""Optimizers and learning-rate schedulers for a recipe, and their state by canonical name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch.optim.lr_scheduler import LambdaLR

from fixtures.arrays import Array
from fixtures.recipe import SGD, Adam, AdamW, Recipe, Steps
from frameworks.torch.modules import Slot


def _halves(items: list[torch.Tensor], count: int) -> list[list[torch.Tensor]]:
    return [part for part in (items[start::count] for start in range(count)) if part]


def _optimizer(recipe: Recipe, parameters: list[torch.Tensor]) -> torch.optim.Optimizer:
    groups: list[dict[str, Any]] = [{"params": part} for part in _halves(parameters, recipe.groups)]
    match recipe.optimizer:
        case SGD(learning_rate=rate, momentum=momentum):
            return torch.optim.SGD(groups, lr=rate, momentum=momentum)
        case Adam() as adam:
            return torch.optim.Adam(groups, lr=adam.learning_rate, betas=(adam.beta1, adam.beta2), eps=adam.epsilon)
        case AdamW() as adamw:
            betas = (adamw.beta1, adamw.beta2)
            decay = adamw.weight_decay
            return torch.optim.AdamW(groups, lr=adamw.learning_rate, betas=betas, eps=adamw.epsilon, weight_decay=decay)


def _scheduler(optimizer: torch.optim.Optimizer, schedule: Steps) -> LambdaLR:
    return LambdaLR(optimizer, lambda applied: schedule.factor(applied))


class Stepper:
    """One optimizer with its scheduler, which follows the optimizer's applied updates.

    Attributes:
        applied: how often the optimizer's own `step` has run to its end, by its post hook.
    """

    def __init__(self, recipe: Recipe, parameters: list[torch.Tensor]) -> None:
        self.optimizer = _optimizer(recipe, parameters)
        self.applied = 0
        self.optimizer.register_step_post_hook(self._count)
        self.scheduler = _scheduler(self.optimizer, recipe.schedule) if recipe.schedule else None

    def _count(self, *_: object) -> None:
        self.applied += 1

    @property
    def learning_rate(self) -> float:
        """The rate of the next update."""
        return float(self.optimizer.param_groups[0]["lr"])

    def steps(self) -> int:
        """Applied updates: the optimizer's own counter where it has one (Adam), else how often its `step` ran."""
        counters = [float(held["step"]) for held in self.optimizer.state.values() if "step" in held]
        return int(max(counters)) if counters else self.applied

    def state_dict(self) -> dict[str, Any]:
        """The optimizer's and the scheduler's own state."""
        scheduler = self.scheduler.state_dict() if self.scheduler else {}
        return {"optimizer": self.optimizer.state_dict(), "scheduler": scheduler, "applied": self.applied}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes back to what `state_dict` returned.

        Raises:
            ValueError: one of the two has a scheduler and the other has none.
        """
        if bool(state["scheduler"]) != bool(self.scheduler):
            raise ValueError("one of the two runs has a learning-rate schedule and the other has none")
        self.optimizer.load_state_dict(state["optimizer"])
        if self.scheduler:
            self.scheduler.load_state_dict(state["scheduler"])
        self.applied = int(state["applied"])


def steppers(recipe: Recipe, slots: Mapping[str, Slot]) -> list[Stepper]:
    """The recipe's one or two optimizers over the parameters in model order."""
    parameters = [slot.tensor for slot in slots.values()]
    return [Stepper(recipe, part) for part in _halves(parameters, recipe.optimizers)]


def optimizer_state(every: list[Stepper], slots: Mapping[str, Slot]) -> dict[str, Array]:
    """Each tensor that an optimizer holds as "SLOT/PARAMETER", PyTorch's names for the slots, and the counters.

    The counters of a second optimizer are "steps.1" and "schedule.1".
    """
    found: dict[str, Array] = {}
    for index, stepper in enumerate(every):
        suffix = f".{index}" if index else ""
        for name, slot in slots.items():
            for key, value in stepper.optimizer.state.get(slot.tensor, {}).items():
                if isinstance(value, torch.Tensor):
                    found[f"{key}/{name}"] = slot.to_canonical(value)
        found[f"steps{suffix}"] = np.array(stepper.steps(), np.int64)
        if stepper.scheduler:
            found[f"schedule{suffix}"] = np.array(stepper.scheduler.last_epoch, np.int64)
    return found
