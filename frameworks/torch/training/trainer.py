"""One training run, following PyTorch's automatic mixed precision examples, and its checkpoints.

The file is a general checkpoint, as PyTorch's tutorial on saving and loading calls it: the user's dictionary of the
`state_dict` of every part and of the training loop's own state.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from inspect import signature
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch.distributed import checkpoint
from torch.distributed.checkpoint import FileSystemWriter
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.optim.swa_utils import AveragedModel

from fixtures.arrays import Array
from fixtures.model import Batch, Dropout, Model, Window
from fixtures.recipe import Recipe
from frameworks.base import (
    NO_AVERAGE,
    NO_SCALER,
    BaseTrainer,
    LossLedger,
    MicroBatch,
    of_same_class,
    same_parts,
    unscaled_in_trace,
)
from frameworks.contract import (
    BackgroundRule,
    Capability,
    Gate,
    Gradients,
    Kind,
    LayerTrace,
    LiveValues,
    LoadOrder,
    SaveSeries,
    Trainer,
    Unsupported,
    Update,
    ValueSaver,
)
from frameworks.torch.core import settings, ways
from frameworks.torch.core.layers import (
    DeviceBatch,
    Network,
    TracedTensors,
    buffers_by_name,
    cast_body,
    item_loss_sums,
    load,
    load_batch,
    modules_by_path,
    parameters_by_name,
)
from frameworks.torch.core.settings import (
    DTYPES,
    MODES,
    SavedBytes,
    Stream,
    activations_of,
    begin_anew,
    compile_function,
    put_back,
    to_array,
    to_tensor,
    whole,
    without_buffer_donation,
)
from frameworks.torch.probes import float16_clipped
from frameworks.torch.training.optimizers import (
    NO_UNSCALING,
    ScalerClass,
    Stepper,
    averages_of,
    class_of_device,
    constant_scale,
    good_updates,
    grad_scaler,
    optimizer_state,
    scaler_settings,
    scaler_state,
    steppers,
    take_float32_gradients,
    twin_of,
    unscale_gradient,
    wants_fused,
)

FILE, PARTS = "run.pt", "parts"
LOOP = "loop"
"""Key of the training loop's own state in a checkpoint."""
_ALONE: dict[str, Any] = {"no_dist": True} if "no_dist" in signature(checkpoint.save).parameters else {}
"""Arguments of a save without a process group; PyTorch before 2.7 detects that there is none."""


