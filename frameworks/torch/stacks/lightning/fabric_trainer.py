"""One training run by Lightning Fabric, in the loop of its documentation."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from inspect import signature
from pathlib import Path
from typing import Any

import torch
from lightning.fabric import Fabric
from lightning.fabric.plugins.precision import MixedPrecision, Precision

from fixtures.arrays import Array
from fixtures.model import Model
from fixtures.recipe import Recipe
from frameworks.base import NO_AVERAGE, same_parts
from frameworks.torch.core.losses import item_loss_sums
from frameworks.torch.stacks.lightning.start import NAMES, quiet
from frameworks.torch.training import checkpoint
from frameworks.torch.training.scaler import scaler_settings
from frameworks.torch.training.trainer import TorchTrainer

FILE = "run.ckpt"

_SAFELY = {"weights_only": True} if "weights_only" in signature(Fabric.load).parameters else {}
"""Arguments by which Fabric reads tensors and plain values alone; before 2.6 it has none."""


class Float32Scaled(MixedPrecision):
    """Loss scaling without autocast; Fabric's own precisions scale float16 autocast alone."""

    def forward_context(self) -> AbstractContextManager[Any]:
        return nullcontext()

    def convert_input(self, data: Any) -> Any:
        return data

    def convert_output(self, data: Any) -> Any:
        return data


def fabric_of(recipe: Recipe, device: str, scaler: torch.amp.GradScaler | None) -> Fabric:
    """Fabric for a recipe; the scaler is handed to its precision plugin, since on a CPU Fabric makes none."""
    quiet()
    plugin: Precision | None = None
    if recipe.precision.level == "O0" and scaler is not None:
        plugin = Float32Scaled("16-mixed", device, scaler)
    elif recipe.precision.label == "O1-float16":
        own_scaler = torch.amp.GradScaler(device, enabled=False) if scaler is None else scaler
        plugin = MixedPrecision("16-mixed", device, own_scaler)
    if plugin is not None:
        return Fabric(accelerator=device, devices=1, plugins=plugin)
    return Fabric(accelerator=device, devices=1, precision=NAMES[recipe.precision.label])


class FabricTrainer(TorchTrainer):
    """A run whose model, optimizers, backward passes, clipping, steps and checkpoints are Fabric's.

    Attributes:
        fabric: Fabric of this run alone.
    """

    def __init__(
        self, model: Model, recipe: Recipe, weights: Mapping[str, Array] | None, device: str, mode: str
    ) -> None:
        super().__init__(model, recipe, weights, device, mode)
        self.fabric = fabric_of(recipe, device, self.scaler)
        self._module, *self._optimizers = self.fabric.setup(self.network, *(each.optimizer for each in self.steppers))
        self._outputs = self._module
        self._average_module = None if self.average is None else self.fabric.setup_module(self.average)
        self._settings = scaler_settings(self.scaler)

    @property
    def _plugin(self) -> Precision:
        return self.fabric.strategy.precision

    def _low_format(self) -> torch.dtype | None:
        return None

    def autocast(self) -> AbstractContextManager[None]:
        return self.fabric.autocast() if self.recipe.precision.level == "O1" else nullcontext()

    def _eager_losses(self, inputs: torch.Tensor, targets: Mapping[str, torch.Tensor]) -> list[torch.Tensor]:
        return item_loss_sums(self.model.losses, self._module(inputs), targets)

    def _back(self, losses: list[torch.Tensor], scaler: torch.amp.GradScaler | None, *, retain: bool) -> None:
        if scaler is not self.scaler and scaler is not None:
            scaler.scale(losses[0].detach())  # the copy that unscales in `gradients` has to have scaled something
        self.fabric.backward(losses[0], retain_graph=retain)

    def _micro_batch(self, *, last: bool) -> AbstractContextManager[None]:
        return self.fabric.no_backward_sync(self._module, enabled=not last)

    def _unscaled_to_clip(self) -> int:
        return 0

    def _unscale(self) -> None:
        for stepper in self.steppers:
            self._plugin.unscale_gradients(stepper.optimizer)

    def _clip(self, limit: float) -> torch.Tensor:
        norms = [
            self.fabric.clip_gradients(self._module, optimizer, max_norm=limit, error_if_nonfinite=False)
            for optimizer in self._optimizers
        ]
        return torch.stack([norm for norm in norms if norm is not None]).norm()

    def _step(self) -> None:
        for optimizer in self._optimizers:
            optimizer.step()

    def _empty(self) -> None:
        for optimizer in self._optimizers:
            optimizer.zero_grad()

    def predict_averaged(self, inputs: Array) -> dict[str, Array]:
        if self._average_module is None:
            raise ValueError(NO_AVERAGE)
        self._average_module.eval()
        return self._evaluated(self._average_module, inputs)

    # the whole run

    def _checkpoint(self) -> dict[str, Any]:
        """The user's dictionary of parts; the precision plugin holds the loss scale, which Fabric does not add."""
        parts = checkpoint.parts(self) | {"model": self._module}
        if "scaler" in parts:
            parts["scaler"] = self._plugin
        return parts | {checkpoint.LOOP: {**checkpoint.loop_state(self), "gradients": checkpoint.gradients(self)}}

    def save(self, path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)
        self.fabric.save(path / FILE, self._checkpoint())

    def restore(self, path: Path) -> None:
        file, state = path / FILE, self._checkpoint()
        try:
            same_parts(file, self.fabric.load(file, **_SAFELY), state)
            self.fabric.load(file, state, **_SAFELY)
            checkpoint.go_on(self, state[checkpoint.LOOP])
            checkpoint.put_gradients(self, state[checkpoint.LOOP]["gradients"])
        except Exception as error:
            raise ValueError(f"{file} cannot be loaded: {error}") from error
