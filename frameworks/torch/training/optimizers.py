"""Optimizers, learning-rate schedulers and averages of the weights for a recipe, and their state by canonical name."""

from collections.abc import Callable, Collection, Mapping
from inspect import signature
from typing import Any

import numpy as np
import torch
from torch.optim.swa_utils import AveragedModel

from fixtures.arrays import Array
from fixtures.recipe import (
    SGD,
    Adafactor,
    Adagrad,
    Adam,
    AdamW,
    Implementation,
    Muon,
    Optimizer,
    Recipe,
    RMSprop,
    written,
)
from frameworks.torch.core import ways
from frameworks.torch.core.arrays import to_array
from frameworks.torch.core.layers import Slot
from frameworks.torch.training import eight_bit_state
from frameworks.torch.training.scaler import Kind, wants_fused


def _halves(items: list[torch.Tensor], count: int) -> list[list[torch.Tensor]]:
    return [part for part in (items[start::count] for start in range(count)) if part]


_KINDS: Mapping[type[Optimizer], type[torch.optim.Optimizer]] = {
    SGD: torch.optim.SGD,
    Adam: torch.optim.Adam,
    AdamW: torch.optim.AdamW,
    Adagrad: torch.optim.Adagrad,
    RMSprop: torch.optim.RMSprop,
    **{kind: getattr(torch.optim, kind.__name__) for kind in (Adafactor, Muon) if hasattr(torch.optim, kind.__name__)},
}
_ARGUMENTS = {
    "learning_rate": "lr",
    "epsilon": "eps",
    "initial": "initial_accumulator_value",
    "rate_decay": "lr_decay",
    "decay": "alpha",
    "centred": "centered",
    "threshold": "d",
    "steps": "ns_steps",
    "coefficients": "ns_coefficients",
}
"""Arguments that PyTorch calls differently from a recipe."""
_ADJUSTMENTS = {"rms": "match_rms_adamw", "width": "original"}
_OF_8_BIT_MOMENTS = ("state_bits", "block", "smallest")
IMPLEMENTATIONS: Mapping[Implementation, Mapping[str, bool]] = {
    "default": {},
    "single": {"foreach": False, "fused": False},
    "foreach": {"foreach": True},
    "fused": {"fused": True},
    "capturable": {"capturable": True},
}
"""Arguments that choose an implementation; what an optimizer does not have need not be switched off."""


def optimizer_kind(
    recipe: Recipe, scaler: Kind = torch.amp.GradScaler
) -> tuple[type[torch.optim.Optimizer], dict[str, Any]]:
    """The recipe's class of optimizers under a kind of scaler, and the arguments that it is made with."""
    optimizer, given = recipe.optimizer, _arguments(recipe)
    if isinstance(optimizer, Adam) and optimizer.state_bits == 8:
        return eight_bit_state.kind(), given | {"min_8bit_size": optimizer.smallest}
    kind = _KINDS[type(optimizer)]
    way = IMPLEMENTATIONS["fused"] if wants_fused(recipe, scaler) else implementation(recipe, kind)
    return kind, given | dict(way)


def _arguments(recipe: Recipe) -> dict[str, Any]:
    """The arguments of an optimizer, by PyTorch's names, without those of 8-bit moments."""
    given = {name: value for name, value in written(recipe.optimizer).items() if value is not None}
    if "beta1" in given:
        given["betas"] = given.pop("beta1"), given.pop("beta2")
    match recipe.optimizer:
        case Adafactor(epsilon1=epsilon1, epsilon2=epsilon2):
            given = {name: value for name, value in given.items() if name not in ("epsilon1", "epsilon2")}
            given |= {"beta2_decay": -given.pop("decay"), "eps": (epsilon1, epsilon2)}
        case Muon(adjustment=adjustment, weight_decay=decay):
            del given["adjustment"]
            given |= {"adjust_lr_fn": _ADJUSTMENTS.get(adjustment, adjustment), "weight_decay": decay}
    if recipe.tensor_rate:
        given["learning_rate"] = torch.tensor(given["learning_rate"])
    return {_ARGUMENTS.get(name, name): value for name, value in given.items() if name not in _OF_8_BIT_MOMENTS}


def implementation(recipe: Recipe, kind: type[torch.optim.Optimizer]) -> dict[str, bool]:
    """Arguments that choose the recipe's implementation."""
    known = signature(kind).parameters
    return {name: on for name, on in IMPLEMENTATIONS[recipe.implementation].items() if on or name in known}


