"""Faults of loss scaling in PyTorch."""

from __future__ import annotations

from typing import Any

import torch
from torch.amp.grad_scaler import OptState

from frameworks.contract import Gradients, Update
from frameworks.torch import TorchFramework
from frameworks.torch.training.trainer import TorchTrainer
from tools.faults import fault


@fault("https://github.com/huggingface/transformers/issues/24449", "scaling.unscales-once")
class UnscalesAgain(TorchFramework):
    """`GradScaler.unscale_` forgets that it was called, so a second call divides again."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        unscale = torch.amp.GradScaler.unscale_

        def forgetful(self: torch.amp.GradScaler, optimizer: torch.optim.Optimizer) -> None:
            self._per_optimizer_states[id(optimizer)]["stage"] = OptState.READY
            unscale(self, optimizer)

        torch.amp.GradScaler.unscale_ = forgetful


@fault(
    "https://github.com/google-deepmind/optax/pull/1746",
    "scaling.skip-is-atomic",
    "scaling.detects-inf",
    "scaling.detects-nan",
)
class AppliesOverflow(TorchFramework):
    """`GradScaler.step` runs the optimizer although a gradient is infinite."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        torch.amp.GradScaler._maybe_opt_step = lambda self, optimizer, state, *given, **named: optimizer.step()


@fault("https://github.com/deepspeedai/DeepSpeed/pull/3008", "scaling.backs-off-on-overflow", "scaling.automaton")
class OverflowKeepsScale(TorchFramework):
    """An overflow starts the count again and leaves the scale as it was."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        adjust = torch._amp_update_scale_
        torch._amp_update_scale_ = lambda s, good, found, growth, _, n: adjust(s, good, found, growth, 1.0, n)


@fault("https://github.com/pytorch/pytorch/issues/98828", "scaling.stays-finite")
class ScaleGrowsToInfinity(TorchFramework):
    """The scale grows although the product is infinite."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        adjust = torch._amp_update_scale_

        def uncapped(scale: torch.Tensor, good: torch.Tensor, found: torch.Tensor, *factors: Any) -> torch.Tensor:
            due = not found.item() and int(good) + 1 == factors[2]
            grown = scale * factors[0]
            adjust(scale, good, found, *factors)
            return scale.copy_(grown) if due else scale

        torch._amp_update_scale_ = uncapped


@fault(
    "https://github.com/Lightning-AI/pytorch-lightning/issues/9330",
    "scaling.unscales-before-clipping",
    "scaling.reports-true-loss",
)
class ClipsScaledGradients(TorchFramework):
    """`unscale_` is not called before `clip_grad_norm_`, which then sees scaled gradients."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        finish = TorchTrainer._finish

        def hasty(self: TorchTrainer, unscale_calls: int | None, inject: Gradients | None) -> Update:
            return finish(self, unscale_calls or 0, inject)

        TorchTrainer._finish = hasty


@fault("https://github.com/pytorch/pytorch/issues/99174", "scaling.detects-every-group")
class ChecksFirstGroupOnly(TorchFramework):
    """`GradScaler` looks for infinities in the first parameter group and only unscales the others."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        unscale = torch.amp.GradScaler._unscale_grads_

        def partial_check(self: torch.amp.GradScaler, optimizer: Any, inverse: torch.Tensor, *rest: Any) -> Any:
            for group in optimizer.param_groups[1:]:
                for parameter in group["params"]:
                    parameter.grad.mul_(inverse)
            first = torch.optim.SGD(optimizer.param_groups[0]["params"])
            return unscale(self, first, inverse, *rest)

        torch.amp.GradScaler._unscale_grads_ = partial_check


@fault(
    "https://github.com/pytorch/pytorch/issues/55585", "scaling.step-count-follows-updates", "scaling.skip-is-atomic"
)
class ScheduleAdvancesOnSkip(TorchFramework):
    """The scheduler steps after every attempt, the skipped ones among them."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        finish = TorchTrainer._finish

        def restless(self: TorchTrainer, *given: Any) -> Update:
            update = finish(self, *given)
            for stepper in self.steppers:
                if update.skipped and stepper.scheduler is not None:
                    stepper.scheduler.step()
            return update

        TorchTrainer._finish = restless


@fault(
    "https://github.com/PaddlePaddle/Paddle/issues/67895", "scaling.skip-leaves-no-residue", "scaling.skip-is-atomic"
)
class KeepsOverflowedGradients(TorchFramework):
    """`zero_grad` is left out after a skip, so infinite gradients stay for the next batch to be added to."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        clear = torch.optim.Optimizer.zero_grad

        def unless_spoilt(self: torch.optim.Optimizer, *given: Any, **named: Any) -> None:
            every = [p.grad for group in self.param_groups for p in group["params"] if p.grad is not None]
            if all(bool(torch.isfinite(gradient).all()) for gradient in every):
                clear(self, *given, **named)

        torch.optim.Optimizer.zero_grad = unless_spoilt


@fault("https://github.com/nerfstudio-project/nerfstudio/pull/1919", "scaling.tolerates-missing-gradients", raises=True)
class DemandsEveryGradient(TorchFramework):
    """`GradScaler` raises when a parameter has no gradient in this update."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        unscale = torch.amp.GradScaler._unscale_grads_

        def demanding(self: torch.amp.GradScaler, optimizer: Any, *rest: Any) -> Any:
            if any(parameter.grad is None for group in optimizer.param_groups for parameter in group["params"]):
                raise AssertionError("No inf checks were recorded for this optimizer.")
            return unscale(self, optimizer, *rest)

        torch.amp.GradScaler._unscale_grads_ = demanding
