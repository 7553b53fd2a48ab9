"""Faults of libraries on PyTorch, patched into their own methods."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch  # isort: skip
from accelerate import Accelerator, accelerator
from accelerate.optimizer import AcceleratedOptimizer
from accelerate.scheduler import AcceleratedScheduler

from frameworks.torch.keras.framework import KerasOnTorch  # imported first: it chooses Keras' backend
from frameworks.torch.stacks.accelerate import AccelerateFramework
from tools.faults import fault, replaces

import keras  # isort: skip
from keras.src.backend.torch.optimizers import torch_adam  # isort: skip

from lightning.fabric import Fabric
from lightning.fabric.plugins.precision import MixedPrecision as FabricMixedPrecision
from lightning.fabric.strategies import Strategy
from lightning.fabric.wrappers import _FabricModule
from lightning.pytorch.loops.optimization.automatic import ClosureResult, _AutomaticOptimization
from lightning.pytorch.loops.training_epoch_loop import _TrainingEpochLoop
from lightning.pytorch.plugins.precision import MixedPrecision
from lightning.pytorch.trainer.connectors.checkpoint_connector import _CheckpointConnector
from transformers import Trainer

from frameworks.torch.stacks.fabric import FabricFramework
from frameworks.torch.stacks.lightning import LightningFramework
from frameworks.torch.stacks.trainer import TransformersFramework


@fault("https://github.com/huggingface/transformers/pull/45349", "accumulation.equals-full-batch", mode="accelerate")
class LastMicroBatchIsNotDivided(AccelerateFramework):
    """`backward` leaves out the division by the accumulation steps where gradients are synchronised."""

    @replaces(Accelerator, "backward")
    def scale_and_backward(backward: Any, self: Accelerator, loss: torch.Tensor, **kwargs: Any) -> None:
        backward(self, loss * (self.gradient_accumulation_steps if self.sync_gradients else 1), **kwargs)


@fault(
    "https://github.com/Lightning-AI/pytorch-lightning/issues/18089",
    "scaling.unscales-before-clipping",
    mode="accelerate",
)
class ClipsBeforeUnscaling(AccelerateFramework):
    """`clip_grad_norm_` does not unscale."""

    @replaces(Accelerator, "clip_grad_norm_")
    def clip_norm(_: Any, self: Accelerator, parameters: Any, max_norm: float, norm_type: float = 2) -> torch.Tensor:
        return torch.nn.utils.clip_grad_norm_(parameters, max_norm, norm_type)


@fault("https://github.com/facebookresearch/mmf/pull/747", "accumulation.each-counts-once", mode="accelerate")
class ZeroesEveryMicroBatch(AccelerateFramework):
    """A prepared optimizer's `zero_grad` acts in every micro-batch."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        AcceleratedOptimizer.zero_grad = lambda self, set_to_none=None: self.optimizer.zero_grad()


@fault("https://github.com/mosaicml/composer/pull/1376", "resume.scaler-state", mode="accelerate")
class ScalerIsNotLoaded(AccelerateFramework):
    """`load_state` leaves the scaler's state out."""

    @replaces(accelerator, "load_accelerator_state")
    def load_without_scaler(load: Any, *args: Any, **named: Any) -> dict[str, Any]:
        return load(*args[:6], None, *args[7:], **named)


@fault(
    "https://github.com/huggingface/accelerate/issues/1050", "accumulation.nothing-before-boundary", mode="accelerate"
)
class UpdatesOneMicroBatchEarly(AccelerateFramework):
    """Gradients are synchronised one micro-batch before the window's end."""

    @replaces(Accelerator, "_do_sync")
    def sync_early(_: Any, self: Accelerator) -> None:
        self.step += 1
        steps = self.gradient_state.num_steps
        self.gradient_state._set_sync_gradients((self.step + 1) % steps == 0)


