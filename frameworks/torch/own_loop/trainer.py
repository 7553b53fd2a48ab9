"""A run of a user's training loop: everything but forward, backward and update is read from the objects on the loop."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from typing import Any

import numpy as np
import torch
from torch.optim.swa_utils import AveragedModel

from fixtures.arrays import Array
from fixtures.model import Batch, Model, Window
from fixtures.recipe import Recipe
from frameworks.contract import Capability, Gradients, Update
from frameworks.torch.core.arrays import to_array, to_tensor
from frameworks.torch.core.network import Network
from frameworks.torch.own_loop.parts import LoopNetwork, LoopObjects, OwnState, PlainAttributes, loop_recipe
from frameworks.torch.training.optimizers import Stepper
from frameworks.torch.training.scaler import divided
from frameworks.torch.training.trainer import TorchTrainer


class LoopTrainer(TorchTrainer):
    """A run of one of a user's loops, made by `make` and set up."""

    network: LoopNetwork

    def __init__(
        self, make: Callable[[], Any], model: Model, recipe: Recipe, weights: Mapping[str, Array] | None, device: str
    ) -> None:
        self.loop = make()
        self.asked = loop_recipe(recipe, device)
        super().__init__(model, recipe, weights, device, "loop")

    def _network(self) -> Network:
        return LoopNetwork(self.model)

    def prepare(self) -> None:
        with self.stream.drawn():
            self.loop.setup(self.network, self.asked)
        self.objects = LoopObjects(self.loop)

    def _averaged(self) -> AveragedModel | None:
        return self.objects.average

    def _steppers(self) -> list[Stepper]:
        return self.objects.steppers

    def _made_scaler(self) -> torch.amp.GradScaler | None:
        return self.objects.scaler

    # one window

    def _pass(self, batch: Batch, items: int, scaler: torch.amp.GradScaler | None) -> float:
        loaded = self._load(batch)
        self.network.losses.clear()
        with self.stream.drawn():
            self.loop.micro_batch(loaded.inputs, loaded.targets, items)
        return self.network.taken()

    def _own_step(self) -> float | None:
        with self.stream.drawn():
            norm = self.loop.step()
        return None if norm is None else float(norm)

    def _finish(self, unscale_calls: int | None, inject: Gradients | None) -> Update:
        before, rate = self._scale(), self.steppers[0].learning_rate
        applied = [stepper.applied for stepper in self.steppers]
        norm = self._own_step()
        skipped = applied == [stepper.applied for stepper in self.steppers]
        return self._report(before, rate, norm, skipped=skipped)

    def _require_manual(self, unscales: bool) -> None:
        raise self.refusal(Capability.EXPLICIT_UNSCALE)

    def _feed(self, gradients: Mapping[str, Array], micro_batches: int) -> None:
        self.network.fed = self._fed(gradients).reshape(1)
        try:
            with self.stream.drawn():
                inputs = torch.zeros(1, *self.model.sample, device=self.device)
                self.loop.micro_batch(inputs, {}, micro_batches)
        finally:
            self.network.fed = None
            self.network.losses.clear()

    def _gradients(self, window: Window, items: int) -> dict[str, Array]:
        """The gradients that the optimizers get in `step`, or before it where the recipe clips or they get none."""
        taken: dict[str, Array] = {}
        with self._undone(), ExitStack() as hooks:
            for slot in self.slots.values():
                slot.tensor.grad = None
            self._passes(window, items, None)
            scale = self._scale()
            gradients = {name: divided(value, scale) for name, value in self.accumulator().items()}
            for each in self.steppers:
                hook = each.optimizer.register_step_pre_hook(lambda *_: taken.update(self.accumulator()))
                hooks.callback(hook.remove)
            self._own_step()
        return gradients if self.recipe.clip is not None or not taken else taken

    @contextmanager
    def _undone(self) -> Iterator[None]:
        """Restores everything but buffers and random streams at its end."""
        parts = {name: part for name, part in self._loop_parts().items() if part is not self.network}
        states = deepcopy({name: part.state_dict() for name, part in parts.items()})
        values = {name: slot.tensor.detach().clone() for name, slot in self.slots.items()}
        former = {name: slot.tensor.grad for name, slot in self.slots.items()}
        applied = [stepper.applied for stepper in self.steppers]
        try:
            yield
        finally:
            for name, part in parts.items():
                part.load_state_dict(states[name])
            for name, slot in self.slots.items():
                slot.tensor.data.copy_(values[name])
                slot.tensor.grad = former[name]
            for stepper, count in zip(self.steppers, applied, strict=True):
                stepper.applied = count

    # what can be seen

    def predict(self, inputs: Array) -> dict[str, Array]:
        own = getattr(self.loop, "predict", None)
        if own is None:
            training = self.network.training
            try:
                return super().predict(inputs)
            finally:
                self.network.train(training)
        with self.stream.drawn():
            outputs = own(to_tensor(inputs, self.device))
        return {name: to_array(value) for name, value in outputs.items()}

    def segment_calls(self) -> tuple[int, ...]:
        raise self.refusal(Capability.SEGMENT_CALLS)

    def saved_bytes(self, batch: Batch) -> int:
        raise self.refusal(Capability.SAVED_BYTES)

    # the whole run

    def parts(self) -> dict[str, Any]:
        own = callable(getattr(self.loop, "state", None)) and callable(getattr(self.loop, "load", None))
        return {"own": OwnState(self.loop)} if own else self._loop_parts()

    def _loop_parts(self) -> dict[str, Any]:
        return super().parts() | {"attributes": PlainAttributes(self.loop)}


def ones(run: LoopTrainer, value: float = 1.0) -> dict[str, Array]:
    """A gradient of `value` everywhere for every parameter."""
    return {name: np.full_like(array, value) for name, array in run.parameters().items()}
