"""What a user's training loop gets, and what it keeps: the recipe as plain attributes, and PyTorch's objects on it."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.swa_utils import AveragedModel

from fixtures.model import Model
from fixtures.recipe import DynamicScaling, Recipe, StaticScaling
from frameworks.base import same_parts
from frameworks.torch.core.arrays import DTYPES
from frameworks.torch.core.losses import item_losses
from frameworks.torch.core.network import Network
from frameworks.torch.training.optimizers import Stepper, optimizer_kind
from frameworks.torch.training.scaler import constant_scale, dynamic_arguments

_PLAIN = (bool, int, float, str, type(None))


@dataclass
class LoopRecipe:
    """A recipe for a loop.

    Attributes:
        device: "cpu", "cuda" or the type of another accelerator.
        optimizer: makes the optimizer of some parameters or groups of them, with its learning rate.
        autocast: arguments of `torch.autocast` after the device.
        scaling: arguments of `torch.amp.GradScaler` after the device.
        static_scale: argument of `GradScaler.update` that keeps the scale; None if it moves.
        accumulation: micro-batches in a full window.
        clip: largest norm of the gradients, None for no clipping.
        schedule: factor of the learning rate after so many applied updates, for `LambdaLR`; None for none.
        average: decay of an exponential moving average of the weights, None for none.
        recompute: how many segments of `network.layers` to recompute in the backward pass, 0 for none.
    """

    device: str
    optimizer: Callable[[Iterable[Any]], torch.optim.Optimizer]
    autocast: dict[str, Any]
    scaling: dict[str, Any]
    static_scale: float | None
    accumulation: int
    clip: float | None
    schedule: Callable[[int], float] | None
    average: float | None
    recompute: int


def loop_recipe(recipe: Recipe, device: str) -> LoopRecipe:
    """The recipe for a loop."""
    kind, given = optimizer_kind(recipe)
    low = None if recipe.precision.level == "O0" else DTYPES[recipe.precision.format]
    return LoopRecipe(
        device=device,
        optimizer=lambda parameters: kind(parameters, **given),
        autocast={"enabled": False} if low is None else {"dtype": low},
        scaling=_scaling(recipe),
        static_scale=constant_scale(recipe),
        accumulation=recipe.accumulation,
        clip=recipe.clip,
        schedule=None if recipe.schedule is None else recipe.schedule.factor,
        average=recipe.average,
        recompute=0 if recipe.recompute is None else recipe.recompute.segments,
    )


def _scaling(recipe: Recipe) -> dict[str, Any]:
    match recipe.scaling:
        case None:
            return {"enabled": False}
        case StaticScaling(scale=scale):
            return {"init_scale": float(scale)}
        case DynamicScaling() as scaling:
            return dynamic_arguments(scaling)


class LoopNetwork(Network):
    """The network of a loop: with targets it gives the loss of each item, without targets its outputs by head.

    Attributes:
        losses: the losses of each call with targets since they were last taken.
        fed: a loss to give instead, whatever the inputs are.
    """

    def __init__(self, model: Model) -> None:
        super().__init__(model)
        self.kinds = model.losses
        self.losses: list[torch.Tensor] = []
        self.fed: torch.Tensor | None = None

    def forward(self, inputs: torch.Tensor, targets: Mapping[str, torch.Tensor] | None = None) -> Any:
        if self.fed is not None:
            self.losses.append(self.fed.detach())
            return self.fed
        outputs = super().forward(inputs)
        if targets is None:
            return outputs
        losses = item_losses(self.kinds, outputs, targets)
        self.losses.append(losses.detach())
        return losses

    def taken(self) -> float:
        """The sum of the losses of the one micro-batch since the last call.

        Raises:
            ValueError: there was none.
        """
        losses, self.losses = self.losses, []
        if not losses:
            raise ValueError("micro_batch got no losses, want a call of network(inputs, targets)")
        return float(losses[0].sum())


class LoopStepper(Stepper):
    """An optimizer that a loop has made, with its scheduler."""

    def __init__(self, optimizer: torch.optim.Optimizer, scheduler: LRScheduler | None) -> None:
        self.optimizer = optimizer
        self.applied = self.hook_calls = 0
        self.optimizer.register_step_post_hook(self._count)
        self.scheduler = scheduler


class LoopObjects:
    """PyTorch's objects among the attributes of a loop, also within lists, tuples and dictionaries.

    Raises:
        ValueError: there is no optimizer.
    """

    def __init__(self, loop: object) -> None:
        every = list(_every(vars(loop).values()))
        schedulers = {id(each.optimizer): each for each in every if isinstance(each, LRScheduler)}
        optimizers = [each for each in every if isinstance(each, torch.optim.Optimizer)]
        if not optimizers:
            raise ValueError("setup left no torch.optim.Optimizer on self, want one: self.optimizer = recipe.optimizer")
        self.steppers: list[Stepper] = [LoopStepper(each, schedulers.get(id(each))) for each in optimizers]
        self.scaler = next((each for each in every if isinstance(each, torch.amp.GradScaler)), None)
        self.average = next((each for each in every if isinstance(each, AveragedModel)), None)


def _every(values: Iterable[Any]) -> Iterator[Any]:
    seen: set[int] = set()
    for value in values:
        inner = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else (value,)
        for each in inner:
            if id(each) not in seen:
                seen.add(id(each))
                yield each


class PlainAttributes:
    """The numbers and texts among the attributes of a loop, as a part of a checkpoint."""

    def __init__(self, loop: object) -> None:
        self._loop = loop

    def state_dict(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self._loop).items() if isinstance(value, _PLAIN)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        vars(self._loop).update(state)


class OwnState:
    """A loop's own `state` and `load`, as a part of a checkpoint."""

    def __init__(self, loop: Any) -> None:
        self._loop = loop

    def state_dict(self) -> dict[str, Any]:
        return dict(self._loop.state())

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Loads a state with the parts that the loop has now; empty ones, such as a disabled scaler's, do not count.

        Raises:
            ValueError: a part is on one side only.
        """
        same_parts(Path("state"), _filled(state), _filled(self.state_dict()))
        self._loop.load(state)


def _filled(state: Mapping[str, Any]) -> list[str]:
    return [name for name, part in state.items() if not (isinstance(part, Mapping) and not part)]
