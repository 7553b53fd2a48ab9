"""A user's own training loop as a framework of the suite: `--framework=my_training:Loop`.

Any class with the three methods of `TrainingLoop` is one; it need not import this module. Optional methods are
`predict(inputs)`, `state()` and `load(state)`. The suite reads everything else from the objects that are attributes of
the loop: optimizers, schedulers, an `AveragedModel` and a `GradScaler`.
"""

import warnings
from collections.abc import Callable, Collection, Mapping
from functools import cached_property, partial
from typing import Any, Protocol

import torch

from fixtures.arrays import Array
from fixtures.data import exact_batch
from fixtures.model import Model
from fixtures.models import exact_linear
from fixtures.recipe import Recipe
from fixtures.schedules import OneCycle
from frameworks.contract import Attempt, Capability, OpResult, Unsupported
from frameworks.registry import UnknownFramework
from frameworks.torch.framework import TorchProcess
from frameworks.torch.own_loop.attempts import ATTEMPTS, LoopAttempt, Make, moves_momentum
from frameworks.torch.own_loop.parts import LoopRecipe
from frameworks.torch.own_loop.trainer import LoopTrainer


class TrainingLoop(Protocol):
    """A training loop in PyTorch. Its class is called without arguments."""

    def setup(self, network: torch.nn.Module, recipe: LoopRecipe) -> None:
        """Makes optimizer, scaler and scheduler of the network's parameters, as attributes of self.

        `network(inputs, targets)` gives the loss of each item, (items,), as `reduction="none"` does: of each sample, or
        of each token that counts. `network(inputs)` gives the outputs by head.
        """

    def micro_batch(self, inputs: torch.Tensor, targets: Mapping[str, torch.Tensor], items: int) -> None:
        """Forward and backward pass of a micro-batch of a window of so many items in all."""

    def step(self) -> float | torch.Tensor | None:
        """Ends the window, with an update or without; returns the norm of the unscaled gradients if it clips."""


class LoopFramework(TorchProcess):
    """PyTorch as a user's loop trains with it. Each loop has its own subclass, of the name of the loop's class."""

    modes = ("loop",)
    has_workarounds = False
    make: Callable[[], Any]

    def __init__(self, device: str = "auto", mode: str | None = None) -> None:
        super().__init__(device, mode)
        self._try_out()

    def _try_out(self) -> None:
        """One window.

        Raises:
            UnknownFramework: a method of the loop raises an exception.
        """
        try:
            run = self._run(exact_linear(), Recipe())
            run.update((exact_batch(4),))
        except Exception as error:
            kind = f"{type(self).__module__}:{type(self).__qualname__}"
            raise UnknownFramework(
                f"loop {kind} cannot train: {type(error).__name__}: {error}; see docs/own-loop.md"
            ) from error

    def supported(self) -> Collection[Capability]:
        return (Capability.FLOAT64_HEADS,)

    def attempts(self) -> Mapping[Capability, Attempt]:
        return {each: partial(_without_warnings, attempt, self._run) for each, (_, attempt) in ATTEMPTS.items()}

    def refusals(self) -> Mapping[Capability, str]:
        return self._ignored

    @cached_property
    def _ignored(self) -> dict[Capability, str]:
        """What the loop ignores, found out once; where an attempt raises, the tests show it."""
        ignored = {}
        for capability, (what, attempt) in ATTEMPTS.items():
            try:
                acts = _without_warnings(attempt, self._run)
            except Exception:
                continue
            if not acts:
                ignored[capability] = f"the loop ignores {what}" if what else _RESCALED
        return ignored

    def require_recipe(self, recipe: Recipe) -> None:
        super().require_recipe(recipe)
        if isinstance(recipe.schedule, OneCycle) and recipe.schedule.momenta is not None:
            attempt = partial(_without_warnings, moves_momentum, self._run)
            raise Unsupported(Capability.SCHEDULE, "recipe.schedule has the rate's factor, and no momentum", attempt)

    def trainer(self, model: Model, recipe: Recipe, weights: Mapping[str, Array] | None = None) -> LoopTrainer:
        self.require_recipe(recipe)
        return self.bound(self._run(model, recipe, weights))

    def _run(self, model: Model, recipe: Recipe, weights: Mapping[str, Array] | None = None) -> LoopTrainer:
        return LoopTrainer(type(self).make, model, recipe, weights, self.device)

    def run_op(self, op: str, *arrays: Array) -> OpResult:
        raise self.refusal(Capability.OPERATIONS)


_RESCALED = "step changes gradients, so that those inside a pass are not those of the update"


def _without_warnings(attempt: LoopAttempt, run: Make) -> bool:
    """The result of an attempt; what the loop warns of is its own affair."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return attempt(run)


def framework_of(kind: type) -> type[LoopFramework]:
    """The framework of a loop's class, under the name of that class."""
    names = {"make": staticmethod(kind), "__module__": kind.__module__, "__qualname__": kind.__qualname__}
    return type(kind.__name__, (LoopFramework,), names)