@fault(
    "https://github.com/Lightning-AI/pytorch-lightning/issues/17544", "accumulation.once-per-window", mode="accelerate"
)
class ScheduleStepsEveryMicroBatch(AccelerateFramework):
    """A prepared schedule steps in every micro-batch."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        AcceleratedScheduler.step = lambda self, *args: self.scheduler.step(*args)


@fault(
    "https://github.com/Lightning-AI/pytorch-lightning/issues/5558",
    "scaling.skip-is-atomic",
    "scaling.step-count-follows-updates",
    mode="accelerate",
)
class ScheduleStepsOnASkip(AccelerateFramework):
    """A prepared schedule steps though the optimizer's step was skipped."""

    @replaces(AcceleratedScheduler, "step")
    def step_on_sync(_: Any, self: AcceleratedScheduler, *args: Any) -> None:
        if self.gradient_state.sync_gradients:
            self.scheduler.step(*args)


@fault("https://github.com/huggingface/accelerate/issues/4242", "scaling.skip-is-reported", mode="accelerate")
class SkipIsRememberedForGood(AccelerateFramework):
    """`step_was_skipped` stays True after the first skip."""

    @replaces(AcceleratedOptimizer, "step")
    def step_and_remember(step: Any, self: AcceleratedOptimizer, *args: Any) -> None:
        before = self._is_overflow
        step(self, *args)
        self._is_overflow |= before


@fault("https://github.com/vllm-project/speculators/issues/1027", "resume.random-state", mode="accelerate")
class RandomStateIsNotLoaded(AccelerateFramework):
    """`load_state` leaves the random state of PyTorch as it is."""

    @replaces(accelerator, "load_accelerator_state")
    def load_and_keep_state(load: Any, *args: Any, **named: Any) -> dict[str, Any]:
        state = torch.get_rng_state()
        try:
            return load(*args, **named)
        finally:
            torch.set_rng_state(state)


@fault("https://github.com/huggingface/accelerate/issues/2016", "resume.bit-identical", mode="accelerate")
class ScheduleIsNotLoaded(AccelerateFramework):
    """`load_state` leaves schedules as they are."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        AcceleratedScheduler.load_state_dict = lambda self, state: None


@fault("https://github.com/deeplearning4j/nd4j/pull/1227", "master.counts-every-update", mode="keras")
class CorrectsByThePreviousUpdate(KerasOnTorch):
    """Adam's bias correction counts the updates before this one."""

    @replaces(torch_adam.Adam, "_parallel_update_step")
    def update_with_previous_count(update: Any, self: Any, *args: Any) -> None:
        self._iterations.assign_sub(1)
        update(self, *args)
        self._iterations.assign_add(1)


@fault("https://github.com/petuum/adaptdl/pull/26", "accumulation.once-per-window", mode="keras")
class ClipsTheSumOfTheWindow(KerasOnTorch):
    """The sum of a window's gradients is clipped, and its mean is taken afterwards."""

    @replaces(keras.optimizers.Optimizer, "_clip_gradients")
    def clip_sum(clip: Any, self: Any, gradients: list[torch.Tensor]) -> list[torch.Tensor]:
        steps = self.gradient_accumulation_steps or 1
        return [gradient / steps for gradient in clip(self, [gradient * steps for gradient in gradients])]


@fault("https://github.com/deepspeedai/DeepSpeed/pull/8588", "accumulation.scale-is-constant-in-window", mode="keras")
class UnscalesByTheGrownScale(KerasOnTorch):
    """In the update at which the scale grows, gradients are divided by the grown scale."""

    @replaces(keras.optimizers.LossScaleOptimizer, "_stateful_handle_finite_grads")
    def update_by_grown_scale(update: Any, self: Any, gradients: list[Any], variables: list[Any]) -> None:
        grows = int(self.step_counter) == self.dynamic_growth_steps - 1
        update(self, [g if g is None or not grows else g / 2.0 for g in gradients], variables)


@fault(
    "https://github.com/Lightning-AI/pytorch-lightning/issues/9330",
    "scaling.unscales-before-clipping",
    "scaling.hooks-see-unscaled",
    mode="lightning",
)
class ClosureBeforeUnscaling(LightningFramework):
    """The precision plugin calls the hook before the step, and clips, before it unscales."""

    @replaces(MixedPrecision, "optimizer_step")
    def step(
        _: Any, self: MixedPrecision, optimizer: Any, model: Any, closure: Callable[[], Any], **kwargs: Any
    ) -> Any:
        result = closure()
        self._after_closure(model, optimizer)
        if self.scaler is None:
            optimizer.step(**kwargs)
            return result
        self.scaler.unscale_(optimizer)
        output = self.scaler.step(optimizer, **kwargs)
        self.scaler.update()
        return output


