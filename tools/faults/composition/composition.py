"""Faults that show only where two techniques meet."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fixtures.arrays import Array
from fixtures.models import scalar
from fixtures.recipe import SGD, Recipe
from frameworks.contract import Attempt, Capability
from frameworks.reference import ReferenceFramework
from frameworks.reference.core.tensor import Tensor
from frameworks.reference.training.decisions import Arrays
from frameworks.reference.training.trainer import ReferenceTrainer
from tools.faults import fault


@fault("https://github.com/PaddlePaddle/Paddle/pull/59611", "composition.pairs")
class ClipLostUnderMasters(ReferenceTrainer):
    """Where the optimizer holds master weights, the clip setting stays with the optimizer inside and is never used."""

    def clip(self, gradients: Arrays) -> Arrays:
        return gradients if self.recipe.precision.level == "O2" else super().clip(gradients)


@fault("https://github.com/PaddlePaddle/Paddle/pull/57537", "composition.pairs")
class ClipLostWithDecay(ReferenceTrainer):
    """Only optimizers without decoupled weight decay clip."""

    def clip(self, gradients: Arrays) -> Arrays:
        return gradients if hasattr(self.recipe.optimizer, "weight_decay") else super().clip(gradients)


@fault("https://github.com/pytorch/pytorch/pull/94060", "composition.pairs")
class AdamUnscalesWhatClippingUnscaled(ReferenceTrainer):
    """Adam's step divides the gradients by the scale again where they were unscaled for clipping."""

    def clip(self, gradients: Arrays) -> Arrays:
        clipped = super().clip(gradients)
        if self.scaler is None or self.recipe.clip is None or isinstance(self.recipe.optimizer, SGD):
            return clipped
        return {name: self.unscale(name, gradient) for name, gradient in clipped.items()}


@fault("https://github.com/huggingface/transformers/issues/24449", "composition.pairs")
class ClippingUnscalesEveryMicroBatch(ReferenceTrainer):
    """With clipping and accumulation the gradients are divided by the scale once a micro-batch."""

    def unscale(self, name: str, gradient: Array) -> Array:
        once = super().unscale(name, gradient)
        clipped = self.recipe.clip is not None
        return super().unscale(name, once) if clipped and self.recipe.accumulation > 1 else once


@fault("https://github.com/pytorch/pytorch/issues/73784", "composition.pairs")
class RecomputedMicroBatchesOverwrite(ReferenceTrainer):
    """Under recomputation a micro-batch's gradient takes the accumulator's place instead of joining it."""

    def accumulate_gradient(self, name: str, gradient: Array) -> None:
        if self.recipe.recompute is not None:
            self.window.gradients.pop(name, None)
        super().accumulate_gradient(name, gradient)


@fault("https://github.com/keras-team/keras/pull/21233", "composition.pairs")
class StaticScaleNotUndoneInBfloat16(ReferenceTrainer):
    """In bfloat16 the loss is multiplied by a static scale that the optimizer takes for 1."""

    def unscale(self, name: str, gradient: Array) -> Array:
        assert self.scaler is not None
        low = self.recipe.precision.format == "bfloat16"
        return gradient if low and not self.scaler.dynamic else super().unscale(name, gradient)


class _Unclipped(ReferenceTrainer):
    def clip(self, gradients: Arrays) -> Arrays:
        return gradients


@fault("https://github.com/PaddlePaddle/Paddle/pull/59611", "composition.declarations-hold", "composition.pairs")
class ClipIsTakenAndNeverUsed(ReferenceFramework):
    """The clip setting is accepted and lost, whatever it is combined with."""

    trainer_class = _Unclipped

    def attempts(self) -> Mapping[Capability, Attempt]:
        return {**super().attempts(), Capability.CLIP: self._clips}

    def _clips(self) -> bool:
        run = self.run(scalar(), Recipe(SGD(0.5), clip=1.0))
        run.apply_gradients({name: np.full(shape, 8.0) for name, shape in run.model.parameter_shapes().items()})
        return bool(run.parameters()["0.output.bias"][0] > -1.0)


@fault("https://github.com/Lightning-AI/pytorch-lightning/issues/6988", "composition.library-adds-nothing")
class DrawsBeforeTheFirstBatch(ReferenceTrainer):
    """A validation pass that nobody asked for moves the random state before the first update."""

    def draw_mask(self, shape: tuple[int, ...], rate: float) -> Array:
        if not self.draws:
            self.draws += 1
        return super().draw_mask(shape, rate)


@fault("https://github.com/AI-Hypercomputer/torchprime/pull/286", "composition.library-adds-nothing")
class ClipsByDefault(ReferenceTrainer):
    """Gradients are clipped at a norm of 1 where the recipe asks for no clipping."""

    def clip(self, gradients: Arrays) -> Arrays:
        norm = self.gradient_norm(gradients)
        if self.recipe.clip is not None or norm <= 1.0:
            return super().clip(gradients)
        return {name: gradient * np.float32(1.0 / norm) for name, gradient in gradients.items()}


@fault("https://github.com/huggingface/accelerate/issues/1050", "composition.two-runs-in-a-process")
class StepsOfTheLastRun(ReferenceTrainer):
    """All runs of a process update after as many micro-batches as the last one that was made."""

    last_steps = 1

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        type(self).last_steps = self.recipe.accumulation

    def normalise(self, loss: Tensor, batch_items: int, window_items: int) -> Tensor:
        return super().normalise(loss, batch_items, window_items * self.last_steps // self.recipe.accumulation)


@fault("https://github.com/pytorch/pytorch/issues/164929", "composition.ways")
class OtherNormForgetsParts(ReferenceTrainer):
    """The other way to the norm takes the largest part for the whole."""

    def gradient_norm(self, gradients: Mapping[str, Array]) -> float:
        norm = super().gradient_norm
        if self.recipe.way("clip") != "by-parts":
            return norm(gradients)
        return max(norm({name: gradient}) for name, gradient in gradients.items())


@fault("https://github.com/anemoi-labs/anemoi-core/issues/1373", "composition.ways")
class CompressedFileHasNoMoments(ReferenceTrainer):
    """The other way to save leaves out the optimizer's moments, and a load takes zeros for them."""

    def save_state(self) -> Arrays:
        state = super().save_state()
        if self.recipe.way("save") != "compressed":
            return state
        return {name: value * 0 if name.startswith("slot.") else value for name, value in state.items()}


@fault("https://github.com/deepspeedai/DeepSpeed/issues/8224", "composition.ways")
class OtherNormIsNotChosen(ReferenceTrainer):
    """The option that asks for the other way to the norm is accepted and ignored."""

    def gradient_norm(self, gradients: Mapping[str, Array]) -> float:
        recipe = self.recipe
        self.recipe = recipe.replace(ways=())
        try:
            return super().gradient_norm(gradients)
        finally:
            self.recipe = recipe
