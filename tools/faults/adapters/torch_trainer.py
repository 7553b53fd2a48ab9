"""Faults of transformers.Trainer, patched into its own methods."""

from __future__ import annotations

from typing import Any

import torch
from accelerate import Accelerator
from transformers import Trainer

from frameworks.torch.stacks.trainer import TransformersFramework
from tools.faults import fault


@fault(
    "https://github.com/huggingface/transformers/issues/47688", "accumulation.equals-full-batch", mode="trainer-plain"
)
class NeverDividesByTheSteps(TransformersFramework):
    """Every loss counts as one that is normalised over the window."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        Trainer.loss_is_scaled_for_ga = True


@fault("https://github.com/huggingface/transformers/issues/37766", "accumulation.weighs-items", mode="trainer-plain")
class CountsTheFirstMicroBatch(TransformersFramework):
    """The window's items are those of its first micro-batch, times the accumulation steps."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        count = Trainer._get_num_items_in_batch

        def first(self: Trainer, samples: list[Any], device: Any) -> Any:
            result = count(self, samples[:1], device)
            return result if result is None else result * len(samples)

        Trainer._get_num_items_in_batch = first


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
    """Gradients are not emptied after an update."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        prepare = Trainer._prepare_for_training

        def kept(self: Trainer, *given: Any) -> Any:
            model, loader = prepare(self, *given)
            model.zero_grad = lambda *_: None
            return model, loader

        Trainer._prepare_for_training = kept


@fault("https://github.com/mosaicml/composer/pull/1376", "resume.scaler-state", mode="trainer-plain")
class ScalerFileIsMissing(TransformersFramework):
    """A checkpoint has no file of the scaler."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        Trainer._save_scaler = lambda self, folder: None


@fault("https://github.com/NVIDIA/apex/issues/480", "resume.bit-identical", mode="trainer-plain")
class MomentsAreNotLoaded(TransformersFramework):
    """A resumed run loads weights alone."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        Trainer._load_optimizer_and_scheduler = lambda self, checkpoint: None


@fault("https://github.com/huggingface/transformers/issues/38837", "accumulation.remainder", mode="trainer-plain")
class ShortWindowsAreDividedByTheSteps(TransformersFramework):
    """A loss is divided by the accumulation steps, however many micro-batches the window has."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        step = Trainer.training_step

        def whole(self: Trainer, *given: Any) -> torch.Tensor:
            self.current_gradient_accumulation_steps = self.args.gradient_accumulation_steps
            return step(self, *given)

        Trainer.training_step = whole


@fault("https://github.com/huggingface/transformers/issues/24449", "accumulation.once-per-window", mode="trainer-plain")
class ClipsInsideWindows(TransformersFramework):
    """Gradients are clipped after every micro-batch."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        step = Trainer.training_step

        def clipped(self: Trainer, model: Any, *given: Any) -> torch.Tensor:
            loss = step(self, model, *given)
            if self.args.max_grad_norm > 0:
                torch.nn.utils.clip_grad_norm_(model.parameters(), self.args.max_grad_norm)
            return loss

        Trainer.training_step = clipped


@fault("https://github.com/wandb/wandb/issues/4369", "scaling.reports-true-loss", mode="trainer-plain")
class NormOfScaledGradients(TransformersFramework):
    """The logged norm is that of the scaled gradients."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        norm = Trainer._get_grad_norm

        def scaled(self: Trainer, *given: Any, **named: Any) -> Any:
            scaler = self.accelerator.scaler
            return norm(self, *given, **named) * (1.0 if scaler is None else scaler.get_scale())

        Trainer._get_grad_norm = scaled