class ModelAndOptimizers:
    """A model and its optimizers as one part, with the state API's names of parameters."""

    def __init__(self, model: torch.nn.Module, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        self._model, self._optimizers = model, optimizers

    def state_dict(self) -> dict[str, Any]:
        """The state of both."""
        model, optimizers = get_state_dict(self._model, self._optimizers)
        return {"model": model, "optimizers": optimizers}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Loads what `state_dict` returned."""
        set_state_dict(
            self._model, self._optimizers, model_state_dict=state["model"], optim_state_dict=state["optimizers"]
        )


def with_state_api(parts: Mapping[str, Any]) -> dict[str, Any]:
    """The parts of a run, with model and optimizers joined into one part and the others unchanged."""
    optimizers = {name: part for name, part in parts.items() if name.startswith("optimizer")}
    others = {name: part for name, part in parts.items() if name != "model" and name not in optimizers}
    return {"model": ModelAndOptimizers(parts["model"], [*optimizers.values()]), **others}


Forward = Callable[[torch.Tensor, Mapping[str, torch.Tensor]], list[torch.Tensor]]


class TorchTrainer(BaseTrainer):
    """A run on one device; compiled modes compile the forward pass and the loss together, at their first use."""

    scaler_kind: ScalerClass = torch.amp.GradScaler

    def __init__(
        self, model: Model, recipe: Recipe, weights: Mapping[str, Array] | None, device: str, mode: str
    ) -> None:
        self.model = model
        self.recipe = recipe
        self.device = device
        self.low = self._low_format()
        self.stream = Stream(device, recipe.seed)
        self._draws = any(isinstance(layer, Dropout) for _, layer, _ in model.shapes())
        with self.stream.open(keep=False):
            self.network = self._network().to(device)
        if self.low is not None:
            cast_body(self.network, self.low)
        self._find_parameters()
        load(self.slots, model.weights(recipe.seed) if weights is None else weights)
        self.freeze(())
        self.prepare()
        self.average = self._make_average()
        self.steppers = self._steppers()
        self.scaler = self._make_scaler()
        take_float32_gradients(recipe, self.scaler_kind, (slot.tensor for slot in self.slots.values()))
        self._settings = scaler_settings(self.scaler)
        self.ledger: LossLedger[MicroBatch] = LossLedger()
        self.activations = activations_of(recipe.offload)
        self.compiled = mode in MODES
        self._losses: Forward = self._eager_losses
        self._outputs: Callable[[torch.Tensor], dict[str, torch.Tensor]] = self.network
        if self.compiled:
            begin_anew()
            self._losses = compile_function(self._eager_losses, mode)
            self._outputs = compile_function(self.network, mode)
        if recipe.way("autocast") == "decorator" and recipe.precision.level == "O1":
            decorated = torch.autocast(device, dtype=DTYPES[recipe.precision.format])
            self._losses, self._outputs = decorated(self._losses), decorated(self._outputs)
        if settings.has_peak(device):
            settings.module(device).reset_peak_memory_stats()

    def prepare(self) -> None:
        """Prepares the initialised network for training. Nothing else refers to it yet."""

    def _find_parameters(self) -> None:
        self.slots = parameters_by_name(self.model, self.network)
        self.buffer_slots = buffers_by_name(self.model, self.network)

    def freeze(self, names: Collection[str]) -> None:
        for name, slot in self.slots.items():
            slot.tensor.requires_grad_(name not in names and name not in self.recipe.frozen)

    def _network(self) -> Network:
        """A new network, on the CPU."""
        return Network(self.model, self.recipe.recompute, self.recipe.way("recompute"))

    def _low_format(self) -> torch.dtype | None:
        """The format to which this class casts a model of level O3; None casts no model."""
        return DTYPES[self.recipe.precision.format] if self.recipe.precision.level == "O3" else None

    def _make_average(self) -> AveragedModel | None:
        """The average of the network's weights that this class keeps, None without one."""
        decay = self.recipe.average
        return None if decay is None else ways.make_average(self.recipe.way("average"), self.network, decay)

    def _steppers(self) -> list[Stepper]:
        """The optimizers over the parameters as they are trained."""
        return steppers(self.recipe, self.slots)

    def _make_scaler(self) -> torch.amp.GradScaler | None:
        """The recipe's loss scaler."""
        own = self.recipe.way("scaling") == "class-of-the-device"
        return grad_scaler(self.device, self.recipe, class_of_device(self.device) if own else self.scaler_kind)

    # forward and backward

    def autocast(self) -> AbstractContextManager[None]:
        """The precision scope of the recipe's forward passes."""
        if self.recipe.precision.level != "O1" or self.recipe.way("autocast") == "decorator":
            return nullcontext()
        return ways.make_scope(self.recipe.way("autocast"), self.device, DTYPES[self.recipe.precision.format])

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
        """Counts a call of a compiled forward pass without recomputation as one run of its only segment."""
        if self.compiled and self.recipe.recompute is None:
            self.network.calls.counts[0] += 1

    # readings

    def parameters(self) -> dict[str, Array]:
        return {name: slot.to_canonical(slot.tensor) for name, slot in self.slots.items()}

    def optimizer_state(self) -> dict[str, Array]:
        return optimizer_state(self.steppers, self.slots) | self._averages()

    def _averages(self) -> dict[str, Array]:
        """The average of each parameter, and the number of updates in it."""
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
        return self._read_gradients()

    def _read_gradients(self) -> dict[str, Array]:
        """The parameters' gradients by canonical name."""
        gradients = {name: slot.tensor.grad for name, slot in self.slots.items()}
        return {name: self.slots[name].to_canonical(grad) for name, grad in gradients.items() if grad is not None}

    def random_state(self) -> dict[str, Array]:
        return {name: to_array(state) for name, state in self.stream.states.items()}

    def predict(self, inputs: Array) -> dict[str, Array]:
        self.network.eval()
        self._count_compiled()
        return self._evaluate(self._outputs, inputs)

    def predict_averaged(self, inputs: Array) -> dict[str, Array]:
        if self.average is None:
            raise ValueError(NO_AVERAGE)
        self.average.eval()
        return self._evaluate(self.average, inputs)

    def _evaluate(self, network: Callable[[torch.Tensor], dict[str, torch.Tensor]], inputs: Array) -> dict[str, Array]:
        tensor = to_tensor(inputs, self.device, None if self.model.integer_inputs else self.low)
        with self.stream.open(), torch.no_grad(), self.autocast():
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

    def views(self) -> Mapping[type, Callable[[], Any]]:
        return {**super().views(), LiveValues: self.parts}

    def saved_bytes(self, batch: Batch) -> int:
        loaded = self._load(batch)
        counter = SavedBytes(lambda: [*self._resident_parameters(), *loaded.tensors()])
        unmoved = put_back([slot.tensor for slot in self.buffer_slots.values()], self.network.calls.counts)
        with unmoved, self.stream.open(keep=False), counter.counting():
            self.forward(loaded)
        return counter.bytes()

    def _resident_parameters(self) -> Iterable[torch.Tensor]:
        """The parameters as a layer uses them at this moment."""
        return self.network.parameters()

    def offloaded_bytes(self) -> dict[str, int]:
        return (
            super().offloaded_bytes() if self.recipe.offload is None else {"activations": self.activations.take_bytes()}
        )

    def peak_bytes(self) -> int:
        if not settings.has_peak(self.device):
            raise self.refusal(Capability.PEAK_BYTES)
        return int(settings.module(self.device).max_memory_allocated())

    # the training loop

    def _backward(self, losses: list[torch.Tensor], scaler: torch.amp.GradScaler | None) -> None:
        way = self.recipe.way("backward")
        if self.recipe.separate_losses:
            passes = [[loss] for loss in losses]
        else:
            passes = [losses if way in ways.SEVERAL_ROOTS else [sum(losses[1:], losses[0])]]
        for index, roots in enumerate(passes, start=1):
            self._run_backward(roots, scaler, retain=index < len(passes))

    def _run_backward(self, losses: list[torch.Tensor], scaler: torch.amp.GradScaler | None, *, retain: bool) -> None:
        """One backward pass; `retain` if another one through its graph follows."""
        scaled = losses if scaler is None else [scaler.scale(loss) for loss in losses]
        parameters = [slot.tensor for slot in self.slots.values() if slot.tensor.requires_grad]
        ways.run_backward(self.recipe.way("backward"), scaled, parameters, retain=retain)

    def _micro_batch(self, *, last: bool) -> AbstractContextManager[None]:
        """The context of a micro-batch's forward and backward; `last`: it ends its window."""
        return nullcontext()

    def _normalise(self, total: torch.Tensor, items: int) -> torch.Tensor:
        """The loss to back-propagate, from a sum of losses and the window's items."""
        return total / items

    def _passes(self, window: Window, items: int, scaler: torch.amp.GradScaler | None) -> list[float]:
        """`_pass` of each micro-batch of a whole window."""
        totals = []
        for number, batch in enumerate(window, start=1):
            with self._micro_batch(last=number == len(window)):
                totals.append(self._pass(batch, items, scaler))
        return totals

    def _pass(self, batch: Batch, items: int, scaler: torch.amp.GradScaler | None) -> float:
        """Runs a micro-batch of a window of `items` items forward and backward; returns the sum of its losses."""
        loaded = self._load(batch)
        keeping = self.compiled and self.recipe.separate_losses
        with (
            self.stream.open() if self._draws else nullcontext(),
            without_buffer_donation() if keeping else nullcontext(),
        ):
            with self.activations.saving():
                sums = self.forward(loaded)
            self._backward([self._normalise(total, items) for total in sums], scaler)
        return float(sum(total.item() for total in sums))

    def accumulate(self, batch: Batch, items: int) -> float:
        total = self._pass(batch, items, self.scaler)
        return self.ledger.add(MicroBatch(total, batch.items), items)

    def gradients(self, window: Window) -> dict[str, Array]:
        return self._gradients(window, sum(batch.items for batch in window))

    def _gradients(self, window: Window, items: int) -> dict[str, Array]:
        former = {name: slot.tensor.grad for name, slot in self.slots.items()}
        for slot in self.slots.values():
            slot.tensor.grad = None
        scaler = twin_of(self.scaler, self.device)
        try:
            self._passes(window, items, scaler)
            if scaler is not None and wants_fused(self.recipe, self.scaler_kind):
                return {
                    name: unscale_gradient(value, scaler.get_scale()) for name, value in self._read_gradients().items()
                }
            if scaler is not None:
                for stepper in self.steppers:
                    scaler.unscale_(stepper.optimizer)
            return self._read_gradients()
        finally:
            for name, slot in self.slots.items():
                slot.tensor.grad = former[name]

    def trace(self, batch: Batch) -> LayerTrace:
        if self.compiled:
            raise self.refusal(Capability.TRACE)
        tensors, scale = TracedTensors(), self._scale()
        with tensors.watching(modules_by_path(self.model, self.network, batch.targets)):
            parameters = self.gradients((batch,))
        gradients = {
            path: unscaled_in_trace(to_array(tensors.gradients[path]), scale)
            for path in tensors.outputs
            if path in tensors.gradients
        }
        return LayerTrace(tensors.outputs, gradients, parameters)

    # the update

    def apply(self) -> Update:
        return self._make_update(None, None)

    def apply_gradients(
        self,
        *window: Gradients,
        unscale_calls: int | None = None,
        inject: Gradients | None = None,
        discard: bool = False,
    ) -> Update:
        if unscale_calls is not None or inject is not None or discard:
            self._require_manual(bool(unscale_calls or inject is not None or discard))
        self._feed_window(window)
        return self._discard_update() if discard else self._make_update(unscale_calls, inject)

    def _require_manual(self, unscales: bool) -> None:
        """Refuses an update that a user ends in steps of their own; `unscales` if they unscale the gradients.

        Raises:
            Unsupported: EXPLICIT_UNSCALE.
        """
        if unscales and wants_fused(self.recipe, self.scaler_kind):
            attempt = partial(float16_clipped, self.recipe.optimizer, self.device)
            raise Unsupported(Capability.EXPLICIT_UNSCALE, NO_UNSCALING, attempt)

    def _feed_window(self, window: Sequence[Gradients]) -> None:
        """Runs a backward pass for each micro-batch of a window, with these gradients."""
        for number, mapping in enumerate(window, start=1):
            present = {name: value for name, value in mapping.items() if value is not None}
            if present:
                with self._micro_batch(last=number == len(window)):
                    self._feed(present, len(window))

    def _feed(self, gradients: Mapping[str, Array], micro_batches: int) -> None:
        """Runs the backward pass of one of `micro_batches` micro-batches, with these gradients."""
        self._backward([self._normalise_fed(self._sum_products(gradients), micro_batches)], self.scaler)

    def _sum_products(self, gradients: Mapping[str, Array]) -> torch.Tensor:
        """Σ p·g, a loss whose gradients are `gradients`."""
        parts = [self.slots[name].times(value).sum() for name, value in gradients.items()]
        return sum(parts[1:], parts[0])

    def _normalise_fed(self, total: torch.Tensor, micro_batches: int) -> torch.Tensor:
        """The loss to back-propagate for one of `micro_batches` micro-batches; `total` is its `_sum_products`."""
        return total / micro_batches

    def _make_update(self, unscale_calls: int | None, inject: Gradients | None) -> Update:
        before, rate = self._scale(), self.steppers[0].learning_rate
        applied = [stepper.applied for stepper in self.steppers]
        manual = self._unscale_calls() if unscale_calls is None else unscale_calls
        for _ in range(manual if inject is None else max(1, manual)):
            self._unscale()
        self._add_gradients(inject or {})
        norm = None if self.recipe.clip is None else float(whole(self._clip(self.recipe.clip)))
        self._step()
        stepped = [stepper.applied > count for stepper, count in zip(self.steppers, applied, strict=True)]
        for stepper, moved in zip(self.steppers, stepped, strict=True):
            if moved and stepper.scheduler is not None:
                stepper.scheduler.step()
        if self.average is not None and any(stepped):
            self.average.update_parameters(self.network)
        self._zero_gradients()
        return self._report(before, rate, norm, skipped=not any(stepped))

    def _unscale_calls(self) -> int:
        """The number of times that gradients are unscaled by hand before they are clipped."""
        manual = self.recipe.way("scaling") == "unscale-first" and not wants_fused(self.recipe, self.scaler_kind)
        return 1 if self.recipe.clip is not None or manual else 0

    def _unscale(self) -> None:
        """Unscales all gradients by hand."""
        if self.scaler is not None:
            for stepper in self.steppers:
                self.scaler.unscale_(stepper.optimizer)

    def _step(self) -> None:
        """Steps all optimizers unless there is an overflow, and updates the scale."""
        for stepper in self.steppers:
            if self.scaler is None:
                stepper.optimizer.step()
            else:
                self.scaler.step(stepper.optimizer)
        if self.scaler is not None:
            self.scaler.update(constant_scale(self.recipe))

    def _clip(self, limit: float) -> torch.Tensor:
        """Clips the gradients and returns their norm before that."""
        return ways.CLIPS[self.recipe.way("clip")]([slot.tensor for slot in self.slots.values()], limit)

    def _discard_update(self) -> Update:
        """Ends an update of unscaled gradients without a step: `update` resets the scaler for the next one."""
        if self.scaler is None:
            raise Unsupported(Capability.EXPLICIT_UNSCALE, NO_SCALER)
        before = self._scale()
        self._unscale()
        self.scaler.update(constant_scale(self.recipe))
        self._zero_gradients()
        return self._report(before, self.steppers[0].learning_rate, None, skipped=True)

    def _report(self, before: float, rate: float, norm: float | None, *, skipped: bool) -> Update:
        loss, micro = self.ledger.loss(), self.ledger.losses()
        self.ledger.empty()
        return Update(loss, micro, before, self._scale(), good_updates(self.scaler), skipped, norm, rate)

    def _add_gradients(self, gradients: Gradients) -> None:
        for name, value in gradients.items():
            gradient = self.slots[name].tensor.grad
            if value is not None and gradient is not None:
                self._add_in_place(gradient, self.slots[name].tensor_of(value, gradient.dtype))

    def _add_in_place(self, gradient: torch.Tensor, value: torch.Tensor) -> None:
        gradient.add_(value)

    def _zero_gradients(self) -> None:
        ways.zero_grad(self.recipe.way("zero-grad"), (stepper.optimizer for stepper in self.steppers), self.network)

    def _scale(self) -> float:
        return 1.0 if self.scaler is None else self.scaler.get_scale()

    # checkpoints

    def snapshot(self) -> dict[str, Any]:
        """The full state of the run."""
        return {name: part.state_dict() for name, part in self.parts().items()} | self._loop_entry()

    def _loop_entry(self) -> dict[str, Any]:
        return {LOOP: {**self.loop_state(), "gradients": self.open_gradients()}}

    def open_gradients(self) -> dict[str, torch.Tensor]:
        """Accumulated gradients of an open window."""
        return {name: slot.tensor.grad for name, slot in self.slots.items() if slot.tensor.grad is not None}

    def put_gradients(self, summed: Mapping[str, torch.Tensor]) -> None:
        """Restores what `open_gradients` returned."""
        for name, slot in self.slots.items():
            gradient = summed.get(name)
            slot.tensor.grad = None if gradient is None else gradient.to(slot.tensor.device).clone()

    def loop_state(self) -> dict[str, Any]:
        """State of the training loop itself, without gradients."""
        return {
            "random": dict(self.stream.states),
            "applied": [stepper.applied for stepper in self.steppers],
            "window": [[micro.total, micro.items] for micro in self.ledger.micro_batches],
            "items": self.ledger.items,
            "calls": list(self.network.calls.counts),
        }

    def restore_loop_state(self, loop: Mapping[str, Any]) -> None:
        """Restores what `loop_state` returned."""
        self.stream.replace(loop["random"])
        for stepper, applied in zip(self.steppers, loop["applied"], strict=True):
            stepper.applied = int(applied)
        window = [MicroBatch(float(total), int(items)) for total, items in loop["window"]]
        self.ledger.replace(window, int(loop["items"]))
        if len(loop["calls"]) == len(self.network.calls.counts):
            self.network.calls.counts[:] = [int(count) for count in loop["calls"]]

    def save(self, path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)
        if self.recipe.way("save") == "distributed":
            checkpoint.save(self.parts(), checkpoint_id=path / PARTS, **_ALONE)
            torch.save(self._loop_entry(), path / FILE)
        else:
            torch.save(self.snapshot(), path / FILE)

    def restore(self, path: Path) -> None:
        """Restores what `save` wrote, part by part, each by its own `load_state_dict`.

        Raises:
            ValueError: the file cannot be read, it has other parts than the run, or PyTorch refuses a part; the parts
                before the refused one are loaded then.
        """
        self._restore(path, self._load_parts)

    def restore_in(self, path: Path, order: LoadOrder) -> None:
        if order == "scaler-used":
            if self.scaler is not None:
                self.scaler.scale(torch.ones((), device=self.device))
            self.restore(path)
        else:
            self._restore(path, partial(self._load_in_order, order))

    def take(self, other: Trainer) -> None:
        run = of_same_class(self, other)
        self._load_parts({name: part.state_dict() for name, part in run.parts().items()})
        self.restore_loop_state(run.loop_state())
        self.put_gradients(run.open_gradients())

    def _restore(self, path: Path, load_parts: Callable[[Mapping[str, Any]], None]) -> None:
        file = path / FILE
        try:
            mapped = self.recipe.way("load") == "mapped"
            saved = torch.load(file, map_location="cpu", weights_only=True, mmap=mapped or None)
            if self.recipe.way("save") == "distributed":
                checkpoint.load(self.parts(), checkpoint_id=path / PARTS, **_ALONE)
            else:
                same_parts(file, saved, [*self.parts(), LOOP])
                load_parts(saved)
            self.restore_loop_state(saved[LOOP])
            self.put_gradients(saved[LOOP]["gradients"])
        except (Exception, CheckpointException) as error:  # CheckpointException is no subclass of Exception
            raise ValueError(f"{file} cannot be loaded: {error}") from error

    def _load_parts(self, saved: Mapping[str, Any]) -> None:
        assigned = self.recipe.way("load") == "assigned"
        if assigned:
            self.network.load_state_dict(saved["model"], assign=True)
            self._find_parameters()
            self.steppers = self._steppers()
        for name, part in self.parts().items():
            if not (assigned and name == "model"):
                part.load_state_dict(saved[name])

    def _load_in_order(self, order: LoadOrder, saved: Mapping[str, Any]) -> None:
        """Makes and loads the parts of a new run in this order."""
        parts = self.parts()
        if order == "optimizer-first":
            for name, part in reversed(parts.items()):
                part.load_state_dict(saved[name])
            return
        schedules = [name for name in parts if name.startswith("schedule")]
        for name, part in parts.items():
            if name not in schedules:
                part.load_state_dict(saved[name])
        for stepper, applied in zip(self.steppers, saved[LOOP]["applied"], strict=True):
            stepper.make_schedule(last_epoch=int(applied) - 1 if order == "schedule-made-there" else -1)
        if order == "schedule-made-last":
            for name in schedules:
                self.parts()[name].load_state_dict(saved[name])


_STAGERS = MappingProxyType({"stager": False, "asynchronous-stager": True})
"""Shared stagers, and whether they stage asynchronously."""
RULE = BackgroundRule("future", "own-objects", "none", "finishes")
_WITHOUT_RANKS = MappingProxyType({"no_dist": True})


class TorchValues(LiveValues):
    """Tensors, which are changed in place, and values of Python."""

    def make(self, kind: Kind, value: float, size: int) -> Any:
        if kind not in ("tensor", "view"):
            return super().make(kind, value, size)
        whole = torch.full((3 * size,), value)
        return whole[size : 2 * size] if kind == "view" else whole[:size].clone()

    def overwrite(self, kind: Kind, current: Any, value: float) -> Any:
        return current.fill_(value) if isinstance(current, torch.Tensor) else super().overwrite(kind, current, value)

    def to_array(self, kind: Kind, current: Any) -> Array:
        return super().to_array(kind, current.numpy() if isinstance(current, torch.Tensor) else current)


class GatedWriter(FileSystemWriter):
    """The writer of files, held at a gate."""

    def __init__(self, path: Path, gate: Gate) -> None:
        super().__init__(path)
        self.gate = gate

    def write_data(self, *args: Any, **named: Any) -> Any:
        self.gate.hold("data")
        return super().write_data(*args, **named)

    def finish(self, *args: Any, **named: Any) -> None:
        self.gate.hold("commit")
        super().finish(*args, **named)


def begin(tree: Any, path: Path, gate: Gate, stager: DefaultStager | None = None) -> "Future[Any]":
    """Begins a save in the background; returns its future once the values may change."""
    started = checkpoint.async_save(tree, storage_writer=GatedWriter(path, gate), async_stager=stager, **_WITHOUT_RANKS)
    if isinstance(started, Future):
        return started
    started.staging_completion.result()
    return started.upload_completion


class TorchSeries(SaveSeries):
    """Saves of one tree, each in a folder of its own."""

    def __init__(self, folder: Path, values: LiveValues, shared: str) -> None:
        self._folder, self._values = folder, values
        self._futures: list[Future[Any]] = []
        self._stager = _make_stager(asynchronous=_STAGERS[shared]) if shared in _STAGERS else None

    def save(self, step: int, gate: Gate | None = None) -> None:
        path = self._folder / str(step)
        if gate is None:
            checkpoint.save(self._values.tree, checkpoint_id=path, **_WITHOUT_RANKS)
        else:
            self._futures.append(begin(self._values.tree, path, gate, self._stager))

    def wait(self) -> None:
        while self._futures:
            self._futures.pop(0).result()

    def load(self, step: int, target: LiveValues) -> None:
        tree = target.tree
        try:
            checkpoint.load(tree, checkpoint_id=self._folder / str(step), **_WITHOUT_RANKS)
        except (Exception, CheckpointException) as error:  # CheckpointException is no subclass of Exception
            raise ValueError(f"{self._folder / str(step)} cannot be loaded: {error}") from error

    def close(self) -> None:
        if self._stager is not None:
            self._stager.close()


def _make_stager(*, asynchronous: bool) -> DefaultStager:
    """A stager in pageable memory, for machines without an accelerator."""
    return DefaultStager(StagingOptions(False, False, asynchronous, False))


SAVER = ValueSaver(
    TorchValues,
    TorchSeries,
    ("tensor", "view", "array", "list", "number"),
    ("none", *_STAGERS),
    ("data", "commit"),
    RULE,
)
"""`torch.distributed.checkpoint` without ranks."""
