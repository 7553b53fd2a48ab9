"""One training run, following PyTorch's automatic mixed precision examples."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch.nn.utils import clip_grad_norm_
from torch.optim.swa_utils import AveragedModel

from fixtures.arrays import Array
from fixtures.layers import Dropout
from fixtures.model import Batch, Model, Window
from fixtures.recipe import Recipe
from frameworks.base import NO_AVERAGE, NO_SCALER, BaseTrainer, LossLedger, MicroBatch, unscaled_in_trace
from frameworks.contract import Capability, Gradients, LayerTrace, Unsupported, Update
from frameworks.torch import checkpoint, devices
from frameworks.torch.arrays import DTYPES, to_array, to_tensor, whole
from frameworks.torch.compiling import MODES, begin_anew, compiled, kept_buffers
from frameworks.torch.losses import Loaded, item_loss_sums, load_batch
from frameworks.torch.network import Network, buffers_by_name, cast_body, load, parameters_by_name
from frameworks.torch.offload import activations_of
from frameworks.torch.optimizer_probes import by_hand_refused
from frameworks.torch.optimizers import Stepper, averaged_model, averages, optimizer_state, steppers
from frameworks.torch.saved_bytes import SavedBytes, put_back
from frameworks.torch.scaler import (
    Kind,
    constant_scale,
    divided,
    good_updates,
    grad_scaler,
    scaler_settings,
    scaler_state,
    take_float32_gradients,
    twin_of,
    wants_fused,
)
from frameworks.torch.streams import Stream
from frameworks.torch.trace import TracedTensors, modules_by_path

Forward = Callable[[torch.Tensor, Mapping[str, torch.Tensor]], list[torch.Tensor]]


class TorchTrainer(BaseTrainer):
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
        self.slots = parameters_by_name(model, self.network)
        self.buffer_slots = buffers_by_name(model, self.network)
        load(self.slots, model.weights(recipe.seed) if weights is None else weights)
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
        if devices.has_peak(device):
            devices.module(device).reset_peak_memory_stats()

    def prepare(self) -> None:
        """Prepares the initialised network for training, before anything else refers to it."""

    def _network(self) -> Network:
        """A new network, on the CPU."""
        return Network(self.model, self.recipe.recompute)

    def _low_format(self) -> torch.dtype | None:
        """The format that this class casts a model of level O3 to; None leaves every model as it is."""
        return DTYPES[self.recipe.precision.format] if self.recipe.precision.level == "O3" else None

    def _averaged(self) -> AveragedModel | None:
        """The average of the network's weights that this class keeps, None without one."""
        return averaged_model(self.network, self.recipe.average)

    def _steppers(self) -> list[Stepper]:
        """The optimizers over the parameters as they are trained."""
        return steppers(self.recipe, self.slots)

    def _made_scaler(self) -> torch.amp.GradScaler | None:
        """The recipe's loss scaler."""
        return grad_scaler(self.device, self.recipe, self.scaler_kind)

    # forward and backward

    def autocast(self) -> AbstractContextManager[None]:
        """The precision scope of the recipe's forward passes."""
        if self.recipe.precision.level != "O1":
            return nullcontext()
        return torch.autocast(self.device, dtype=DTYPES[self.recipe.precision.format])

    def _load(self, batch: Batch) -> Loaded:
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

    def forward(self, batch: Loaded) -> list[torch.Tensor]:
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

    def _backward(self, losses: list[torch.Tensor], scaler: torch.amp.GradScaler | None) -> None:
        separate = losses if self.recipe.separate_losses else [sum(losses[1:], losses[0])]
        for index, loss in enumerate(separate):
            self._back(loss, scaler, retain=index + 1 < len(separate))

    def _back(self, loss: torch.Tensor, scaler: torch.amp.GradScaler | None, *, retain: bool) -> None:
        """One backward pass of a loss; `retain` if another one through its graph follows."""
        scaled = loss if scaler is None else scaler.scale(loss)
        scaled.backward(retain_graph=retain)

    def _micro_batch(self, *, last: bool) -> AbstractContextManager[None]:
        """The context of a micro-batch's forward and backward; `last` if it ends its window."""
        return nullcontext()

    def _share(self, total: torch.Tensor, items: int) -> torch.Tensor:
        """The loss to back-propagate, from a sum of losses and the window's items."""
        return total / items

    def _passes(self, window: Window, items: int, scaler: torch.amp.GradScaler | None) -> list[float]:
        """`_pass` of each micro-batch of a whole window."""
        totals = []
        for place, batch in enumerate(window, start=1):
            with self._micro_batch(last=place == len(window)):
                totals.append(self._pass(batch, items, scaler))
        return totals

    def _pass(self, batch: Batch, items: int, scaler: torch.amp.GradScaler | None) -> float:
        """Forward and backward of a micro-batch of a window of so many items; the sum of its items' losses."""
        loaded = self._load(batch)
        keeping = self.compiled and self.recipe.separate_losses
        with self.stream.drawn() if self._draws else nullcontext(), kept_buffers() if keeping else nullcontext():
            with self.activations.saving():
                sums = self.forward(loaded)
            self._backward([self._share(total, items) for total in sums], scaler)
        return float(sum(total.item() for total in sums))

    def accumulate(self, batch: Batch, items: int) -> float:
        total = self._pass(batch, items, self.scaler)
        return self.ledger.add(MicroBatch(total, batch.items), items)

    def gradients(self, window: Window) -> dict[str, Array]:
        return self._gradients(window, sum(batch.items for batch in window))

    def _gradients(self, window: Window, items: int) -> dict[str, Array]:
        former = {name: slot.tensor.grad for name, slot in self.slots.items()}
        self._empty()
        scaler = twin_of(self.scaler, self.device)
        try:
            self._passes(window, items, scaler)
            if scaler is not None and wants_fused(self.recipe, self.scaler_kind):
                return {name: divided(value, scaler.get_scale()) for name, value in self._summed().items()}
            if scaler is not None:
                for stepper in self.steppers:
                    scaler.unscale_(stepper.optimizer)
            return self._summed()
        finally:
            for name, slot in self.slots.items():
                slot.tensor.grad = former[name]

    def trace(self, batch: Batch) -> LayerTrace:
        if self.compiled:
            raise self.refusal(Capability.TRACE)
        shown, scale = TracedTensors(), self._scale()
        with shown.watching(modules_by_path(self.model, self.network, batch.targets)):
            parameters = self.gradients((batch,))
        gradients = {
            path: unscaled_in_trace(to_array(shown.gradients[path]), scale)
            for path in shown.outputs
            if path in shown.gradients
        }
        return LayerTrace(shown.outputs, gradients, parameters)

    # the update

    def apply(self) -> Update:
        return self._finish(None, None)

    def feed(
        self,
        *window: Gradients,
        unscale_calls: int | None = None,
        poison: Gradients | None = None,
        abandon: bool = False,
    ) -> Update:
        if wants_fused(self.recipe, self.scaler_kind) and (unscale_calls or poison is not None or abandon):
            raise by_hand_refused(self.recipe, self.device)
        for place, mapping in enumerate(window, start=1):
            given = {name: value for name, value in mapping.items() if value is not None}
            if given:
                with self._micro_batch(last=place == len(window)):
                    self._backward([self._fed_share(self._fed(given), len(window))], self.scaler)
        return self._abandoned() if abandon else self._finish(unscale_calls, poison)

    def _fed(self, gradients: Mapping[str, Array]) -> torch.Tensor:
        """Σ p·g, whose gradients are those that are given."""
        parts = [self.slots[name].times(value).sum() for name, value in gradients.items()]
        return sum(parts[1:], parts[0])

    def _fed_share(self, total: torch.Tensor, micro_batches: int) -> torch.Tensor:
        """The loss to back-propagate, from the `_fed` of one of so many micro-batches."""
        return total / micro_batches

    def _finish(self, unscale_calls: int | None, poison: Gradients | None) -> Update:
        before, rate = self._scale(), self.steppers[0].learning_rate
        applied = [stepper.applied for stepper in self.steppers]
        by_hand = self._unscaled_to_clip() if unscale_calls is None else unscale_calls
        for _ in range(by_hand if poison is None else max(1, by_hand)):
            self._unscale()
        self._add(poison or {})
        norm = None if self.recipe.clip is None else float(whole(self._clip(self.recipe.clip)))
        self._step()
        stepped = [stepper.applied > count for stepper, count in zip(self.steppers, applied, strict=True)]
        for stepper, moved in zip(self.steppers, stepped, strict=True):
            if moved and stepper.scheduler is not None:
                stepper.scheduler.step()
        if self.average is not None and any(stepped):
            self.average.update_parameters(self.network)
        self._empty()
        return self._report(before, rate, norm, skipped=not any(stepped))

    def _unscaled_to_clip(self) -> int:
        """How often gradients are unscaled by hand before they are clipped."""
        return 0 if self.recipe.clip is None else 1

    def _unscale(self) -> None:
        """Unscales all gradients by hand."""
        if self.scaler is not None:
            for stepper in self.steppers:
                self.scaler.unscale_(stepper.optimizer)

    def _step(self) -> None:
        """Steps of all optimizers, which an overflow skips, and the next scale."""
        for stepper in self.steppers:
            if self.scaler is None:
                stepper.optimizer.step()
            else:
                self.scaler.step(stepper.optimizer)
        if self.scaler is not None:
            self.scaler.update(constant_scale(self.recipe))

    def _clip(self, limit: float) -> torch.Tensor:
        """Clips the gradients; the norm that they had."""
        return clip_grad_norm_([slot.tensor for slot in self.slots.values()], limit)

    def _abandoned(self) -> Update:
        """Ends an update whose gradients are unscaled without a step: `update` readies the scaler for the next one."""
        if self.scaler is None:
            raise Unsupported(Capability.EXPLICIT_UNSCALE, NO_SCALER)
        before = self._scale()
        self._unscale()
        self.scaler.update(constant_scale(self.recipe))
        self._empty()
        return self._report(before, self.steppers[0].learning_rate, None, skipped=True)

    def _report(self, before: float, rate: float, norm: float | None, *, skipped: bool) -> Update:
        loss, micro = self.ledger.loss(), self.ledger.losses()
        self.ledger.empty()
        return Update(loss, micro, before, self._scale(), good_updates(self.scaler), skipped, norm, rate)

    def _add(self, gradients: Gradients) -> None:
        for name, value in gradients.items():
            gradient = self.slots[name].tensor.grad
            if value is not None and gradient is not None:
                self._add_to(gradient, self.slots[name].tensor_of(value, gradient.dtype))

    def _add_to(self, gradient: torch.Tensor, value: torch.Tensor) -> None:
        gradient.add_(value)

    def _empty(self) -> None:
        for stepper in self.steppers:
            stepper.optimizer.zero_grad()

    def _scale(self) -> float:
        return 1.0 if self.scaler is None else self.scaler.get_scale()

    # what can be seen

    def parameters(self) -> dict[str, Array]:
        return {name: slot.to_canonical(slot.tensor) for name, slot in self.slots.items()}

    def optimizer_state(self) -> dict[str, Array]:
        return optimizer_state(self.steppers, self.slots) | averages(self.model, self.average)

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
        """Every part of the run that has a `state_dict`, by its name in checkpoints."""
        return checkpoint.parts(self)

    def save(self, path: Path) -> None:
        checkpoint.save(self, path)

    def restore(self, path: Path) -> None:
        checkpoint.restore(self, path)

    def saved_bytes(self, batch: Batch) -> int:
        loaded = self._load(batch)
        counter = SavedBytes([*self.network.parameters(), *loaded.tensors()])
        unmoved = put_back([slot.tensor for slot in self.buffer_slots.values()], self.network.calls.counts)
        with unmoved, self.stream.drawn(keep=False), counter.counting():
            self.forward(loaded)
        return counter.bytes()

    def offloaded(self) -> dict[str, int]:
        return super().offloaded() if self.recipe.offload is None else {"activations": self.activations.taken()}

    def peak_bytes(self) -> int:
        if not devices.has_peak(self.device):
            raise self.refusal(Capability.PEAK_BYTES)
        return int(devices.module(self.device).max_memory_allocated())
