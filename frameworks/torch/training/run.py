"""One run: its objects, its forward pass, and what can be seen of it."""

from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.optim.swa_utils import AveragedModel

from fixtures.arrays import Array
from fixtures.layers import Dropout
from fixtures.model import Batch, Model
from fixtures.recipe import Recipe
from frameworks.base import NO_AVERAGE, BaseTrainer, LossLedger, MicroBatch
from frameworks.contract import Capability
from frameworks.torch.core import devices, ways
from frameworks.torch.core.arrays import DTYPES, to_array, to_tensor
from frameworks.torch.core.compiling import MODES, begin_anew, compiled
from frameworks.torch.core.losses import DeviceBatch, item_loss_sums, load_batch
from frameworks.torch.core.network import Network, buffers_by_name, cast_body, load, parameters_by_name
from frameworks.torch.core.offload import activations_of
from frameworks.torch.core.saved_bytes import SavedBytes, put_back
from frameworks.torch.core.streams import Stream
from frameworks.torch.training.checkpoint_ways import with_state_api
from frameworks.torch.training.optimizers import Stepper, averages_of, optimizer_state, steppers
from frameworks.torch.training.scaler import (
    Kind,
    class_of_device,
    grad_scaler,
    scaler_settings,
    scaler_state,
    take_float32_gradients,
)

Forward = Callable[[torch.Tensor, Mapping[str, torch.Tensor]], list[torch.Tensor]]


