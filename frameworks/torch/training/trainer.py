"""One training run, following PyTorch's automatic mixed precision examples."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path

import torch

from fixtures.arrays import Array
from fixtures.model import Batch, Window
from frameworks.base import NO_SCALER, MicroBatch, of_same_class, unscaled_in_trace
from frameworks.contract import Capability, Gradients, LayerTrace, LoadOrder, Trainer, Unsupported, Update
from frameworks.torch.core import ways
from frameworks.torch.core.arrays import to_array, whole
from frameworks.torch.core.compiling import without_buffer_donation
from frameworks.torch.core.trace import TracedTensors, modules_by_path
from frameworks.torch.training import checkpoint
from frameworks.torch.training.optimizer_probes import float16_clipped
from frameworks.torch.training.run import TorchRun
from frameworks.torch.training.scaler import constant_scale, divided, good_updates, no_unscaling, twin_of, wants_fused


class TorchTrainer(TorchRun):
    """The training loop of a run."""

    def _backward(self, losses: list[torch.Tensor], scaler: torch.amp.GradScaler | None) -> None:
        way = self.recipe.way("backward")
        if self.recipe.separate_losses:
            passes = [[loss] for loss in losses]
        else:
            passes = [losses if way in ways.SEVERAL_ROOTS else [sum(losses[1:], losses[0])]]
        for index, roots in enumerate(passes, start=1):
            self._back(roots, scaler, retain=index < len(passes))

    def _back(self, losses: list[torch.Tensor], scaler: torch.amp.GradScaler | None, *, retain: bool) -> None:
        """One backward pass; `retain` if another one through its graph follows."""
        scaled = losses if scaler is None else [scaler.scale(loss) for loss in losses]
        parameters = [slot.tensor for slot in self.slots.values() if slot.tensor.requires_grad]
        ways.back(self.recipe.way("backward"), scaled, parameters, retain=retain)

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
        with (
            self.stream.drawn() if self._draws else nullcontext(),
            without_buffer_donation() if keeping else nullcontext(),
        ):
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
        for slot in self.slots.values():
            slot.tensor.grad = None
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
        return self._finish(None, None)

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
        return self._discarded() if discard else self._finish(unscale_calls, inject)

    def _require_manual(self, unscales: bool) -> None:
        """Refuses an update that a user ends in steps of their own; `unscales` if they unscale the gradients.

        Raises:
            Unsupported: EXPLICIT_UNSCALE.
        """
        if unscales and wants_fused(self.recipe, self.scaler_kind):
            attempt = partial(float16_clipped, self.recipe.optimizer, self.device)
            raise Unsupported(Capability.EXPLICIT_UNSCALE, no_unscaling(), attempt)

    def _feed_window(self, window: Sequence[Gradients]) -> None:
        """The passes of all micro-batches of a window, each of which gives its gradients."""
        for place, mapping in enumerate(window, start=1):
            given = {name: value for name, value in mapping.items() if value is not None}
            if given:
                with self._micro_batch(last=place == len(window)):
                    self._feed(given, len(window))

    def _feed(self, gradients: Mapping[str, Array], micro_batches: int) -> None:
        """The backward pass of one of so many micro-batches that gives these gradients."""
        self._backward([self._fed_share(self._fed(gradients), micro_batches)], self.scaler)

    def _fed(self, gradients: Mapping[str, Array]) -> torch.Tensor:
        """Σ p·g, whose gradients are those that are given."""
        parts = [self.slots[name].times(value).sum() for name, value in gradients.items()]
        return sum(parts[1:], parts[0])

    def _fed_share(self, total: torch.Tensor, micro_batches: int) -> torch.Tensor:
        """The loss to back-propagate, from the `_fed` of one of so many micro-batches."""
        return total / micro_batches

    def _finish(self, unscale_calls: int | None, inject: Gradients | None) -> Update:
        before, rate = self._scale(), self.steppers[0].learning_rate
        applied = [stepper.applied for stepper in self.steppers]
        manual = self._unscaled_to_clip() if unscale_calls is None else unscale_calls
        for _ in range(manual if inject is None else max(1, manual)):
            self._unscale()
        self._add(inject or {})
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
        manual = self.recipe.way("scaling") == "unscale-first" and not wants_fused(self.recipe, self.scaler_kind)
        return 1 if self.recipe.clip is not None or manual else 0

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
        return ways.CLIPS[self.recipe.way("clip")]([slot.tensor for slot in self.slots.values()], limit)

    def _discarded(self) -> Update:
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
        ways.zero_grad(self.recipe.way("zero-grad"), (each.optimizer for each in self.steppers), self.network)

    def _scale(self) -> float:
        return 1.0 if self.scaler is None else self.scaler.get_scale()

    # the whole run

    def save(self, path: Path) -> None:
        checkpoint.save(self, path)

    def restore(self, path: Path) -> None:
        checkpoint.restore(self, path)

    def restore_in(self, path: Path, order: LoadOrder) -> None:
        checkpoint.restore_in(self, path, order)

    def take(self, other: Trainer) -> None:
        checkpoint.take(self, of_same_class(self, other))
