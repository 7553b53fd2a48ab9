"""Faults of the JAX adapter."""

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import jmp
import numpy as np
import optax
from flax import linen as nn
from flax.nnx.tracers import TraceState

from fixtures.arrays import Array
from fixtures.model import Batch
from fixtures.recipe import Adam
from frameworks.base import BaseTrainer
from frameworks.contract import RecomputeCase, RecomputeResult
from frameworks.jax import JaxFramework
from frameworks.jax.core import layers
from frameworks.jax.core.settings import Flat
from frameworks.jax.training import optimizers, steps, trainer
from frameworks.jax.training.optimizers import ScaleUpdate
from frameworks.jax.training.trainer import JaxTrainer
from tools.faults import fault, replaces


@fault("https://github.com/huggingface/transformers/pull/34191", "accumulation.weighs-items")
class MeanOfMeans(JaxFramework):
    """Each micro-batch's loss is its own mean over the number of micro-batches."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        backward = JaxTrainer._backward
        JaxTrainer._backward = lambda self, batch, _: backward(self, batch, batch.items * self.recipe.accumulation)


@fault("https://github.com/mlnomadpy/flaxchat/issues/6", "accumulation.keeps-precision")
class AccumulatesLow(JaxFramework):
    """`optax.MultiSteps` holds its sums in bfloat16."""

    @replaces(optax.MultiSteps, "__init__")
    def init_in_bfloat16(make: Any, self: optax.MultiSteps, *args: Any, accumulator_dtype: Any, **named: Any) -> None:
        make(self, *args, accumulator_dtype=jnp.bfloat16, **named)


@fault(
    "https://github.com/facebookresearch/mmf/pull/747",
    "accumulation.each-counts-once",
    "accumulation.equals-full-batch",
)
class ForgetsTheWindow(JaxFramework):
    """`optax.MultiSteps` begins its sum again with every micro-batch."""

    @replaces(optax.MultiSteps, "update")
    def update_without_sum(
        update: Any, self: optax.MultiSteps, updates: Any, state: Any, *rest: Any, **named: Any
    ) -> Any:
        return update(self, updates, state._replace(acc_grads=optax.tree.zeros_like(state.acc_grads)), *rest, **named)


@fault("https://github.com/google-research/vision_transformer/issues/286", "accumulation.fresh-dropout")
class DrawsTheSameMasks(JaxFramework):
    """The key is never split, so every micro-batch drops the same values."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        jax.random.split = lambda key, *_: (key, key)


@jax.custom_vjp
def _transpose_gradient(kernel: jax.Array) -> jax.Array:
    """The identity for kernels (height, width, inputs, filters), whose gradient has height and width exchanged."""
    return kernel


_transpose_gradient.defvjp(lambda kernel: (kernel, None), lambda _, upstream: (jnp.transpose(upstream, (1, 0, 2, 3)),))


@fault(
    "https://github.com/huggingface/candle/issues/3735",
    "autocast.float32-parity",
    names="(Convolution), gradient of weight",
)
class FilterGradientIsTransposed(JaxFramework):
    """The gradient of a convolution's filter has its two spatial axes exchanged."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)

        def convolve(inputs: jax.Array, kernel: jax.Array, *rest: Any, **named: Any) -> jax.Array:
            return jax.lax.conv_general_dilated(inputs, _transpose_gradient(kernel), *rest, **named)

        layers.nn.Conv = partial(nn.Conv, conv_general_dilated=convolve)


@fault("https://github.com/google/flax/issues/4539", "composition.shipped-parts")
class CapturedModulesMayChange(JaxFramework):
    """A compiled function changes the state of a module that it closes over, once, when it is traced."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        TraceState.is_valid = lambda _: True


@fault("https://github.com/keras-team/keras/issues/15806", "autocast.layers-honour-policy")
class ConvolutionsStayWide(JaxFramework):
    """`nn.Conv` computes in float32, whatever its `dtype`."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        make = nn.Conv

        def make_in_float32(*args: Any, dtype: Any, **named: Any) -> nn.Conv:
            return make(*args, dtype=jnp.float32, **named)

        layers.nn.Conv = make_in_float32


@fault("https://github.com/pytorch/ao/pull/1124", "master.small-update-survives", "autocast.parameters-stay-float32")
class CastsWeights(JaxFramework):
    """Parameters are made in the computing format, so small updates vanish in them."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        make = steps.Network
        steps.Network = lambda model, low, _, **rest: make(model, low, low, **rest)


@fault("https://github.com/google-deepmind/optax/issues/1754", "master.adam-epsilon-survives")
class EpsilonUnderflows(JaxFramework):
    """Adam's epsilon is rounded to float16, where it is zero."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        make = optimizers._KINDS[Adam]

        def round_epsilon(*, eps: float = 1e-8, **named: Any) -> optax.GradientTransformation:
            return make(eps=float(jnp.float16(eps)), **named)

        optimizers._KINDS = {**optimizers._KINDS, Adam: round_epsilon}


@fault("https://github.com/google-deepmind/optax/issues/1552", "master.moments-keep-precision")
class MomentsAreLow(JaxFramework):
    """Adam's first moment is held in bfloat16."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        make = partial(optimizers._KINDS[Adam], mu_dtype=jnp.bfloat16)
        optimizers._KINDS = {**optimizers._KINDS, Adam: make}


@fault("https://github.com/PaddlePaddle/Paddle/issues/62981", "recompute.no-grad-input")
class ClosedOverWeightIsConstant(JaxFramework):
    """A weight that the function closes over is treated as a constant."""

    def recompute(self, case: RecomputeCase, x: Array, w: Array, variant: str | None = None) -> RecomputeResult:
        result = super().recompute(case, x, w, variant)
        return replace(result, w=np.zeros_like(w)) if case == "no-grad-input" else result