class TorchRun(BaseTrainer):
    """A run on one device; compiled modes compile the forward pass and the loss together, at their first use."""

    scaler_kind: Kind = torch.amp.GradScaler

    def __init__(
        self, model: Model, recipe: Recipe, weights: Mapping[str, Array] | None, device: str, mode: str
    ) -> None:
        self.model = model
        self.recipe = recipe
        self.device = device
        self.low = self._low_format()
        self.stream = Stream(device, recipe.seed)
        self._draws = any(isinstance(layer, Dropout) for _, layer, _ in model.shapes())
        with self.stream.drawn(keep=False):
            self.network = self._network().to(device)
        if self.low is not None:
            cast_body(self.network, self.low)
        self._find_parameters()
        load(self.slots, model.weights(recipe.seed) if weights is None else weights)
        self.freeze(())
        self.prepare()
        self.average = self._averaged()
        self.steppers = self._steppers()
        self.scaler = self._made_scaler()
        take_float32_gradients(recipe, self.scaler_kind, (slot.tensor for slot in self.slots.values()))
        self._settings = scaler_settings(self.scaler)
        self.ledger: LossLedger[MicroBatch] = LossLedger()
        self.activations = activations_of(recipe.offload)
        self.compiled = mode in MODES
        self._losses: Forward = self._eager_losses
        self._outputs: Callable[[torch.Tensor], dict[str, torch.Tensor]] = self.network
        if self.compiled:
            begin_anew()
            self._losses = compiled(self._eager_losses, mode)
            self._outputs = compiled(self.network, mode)
        if recipe.way("autocast") == "decorator" and recipe.precision.level == "O1":
            decorated = torch.autocast(device, dtype=DTYPES[recipe.precision.format])
            self._losses, self._outputs = decorated(self._losses), decorated(self._outputs)
        if devices.has_peak(device):
            devices.module(device).reset_peak_memory_stats()

    def prepare(self) -> None:
        """Prepares the initialised network for training, before anything else refers to it."""

    def _find_parameters(self) -> None:
        self.slots = parameters_by_name(self.model, self.network)
        self.buffer_slots = buffers_by_name(self.model, self.network)

    def freeze(self, names: Collection[str]) -> None:
        for name, slot in self.slots.items():
            slot.tensor.requires_grad_(name not in names and name not in self.recipe.frozen)

    def follow_network(self) -> None:
        """Finds the parameters of a network that has others, and makes optimizers of them."""
        self._find_parameters()
        self.steppers = self._steppers()

    def _network(self) -> Network:
        """A new network, on the CPU."""
        return Network(self.model, self.recipe.recompute, self.recipe.way("recompute"))

    def _low_format(self) -> torch.dtype | None:
        """The format that this class casts a model of level O3 to; None leaves every model as it is."""
        return DTYPES[self.recipe.precision.format] if self.recipe.precision.level == "O3" else None

    def _averaged(self) -> AveragedModel | None:
        """The average of the network's weights that this class keeps, None without one."""
        decay = self.recipe.average
        return None if decay is None else ways.averaged_model(self.recipe.way("average"), self.network, decay)

    def _steppers(self) -> list[Stepper]:
        """The optimizers over the parameters as they are trained."""
        return steppers(self.recipe, self.slots)

    def _made_scaler(self) -> torch.amp.GradScaler | None:
        """The recipe's loss scaler."""
        own = self.recipe.way("scaling") == "class-of-the-device"
        return grad_scaler(self.device, self.recipe, class_of_device(self.device) if own else self.scaler_kind)

    # forward and backward

    def autocast(self) -> AbstractContextManager[None]:
        """The precision scope of the recipe's forward passes."""
        if self.recipe.precision.level != "O1" or self.recipe.way("autocast") == "decorator":
            return nullcontext()
        return ways.autocast(self.recipe.way("autocast"), self.device, DTYPES[self.recipe.precision.format])

    def _load(self, batch: Batch) -> DeviceBatch:
        """The micro-batch; reentrant checkpoints need an input that requires a gradient, as documented."""
        loaded = load_batch(self.model, batch, self.device, self.low)
        if self.network.is_reentrant and loaded.inputs.is_floating_point():
            loaded.inputs.requires_grad_()
        return loaded

    def _eager_losses(self, inputs: torch.Tensor, targets: Mapping[str, torch.Tensor]) -> list[torch.Tensor]:
        outputs = self.network(inputs)
        if self.low is not None:
            outputs = {name: y.to(torch.promote_types(y.dtype, torch.float32)) for name, y in outputs.items()}
        return item_loss_sums(self.model.losses, outputs, targets)

    def forward(self, batch: DeviceBatch) -> list[torch.Tensor]:
        """Training-mode forward of a micro-batch: the sum of its items' losses for each head that has targets."""
        if not self.network.training:
            self.network.train()
        self._count_compiled()
        with self.autocast():
            return self._losses(batch.inputs, batch.targets)

    def _count_compiled(self) -> None:
        """A compiled forward pass without recomputation runs its one segment each time that it is called."""
        if self.compiled and self.recipe.recompute is None:
            self.network.calls.counts[0] += 1

    # what can be seen

    def parameters(self) -> dict[str, Array]:
        return {name: slot.to_canonical(slot.tensor) for name, slot in self.slots.items()}

    def optimizer_state(self) -> dict[str, Array]:
        return optimizer_state(self.steppers, self.slots) | self._averages()

    def _averages(self) -> dict[str, Array]:
        """The average of each parameter, and how many updates it has taken in."""
        if self.average is None or not isinstance(self.average.module, Network):
            return {}
        return averages_of(parameters_by_name(self.model, self.average.module), self.average)

    def buffers(self) -> dict[str, Array]:
        return {name: to_array(slot.tensor) for name, slot in self.buffer_slots.items()}

    def scaler_state(self) -> dict[str, Array]:
        return scaler_state(self.scaler, self.device)

    def scaler_settings(self) -> dict[str, float]:
        return dict(self._settings)

    def accumulator(self) -> dict[str, Array]:
        return self._summed()

    def _summed(self) -> dict[str, Array]:
        """The parameters' gradients by canonical name."""
        gradients = {name: slot.tensor.grad for name, slot in self.slots.items()}
        return {name: self.slots[name].to_canonical(grad) for name, grad in gradients.items() if grad is not None}

    def random_state(self) -> dict[str, Array]:
        return {name: to_array(state) for name, state in self.stream.states.items()}

    def predict(self, inputs: Array) -> dict[str, Array]:
        self.network.eval()
        self._count_compiled()
        return self._evaluated(self._outputs, inputs)

    def predict_averaged(self, inputs: Array) -> dict[str, Array]:
        if self.average is None:
            raise ValueError(NO_AVERAGE)
        self.average.eval()
        return self._evaluated(self.average, inputs)

    def _evaluated(self, network: Callable[[torch.Tensor], dict[str, torch.Tensor]], inputs: Array) -> dict[str, Array]:
        tensor = to_tensor(inputs, self.device, None if self.model.integer_inputs else self.low)
        with self.stream.drawn(), torch.no_grad(), self.autocast():
            return {name: to_array(value) for name, value in network(tensor).items()}

    def hook_calls(self) -> int:
        return sum(stepper.hook_calls for stepper in self.steppers)

    def segment_calls(self) -> tuple[int, ...]:
        return tuple(self.network.calls.counts)

    # the whole run

    def parts(self) -> dict[str, Any]:
        """Every part of the run that has a `state_dict`, by name; those of a second optimizer end in ".1"."""
        every: dict[str, Any] = {"model": self.network}
        for index, stepper in enumerate(self.steppers):
            suffix = f".{index}" if index else ""
            every |= {f"{name}{suffix}": part for name, part in stepper.parts().items()}
        if self.average is not None:
            every["average"] = self.average
        if self.scaler is not None and self.scaler.is_enabled():
            every["scaler"] = self.scaler
        return every if self.recipe.way("save") == "" else with_state_api(every)

    def saved_bytes(self, batch: Batch) -> int:
        loaded = self._load(batch)
        counter = SavedBytes(lambda: [*self._resident_parameters(), *loaded.tensors()])
        unmoved = put_back([slot.tensor for slot in self.buffer_slots.values()], self.network.calls.counts)
        with unmoved, self.stream.drawn(keep=False), counter.counting():
            self.forward(loaded)
        return counter.bytes()

    def _resident_parameters(self) -> Iterable[torch.Tensor]:
        """The parameters as a layer uses them at this moment."""
        return self.network.parameters()

    def offloaded(self) -> dict[str, int]:
        return super().offloaded() if self.recipe.offload is None else {"activations": self.activations.taken()}

    def peak_bytes(self) -> int:
        if not devices.has_peak(self.device):
            raise self.refusal(Capability.PEAK_BYTES)
        return int(devices.module(self.device).max_memory_allocated())
