"""Faults of accelerate, patched into its own methods."""

from __future__ import annotations

from typing import Any

import torch
from accelerate import Accelerator, accelerator
from accelerate.optimizer import AcceleratedOptimizer
from accelerate.scheduler import AcceleratedScheduler

from frameworks.torch.stacks.accelerate import AccelerateFramework
from tools.faults import fault


@fault("https://github.com/huggingface/transformers/pull/45349", "accumulation.equals-full-batch", mode="accelerate")
class LastMicroBatchIsNotDivided(AccelerateFramework):
    """`backward` leaves out the division by the accumulation steps where gradients are synchronised."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        backward = Accelerator.backward

        def undivided(self: Accelerator, loss: torch.Tensor, **given: Any) -> None:
            backward(self, loss * (self.gradient_accumulation_steps if self.sync_gradients else 1), **given)

        Accelerator.backward = undivided


@fault(
    "https://github.com/Lightning-AI/pytorch-lightning/issues/18089",
    "scaling.unscales-before-clipping",
    mode="accelerate",
)
class ClipsBeforeUnscaling(AccelerateFramework):
    """`clip_grad_norm_` does not unscale."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)

        def clipped(self: Accelerator, parameters: Any, max_norm: float, norm_type: float = 2) -> torch.Tensor:
            return torch.nn.utils.clip_grad_norm_(parameters, max_norm, norm_type)

        Accelerator.clip_grad_norm_ = clipped


@fault("https://github.com/facebookresearch/mmf/pull/747", "accumulation.each-counts-once", mode="accelerate")
class ZeroesEveryMicroBatch(AccelerateFramework):
    """A prepared optimizer's `zero_grad` acts in every micro-batch."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        AcceleratedOptimizer.zero_grad = lambda self, set_to_none=None: self.optimizer.zero_grad()


@fault("https://github.com/mosaicml/composer/pull/1376", "resume.scaler-state", mode="accelerate")
class ScalerIsNotLoaded(AccelerateFramework):
    """`load_state` leaves the scaler's state out."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        load = accelerator.load_accelerator_state

        def without(*given: Any, **named: Any) -> dict[str, Any]:
            return load(*given[:6], None, *given[7:], **named)

        accelerator.load_accelerator_state = without


@fault(
    "https://github.com/huggingface/accelerate/issues/1050", "accumulation.nothing-before-boundary", mode="accelerate"
)
class UpdatesOneMicroBatchEarly(AccelerateFramework):
    """Gradients are synchronised one micro-batch before the window's end."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)

        def early(self: Accelerator) -> None:
            self.step += 1
            steps = self.gradient_state.num_steps
            self.gradient_state._set_sync_gradients((self.step + 1) % steps == 0)

        Accelerator._do_sync = early


@fault(
    "https://github.com/Lightning-AI/pytorch-lightning/issues/17544", "accumulation.once-per-window", mode="accelerate"
)
class ScheduleStepsEveryMicroBatch(AccelerateFramework):
    """A prepared schedule steps in every micro-batch."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        AcceleratedScheduler.step = lambda self, *given: self.scheduler.step(*given)


@fault(
    "https://github.com/Lightning-AI/pytorch-lightning/issues/5558",
    "scaling.skip-is-atomic",
    "scaling.step-count-follows-updates",
    mode="accelerate",
)
class ScheduleStepsOnASkip(AccelerateFramework):
    """A prepared schedule steps though the optimizer's step was skipped."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)

        def stepped(self: AcceleratedScheduler, *given: Any) -> None:
            if self.gradient_state.sync_gradients:
                self.scheduler.step(*given)

        AcceleratedScheduler.step = stepped


@fault("https://github.com/huggingface/accelerate/issues/4242", "scaling.skip-is-reported", mode="accelerate")
class SkipIsRememberedForGood(AccelerateFramework):
    """`step_was_skipped` stays True after the first skip."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        step = AcceleratedOptimizer.step

        def kept(self: AcceleratedOptimizer, *given: Any) -> None:
            before = self._is_overflow
            step(self, *given)
            self._is_overflow |= before

        AcceleratedOptimizer.step = kept


@fault("https://github.com/vllm-project/speculators/issues/1027", "resume.random-state", mode="accelerate")
class RandomStateIsNotLoaded(AccelerateFramework):
    """`load_state` leaves the random state of PyTorch as it is."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        load = accelerator.load_accelerator_state

        def kept(*given: Any, **named: Any) -> dict[str, Any]:
            state = torch.get_rng_state()
            try:
                return load(*given, **named)
            finally:
                torch.set_rng_state(state)

        accelerator.load_accelerator_state = kept


@fault("https://github.com/huggingface/accelerate/issues/2016", "resume.bit-identical", mode="accelerate")
class ScheduleIsNotLoaded(AccelerateFramework):
    """`load_state` leaves schedules as they are."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        AcceleratedScheduler.load_state_dict = lambda self, state: None