@fault("https://github.com/huggingface/transformers/pull/45349", "accumulation.equals-full-batch", mode="lightning")
class DividesTheLastMicroBatchAlone(LightningFramework):
    """The loss is divided by the accumulation steps only in the micro-batch that ends a window."""

    @replaces(_AutomaticOptimization, "_training_step")
    def step_and_scale(step: Any, self: _AutomaticOptimization, kwargs: Any) -> ClosureResult:
        result = step(self, kwargs)
        if self.trainer.fit_loop._should_accumulate() and result.closure_loss is not None:
            result.closure_loss = result.closure_loss * self.trainer.accumulate_grad_batches
        return result


@fault("https://github.com/mosaicml/composer/pull/1376", "resume.scaler-state", mode="lightning")
class PluginSavesNothing(LightningFramework):
    """The precision plugin's `state_dict` is empty."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        MixedPrecision.state_dict = lambda self: {}


@fault("https://github.com/facebookresearch/mmf/pull/747", "accumulation.each-counts-once", mode="lightning")
class ZeroesInEveryMicroBatch(LightningFramework):
    """`optimizer_zero_grad` is called before the backward pass of every micro-batch."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        zero = _AutomaticOptimization._make_zero_grad_fn
        _AutomaticOptimization._make_zero_grad_fn = lambda self, batch_idx, optimizer: zero(self, 0, optimizer)


@fault(
    "https://github.com/Lightning-AI/pytorch-lightning/issues/1476", "accumulation.once-per-window", mode="lightning"
)
class SchedulesEveryMicroBatch(LightningFramework):
    """A schedule of the interval "step" steps after every micro-batch."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        _TrainingEpochLoop.update_lr_schedulers = lambda self, interval, update_plateau_schedulers: (
            self._update_learning_rates(interval=interval, update_plateau_schedulers=update_plateau_schedulers)
        )


@fault("https://github.com/hpcaitech/ColossalAI/issues/1028", "accumulation.remainder", mode="lightning")
class DropsTheLastWindow(LightningFramework):
    """The epoch's last window is not applied if it is short."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        _TrainingEpochLoop._should_accumulate = lambda self: not self._accumulated_batches_reached()


@fault("https://github.com/Lightning-AI/pytorch-lightning/issues/15462", "resume.bit-identical", mode="lightning")
class ScheduleIsNotRestored(LightningFramework):
    """`fit(ckpt_path)` leaves the schedules as they are."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        _CheckpointConnector.restore_lr_schedulers = lambda self: None


@fault("https://github.com/Lightning-AI/pytorch-lightning/issues/18510", "scaling.is-transparent", mode="fabric")
class BackwardDoesNotScale(FabricFramework):
    """`Fabric.backward` leaves the scaling of the loss out, and the step unscales all the same."""

    @replaces(FabricMixedPrecision, "backward")
    def backward(
        _: Any, self: FabricMixedPrecision, tensor: torch.Tensor, model: Any, *args: Any, **named: Any
    ) -> None:
        if self.scaler is not None:
            self.scaler.scale(tensor.detach())
        tensor.backward(*args, **named)


@fault(
    "https://github.com/Lightning-AI/pytorch-lightning/issues/18089", "scaling.unscales-before-clipping", mode="fabric"
)
class FabricClipsScaledGradients(FabricFramework):
    """`Fabric.clip_gradients` does not unscale."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        FabricMixedPrecision.unscale_gradients = lambda self, optimizer: None


@fault("https://github.com/NVIDIA/apex/issues/480", "resume.bit-identical", mode="fabric")
class OptimizerIsNotSaved(FabricFramework):
    """`Fabric.save` writes an optimizer's settings without its state."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        get_state = Strategy.get_optimizer_state
        Strategy.get_optimizer_state = lambda self, optimizer: get_state(self, optimizer) | {"state": {}}


@fault("https://github.com/Lightning-AI/pytorch-lightning/pull/17439", "autocast.layers-honour-policy", mode="fabric")
class ForwardWithoutAutocast(FabricFramework):
    """A module that `Fabric.setup` returned runs its forward pass outside of the precision's scope."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        _FabricModule.forward = lambda self, *args, **named: self._forward_module(*args, **named)
        Fabric.autocast = lambda self: torch.autocast("cpu", enabled=False)