@fault("https://github.com/PaddlePaddle/Paddle/issues/62363", "recompute.containers")
class KeywordsThroughBfloat16(JaxFramework):
    """Arrays in keyword arguments are recomputed from bfloat16 copies."""

    def recompute(self, case: RecomputeCase, x: Array, w: Array, variant: str | None = None) -> RecomputeResult:
        if case != "keyword":
            return super().recompute(case, x, w, variant)
        coarse = (np.asarray(jax.numpy.asarray(array, jax.numpy.bfloat16), np.float32) for array in (x, w))
        return replace(super().recompute(case, *coarse, variant), value=super().recompute(case, x, w, variant).value)


@fault("https://github.com/PaddlePaddle/Paddle/pull/47985", "recompute.detects-changed-weights")
class RecomputesWithChangedWeights(JaxFramework):
    """The recomputed forward reads weights that changed after the first one."""

    def recompute(self, case: RecomputeCase, x: Array, w: Array, variant: str | None = None) -> RecomputeResult:
        if case != "weights-changed":
            return super().recompute(case, x, w, variant)
        return replace(
            super().recompute("positional", x, 3 * w, variant), value=super().recompute("plain", x, w, variant).value
        )


@fault("https://github.com/pytorch/pytorch/issues/190758", "recompute.replays-dropout")
class DrawsOtherMasks(JaxFramework):
    """A run with recomputation draws its masks from a key of its own."""

    @replaces(JaxTrainer, "_backward")
    def backward_with_folded_key(
        backward: Any, self: JaxTrainer, batch: Batch, items: int
    ) -> tuple[Flat, ScaleUpdate | None, float]:
        if self.recipe.recompute is not None:
            key = jax.random.fold_in(jax.random.wrap_key_data(self.moved.key), 1)
            self.moved = self.moved._replace(key=jax.random.key_data(key))
        return backward(self, batch, items)


@fault("https://github.com/jax-ml/jax/pull/37888", "recompute.frees-activations")
class CheckpointDoesNothing(JaxFramework):
    """`nn.remat` runs its function and keeps every activation."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        nn.remat = lambda function, **_: function


@fault("https://github.com/NVIDIA/apex/issues/480", "resume.bit-identical", "resume.load-has-no-side-effects")
class MomentsNotLoaded(JaxFramework):
    """The optimizer's state stays as it was when a checkpoint is loaded."""

    @replaces(JaxTrainer, "restore")
    def partial_restore(restore: Any, self: JaxTrainer, path: Any) -> None:
        before = self.train_state.opt_state
        restore(self, path)
        self.train_state = self.train_state.replace(opt_state=before)


@fault("https://github.com/mosaicml/composer/pull/1376", "resume.scaler-state")
class LoadedScalerIsDropped(JaxFramework):
    """The loss scale is not loaded, so the run goes on with the initial one."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        trainer.optimizers.with_state = lambda scale, state, device: scale


@fault("https://github.com/vllm-project/speculators/issues/1027", "resume.random-state")
class KeyRestarts(JaxFramework):
    """The key is saved and not restored."""

    @replaces(JaxTrainer, "restore")
    def restore_without_key(restore: Any, self: JaxTrainer, path: Any) -> None:
        key = self.moved.key
        restore(self, path)
        self.moved = self.moved._replace(key=key)


@fault(
    "https://github.com/google-deepmind/optax/pull/1746",
    "scaling.skip-is-atomic",
    "scaling.detects-inf",
    "scaling.detects-nan",
)
class AppliesOverflow(JaxFramework):
    """`jmp.select_tree` takes the new state although a gradient is infinite."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        jmp.select_tree = lambda finite, new, old: new


@fault("https://github.com/deepspeedai/DeepSpeed/pull/3553", "scaling.grows-after-interval", "scaling.automaton")
class OverflowKeepsCount(JaxFramework):
    """An overflow does not reset the count of finite updates."""

    @replaces(jmp.DynamicLossScale, "adjust")
    def adjust_and_keep_count(adjust: Any, self: Any, finite: jax.Array) -> Any:
        result = adjust(self, finite)
        counter = jnp.where(finite, result.counter, self.counter)
        return jmp.DynamicLossScale(result.loss_scale, counter, self.period, self.factor)


@fault("https://github.com/NVIDIA/apex/issues/834", "scaling.stays-positive")
class ScaleHasNoFloor(JaxFramework):
    """The scale is halved with every overflow until it is zero."""

    @replaces(jmp.DynamicLossScale, "adjust")
    def adjust_without_floor(adjust: Any, self: Any, finite: jax.Array) -> Any:
        result = adjust(self, finite)
        scale = jnp.where(finite, result.loss_scale, self.loss_scale / self.factor)
        return jmp.DynamicLossScale(scale, result.counter, self.period, self.factor)


@fault(
    "https://github.com/Lightning-AI/pytorch-lightning/issues/9330",
    "scaling.unscales-before-clipping",
    "scaling.reports-true-loss",
)
class ClipsScaledGradients(JaxFramework):
    """Gradients are clipped by their global norm while they are still scaled."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        take = JaxTrainer._take_pending

        def take_and_clip(self: JaxTrainer) -> Any:
            (gradients, judged), limit = take(self), self.recipe.clip
            if limit is not None:
                gradients, _ = optax.clip_by_global_norm(limit).update(gradients, None)
            return gradients, judged

        JaxTrainer._take_pending = take_and_clip
        JaxTrainer.update = BaseTrainer.update
