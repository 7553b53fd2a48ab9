"""Faults of Lightning, patched into its own methods."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from lightning.fabric import Fabric
from lightning.fabric.plugins.precision import MixedPrecision as FabricMixedPrecision
from lightning.fabric.strategies import Strategy
from lightning.fabric.wrappers import _FabricModule
from lightning.pytorch.callbacks import WeightAveraging
from lightning.pytorch.loops.optimization.automatic import ClosureResult, _AutomaticOptimization
from lightning.pytorch.loops.training_epoch_loop import _TrainingEpochLoop
from lightning.pytorch.plugins.precision import MixedPrecision, Precision
from lightning.pytorch.trainer.connectors.checkpoint_connector import _CheckpointConnector

from frameworks.torch.stacks.lightning.fabric import FabricFramework
from frameworks.torch.stacks.lightning.framework import LightningFramework
from tools.faults import fault


@fault(
    "https://github.com/Lightning-AI/pytorch-lightning/issues/9330",
    "scaling.unscales-before-clipping",
    "scaling.hooks-see-unscaled",
    mode="lightning",
)
class ClosureBeforeUnscaling(LightningFramework):
    """The precision plugin calls the hook before the step, and clips, before it unscales."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)

        def step(self: MixedPrecision, optimizer: Any, model: Any, closure: Callable[[], Any], **given: Any) -> Any:
            result = closure()
            self._after_closure(model, optimizer)
            if self.scaler is None:
                optimizer.step(**given)
                return result
            self.scaler.unscale_(optimizer)
            output = self.scaler.step(optimizer, **given)
            self.scaler.update()
            return output

        MixedPrecision.optimizer_step = step


@fault("https://github.com/huggingface/transformers/pull/45349", "accumulation.equals-full-batch", mode="lightning")
class DividesTheLastMicroBatchAlone(LightningFramework):
    """The loss is divided by the accumulation steps only in the micro-batch that ends a window."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        step = _AutomaticOptimization._training_step

        def undivided(self: _AutomaticOptimization, kwargs: Any) -> ClosureResult:
            result = step(self, kwargs)
            if self.trainer.fit_loop._should_accumulate() and result.closure_loss is not None:
                result.closure_loss = result.closure_loss * self.trainer.accumulate_grad_batches
            return result

        _AutomaticOptimization._training_step = undivided


@fault("https://github.com/SWivid/F5-TTS/issues/631", "accumulation.once-per-window", mode="lightning")
class AveragesEveryMicroBatch(LightningFramework):
    """The callback moves the average in every micro-batch."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)

        def moved(self: WeightAveraging, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            self._average_model.update_parameters(module)

        WeightAveraging.on_train_batch_end = moved


@fault("https://github.com/mosaicml/composer/pull/1376", "resume.scaler-state", mode="lightning")
class PluginSavesNothing(LightningFramework):
    """The precision plugin's `state_dict` is empty."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        MixedPrecision.state_dict = lambda self: {}


# from the documentation alone


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


@fault("https://github.com/huggingface/transformers/issues/581", "scaling.unscales-before-clipping", mode="lightning")
class ClipsValues(LightningFramework):
    """`gradient_clip_val` limits every element by default, and not the norm."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        Precision.clip_grad_by_norm = Precision.clip_grad_by_value


@fault("https://github.com/Lightning-AI/pytorch-lightning/issues/15462", "resume.bit-identical", mode="lightning")
class ScheduleIsNotRestored(LightningFramework):
    """`fit(ckpt_path)` leaves the schedules as they are."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        _CheckpointConnector.restore_lr_schedulers = lambda self: None


@fault("https://github.com/Lightning-AI/pytorch-lightning/issues/18510", "scaling.is-transparent", mode="fabric")
class BackwardDoesNotScale(FabricFramework):
    """`Fabric.backward` leaves the scaling of the loss out, and the step unscales all the same."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)

        def backward(self: FabricMixedPrecision, tensor: torch.Tensor, model: Any, *given: Any, **named: Any) -> None:
            if self.scaler is not None:
                self.scaler.scale(tensor.detach())
            tensor.backward(*given, **named)

        FabricMixedPrecision.backward = backward


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
        whole = Strategy.get_optimizer_state
        Strategy.get_optimizer_state = lambda self, optimizer: whole(self, optimizer) | {"state": {}}


@fault("https://github.com/Lightning-AI/pytorch-lightning/pull/17439", "autocast.layers-honour-policy", mode="fabric")
class ForwardWithoutAutocast(FabricFramework):
    """A module that `Fabric.setup` returned runs its forward pass outside of the precision's scope."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        _FabricModule.forward = lambda self, *given, **named: self._forward_module(*given, **named)
        Fabric.autocast = lambda self: torch.autocast("cpu", enabled=False)