@fault(
    "https://github.com/huggingface/transformers/issues/47688", "accumulation.equals-full-batch", mode="trainer-plain"
)
class NeverDividesByTheSteps(TransformersFramework):
    """Losses are treated as normalised over the window and are not divided by the steps."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        Trainer.loss_is_scaled_for_ga = True


@fault("https://github.com/huggingface/transformers/issues/37766", "accumulation.weighs-items", mode="trainer-plain")
class CountsTheFirstMicroBatch(TransformersFramework):
    """The window's items are those of its first micro-batch, times the accumulation steps."""

    @replaces(Trainer, "_get_num_items_in_batch")
    def count_first(count: Any, self: Trainer, samples: list[Any], device: Any) -> Any:
        result = count(self, samples[:1], device)
        return result if result is None else result * len(samples)


@fault(
    "https://github.com/huggingface/accelerate/issues/4242",
    "scaling.step-count-follows-updates",
    "scaling.skip-is-reported",
    mode="trainer-plain",
)
class SkipsAreNotNoticed(TransformersFramework):
    """`optimizer_step_was_skipped` is always False."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        Accelerator.optimizer_step_was_skipped = property(lambda self: False)


@fault(
    "https://github.com/huggingface/transformers/issues/39215",
    "resume.random-state",
    "resume.data-position",
    mode="trainer-plain",
)
class RandomStateStays(TransformersFramework):
    """A resumed run does not restore the random state."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        Trainer._load_rng_state = lambda self, checkpoint: None


@fault("https://github.com/facebookresearch/mmf/pull/747", "accumulation.each-counts-once", mode="trainer-plain")
class KeepsTheGradients(TransformersFramework):
    """Gradients are not cleared after an update."""

    @replaces(Trainer, "_prepare_for_training")
    def prepare_without_zero_grad(prepare: Any, self: Trainer, *args: Any) -> Any:
        model, loader = prepare(self, *args)
        model.zero_grad = lambda *_: None
        return model, loader


@fault("https://github.com/mosaicml/composer/pull/1376", "resume.scaler-state", mode="trainer-plain")
class ScalerFileIsMissing(TransformersFramework):
    """A checkpoint has no file of the scaler."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        Trainer._save_scaler = lambda self, folder: None


@fault("https://github.com/NVIDIA/apex/issues/480", "resume.bit-identical", mode="trainer-plain")
class MomentsAreNotLoaded(TransformersFramework):
    """A resumed run loads the weights only."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        Trainer._load_optimizer_and_scheduler = lambda self, checkpoint: None


@fault("https://github.com/huggingface/transformers/issues/38837", "accumulation.remainder", mode="trainer-plain")
class ShortWindowsAreDividedByTheSteps(TransformersFramework):
    """A loss is divided by the accumulation steps, however many micro-batches the window has."""

    @replaces(Trainer, "training_step")
    def divide_by_all_steps(step: Any, self: Trainer, *args: Any) -> torch.Tensor:
        self.current_gradient_accumulation_steps = self.args.gradient_accumulation_steps
        return step(self, *args)


@fault("https://github.com/huggingface/transformers/issues/24449", "accumulation.once-per-window", mode="trainer-plain")
class ClipsInsideWindows(TransformersFramework):
    """Gradients are clipped after every micro-batch."""

    @replaces(Trainer, "training_step")
    def step_and_clip(step: Any, self: Trainer, model: Any, *args: Any) -> torch.Tensor:
        loss = step(self, model, *args)
        if self.args.max_grad_norm > 0:
            torch.nn.utils.clip_grad_norm_(model.parameters(), self.args.max_grad_norm)
        return loss


@fault("https://github.com/wandb/wandb/issues/4369", "scaling.reports-true-loss", mode="trainer-plain")
class NormOfScaledGradients(TransformersFramework):
    """The logged norm is that of the scaled gradients."""

    @replaces(Trainer, "_get_grad_norm")
    def scale_norm(norm: Any, self: Trainer, *args: Any, **named: Any) -> Any:
        scaler = self.accelerator.scaler
        return norm(self, *args, **named) * (1.0 if scaler is None else scaler.get_scale())