def _by_decay(parameters: list[torch.Tensor], undecayed: Collection[int]) -> list[dict[str, Any]]:
    """Parameter groups with and without weight decay, from the ids of the tensors without it."""
    with_decay = [parameter for parameter in parameters if id(parameter) not in undecayed]
    without = [parameter for parameter in parameters if id(parameter) in undecayed]
    groups: list[dict[str, Any]] = [{"params": with_decay}, {"params": without, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]


def _own_options(recipe: Recipe, place: int) -> dict[str, Any]:
    """Options of a group that differ from the optimizer's."""
    common, own = (_arguments(recipe.replace(optimizer=each)) for each in (recipe.optimizer, recipe.of_groups[place]))
    return {name: value for name, value in own.items() if name not in common or value != common[name]}


class Stepper:
    """One optimizer with its scheduler, which follows the optimizer's applied updates.

    Attributes:
        applied: how often the optimizer's own `step` has applied gradients, by its post hook. A fused one's `step` runs
            on an overflow too, which the scaler passes to it, and skips the update.
        hook_calls: how often its post hook has run.
    """

    def __init__(self, recipe: Recipe, parameters: list[torch.Tensor], undecayed: Collection[int] = ()) -> None:
        parts = _halves(parameters, recipe.groups)
        groups = [
            _own_options(recipe, place) | group
            for place, part in enumerate(parts)
            for group in _by_decay(part, undecayed)
        ]
        self.optimizer = self.made(recipe, groups)
        self.applied = self.hook_calls = 0
        self.optimizer.register_step_post_hook(self._count)
        self._schedule, self._way = recipe.schedule, recipe.way("schedule")
        self.make_schedule()

    def made(self, recipe: Recipe, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
        """The recipe's optimizer of these parameter groups."""
        kind, given = optimizer_kind(recipe)
        return ways.optimizer(recipe.way("optimizer"), kind, groups, given)

    def make_schedule(self, last: int = -1) -> None:
        """Makes the recipe's schedule of the optimizer as it is, at its beginning or after update `last`, from 0."""
        made = self._schedule
        self.scheduler = ways.scheduler(self._way, self.optimizer, made, last) if made else None

    def _count(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        self.hook_calls += 1
        overflow = getattr(optimizer, "found_inf", None)
        self.applied += overflow is None or not bool(overflow)

    @property
    def learning_rate(self) -> float:
        """The learning rate of the next update."""
        return float(self.optimizer.param_groups[0]["lr"])

    def state(self) -> Mapping[torch.Tensor, Mapping[str, Any]]:
        """The optimizer's state of each parameter."""
        return self.optimizer.state

    def steps(self, state: Mapping[torch.Tensor, Mapping[str, Any]]) -> int:
        """Applied updates: the optimizer's own counter where it has one (Adam), else how often its `step` ran."""
        counters = [float(values["step"]) for values in state.values() if "step" in values]
        return int(max(counters)) if counters else self.applied

    def parts(self) -> dict[str, Any]:
        """Its parts with a `state_dict`, by name: the optimizer and, if any, the schedule."""
        result: dict[str, Any] = {"optimizer": self.optimizer}
        return result | ({"schedule": self.scheduler} if self.scheduler else {})


Maker = Callable[[Recipe, list[torch.Tensor], Collection[int]], Stepper]


def steppers(recipe: Recipe, slots: Mapping[str, Slot], make: Maker = Stepper) -> list[Stepper]:
    """The recipe's one or two optimizers over the parameters in model order."""
    parameters = [slot.tensor for slot in slots.values()]
    undecayed = {id(slots[name].tensor) for name in recipe.undecayed}
    return [make(recipe, part, undecayed) for part in _halves(parameters, recipe.optimizers)]


def optimizer_state(every: list[Stepper], slots: Mapping[str, Slot]) -> dict[str, Array]:
    """Each tensor that an optimizer holds as "SLOT/PARAMETER", its own names for the slots, and the counters.

    The counters of a second optimizer are "steps.1" and "schedule.1".
    """
    result: dict[str, Array] = {}
    for index, stepper in enumerate(every):
        suffix = f".{index}" if index else ""
        state = stepper.state()
        for name, slot in slots.items():
            values = eight_bit_state.unwrapped(state.get(slot.tensor, {}))
            if eight_bit_state.encoded(values):
                result |= eight_bit_state.moment_arrays(name, slot, values)
                continue
            for key, value in values.items():
                if isinstance(value, torch.Tensor):
                    result[f"{key}/{name}"] = slot.to_canonical(value)
        result[f"steps{suffix}"] = np.array(stepper.steps(state), np.int64)
        if stepper.scheduler:
            result[f"schedule{suffix}"] = np.array(stepper.scheduler.last_epoch, np.int64)
    return result


def averages_of(slots: Mapping[str, Slot], average: AveragedModel) -> dict[str, Array]:
    """The average of each parameter as "average/PARAMETER", and how many updates it has taken in."""
    result = {f"average/{name}": slot.to_canonical(slot.tensor) for name, slot in slots.items()}
    return result | {"averaged": to_array(average.n_averaged)}
