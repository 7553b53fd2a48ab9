"""Faults of the PyTorch adapter."""

from functools import partial, wraps
from typing import Any
from unittest.mock import patch

import torch
from torch.amp.grad_scaler import OptState
from torch.nn import functional
from torch.utils import checkpoint
from torch.utils.checkpoint import CheckpointFunction

from fixtures.arrays import Array
from fixtures.model import Model
from fixtures.recipe import Recipe
from frameworks.contract import Gradients, Update
from frameworks.torch import TorchFramework
from frameworks.torch.core import operations, settings
from frameworks.torch.core.operations import OPERATIONS
from frameworks.torch.core.settings import DTYPES
from frameworks.torch.training.trainer import LOOP, TorchTrainer
from tools.faults import fault, replaces


@fault(
    "https://github.com/facebookresearch/mmf/pull/747",
    "accumulation.each-counts-once",
    "accumulation.equals-full-batch",
)
class ZeroesInsideWindow(TorchFramework):
    """`zero_grad` is called before the backward pass of every micro-batch."""

    @replaces(TorchTrainer, "accumulate")
    def zero_and_accumulate(accumulate: Any, self: TorchTrainer, *args: Any) -> float:
        self._zero_gradients()
        return accumulate(self, *args)


@fault("https://github.com/huggingface/transformers/pull/34191", "accumulation.weighs-items")
class MeanOfMeans(TorchFramework):
    """Each micro-batch's loss is its own mean over the number of micro-batches."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        run = TorchTrainer._pass
        TorchTrainer._pass = lambda self, batch, _, scaler: run(
            self, batch, batch.items * self.recipe.accumulation, scaler
        )


class _TransposedGradient(torch.autograd.Function):
    """The identity for filters (F, C, size, size), whose gradient has its last two axes exchanged."""

    @staticmethod
    def forward(_: Any, weight: torch.Tensor) -> torch.Tensor:
        return weight.view_as(weight)

    @staticmethod
    def backward(_: Any, *gradients: torch.Tensor) -> torch.Tensor:
        return gradients[0].transpose(2, 3).contiguous()


@fault(
    "https://github.com/nntrainer/nntrainer/issues/705",
    "autocast.float32-parity",
    names="(Convolution), gradient of weight",
)
class FilterGradientIsTransposed(TorchFramework):
    """The gradient of a convolution's filters has height and width exchanged."""

    @replaces(torch.nn.Conv2d, "_conv_forward")
    def convolve_transposed(
        convolve: Any, self: torch.nn.Conv2d, x: torch.Tensor, weight: torch.Tensor, bias: Any
    ) -> torch.Tensor:
        return convolve(self, x, _TransposedGradient.apply(weight), bias)


@fault("https://github.com/PaddlePaddle/Paddle/issues/79145", "composition.control-flow")
class CompiledUpdatesInPlaceAreLost(TorchFramework):
    """In compiled code `Tensor.add_` returns the sum without changing its tensor."""

    @replaces(torch, "compile")
    def compile_out_of_place(compiled: Any, function: Any, **options: Any) -> Any:
        compiled_function = compiled(function, **options)

        def call(*args: Any) -> Any:
            with patch.object(torch.Tensor, "add_", torch.Tensor.add):
                return compiled_function(*args)

        return call


@fault(
    "https://github.com/pytorch/pytorch/pull/100811",
    "optimizer.implementations-agree",
    "accumulation.groups-change-nothing",
)
class ForeachLeavesTheTail(TorchFramework):
    """An operation on a list of tensors leaves out the last where the list is no multiple of four."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        for name in ("_foreach_add_", "_foreach_addcdiv_"):
            setattr(torch, name, _all_but_the_last(getattr(torch, name)))


def _all_but_the_last(operation: Any) -> Any:
    @wraps(operation)
    def drop_last(*args: Any, **named: Any) -> None:
        odd = len(args[0]) % 4
        lists = [value[:-1] if odd and isinstance(value, list | tuple) else value for value in args]
        if lists[0]:
            operation(*lists, **named)

    return drop_last


@fault("https://github.com/flagos-ai/FlagGems/issues/4988", "optimizer.implementations-agree", "master.decay-of-nobody")
class FusedDecayIsCoupled(TorchFramework):
    """Fused AdamW adds its decay to the gradient, as Adam does."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        torch._fused_adamw_ = torch._fused_adam_


@fault(
    "https://github.com/pytorch/pytorch/issues/125186",
    "autocast.matmul-is-low",
    "autocast.backward-in-forward-precision",
)
class ScopeForgetsFormat(TorchFramework):
    """`torch.autocast` ignores its format and runs in the device's default one."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        scope = torch.autocast
        torch.autocast = lambda device, dtype=None, enabled=True: scope(device, enabled=enabled)


@fault("https://github.com/PaddlePaddle/Paddle/pull/47985", "autocast.scope-restored")
class ScopeLeaksThroughExceptions(TorchFramework):
    """`torch.autocast` restores nothing when an exception leaves its scope."""

    @replaces(torch.autocast, "__exit__")
    def exit_without_restoring(leave: Any, self: torch.autocast, kind: Any, *rest: Any) -> Any:
        return None if kind is not None else leave(self, kind, *rest)


def call_without_autocast(function: Any, *args: Any, **named: Any) -> torch.Tensor:
    """Calls the function in the format of its arguments, without autocast."""
    with torch.autocast("cpu", enabled=False):
        return function(*args, **named)


@fault("https://github.com/pytorch/pytorch/pull/82196", "autocast.loss-is-wide")
class LossInLowPrecision(TorchFramework):
    """Losses are on no list of float32 operations, so they keep the format of their inputs."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        for name in ("cross_entropy", "mse_loss"):
            setattr(functional, name, partial(call_without_autocast, getattr(functional, name)))
        OPERATIONS.update(cross_entropy=functional.cross_entropy, squared_error=functional.mse_loss)


@fault("https://github.com/pytorch/ao/pull/1124", "master.small-update-survives", "autocast.parameters-stay-float32")
class CastsWeights(TorchFramework):
    """Level O1 casts the module itself, so small updates vanish in low-precision weights."""

    def trainer(self, model: Model, recipe: Recipe, weights: dict[str, Array] | None = None) -> TorchTrainer:
        trainer = super().trainer(model, recipe, weights)
        if recipe.precision.level == "O1":
            trainer.network.to(DTYPES[recipe.precision.format])
        return trainer


@fault("https://github.com/google-deepmind/optax/issues/1754", "master.adam-epsilon-survives")
class EpsilonUnderflows(TorchFramework):
    """Adam's epsilon is rounded to float16, where it is zero."""

    @replaces(torch.optim.Adam, "__init__")
    def round_epsilon(make: Any, self: torch.optim.Adam, *args: Any, eps: float = 1e-8, **named: Any) -> None:
        make(self, *args, eps=float(torch.tensor(eps, dtype=torch.float16)), **named)


@fault("https://github.com/ankanbhunia/PIDM/pull/66", "recompute.replays-dropout", "recompute.random-stream-unmoved")
class RedrawsDropout(TorchFramework):
    """`checkpoint` is called with `preserve_rng_state=False`."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        checkpoint.checkpoint = partial(checkpoint.checkpoint, preserve_rng_state=False)


@fault("https://github.com/pytorch/pytorch/pull/71169", "recompute.replays-autocast")
class RecomputesInDefaultFormat(TorchFramework):
    """The reentrant `checkpoint` replays the forward pass in a CPU's default format, whatever its scope had."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        replay = CheckpointFunction.backward

        def replay_in_bfloat16(ctx: Any, *gradients: Any) -> Any:
            ctx.cpu_autocast_kwargs["dtype"] = torch.bfloat16
            return replay(ctx, *gradients)

        CheckpointFunction.backward = staticmethod(replay_in_bfloat16)


@fault("https://github.com/huggingface/transformers/issues/21381", "recompute.no-grad-input")
class AlwaysReentrant(TorchFramework):
    """`use_reentrant=False` is not passed on, so an input without a gradient cuts the parameters off."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        call = operations.checkpoint
        operations.checkpoint = lambda function, *args, use_reentrant, **named: call(
            function, *args, use_reentrant=True, **named
        )


@fault(
    "https://github.com/jax-ml/jax/pull/37888",
    "recompute.frees-activations",
    "recompute.runs-forward-once-more",
    "cost.recompute-bytes",
)
class CheckpointDoesNothing(TorchFramework):
    """`checkpoint` runs its function and keeps every activation."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        checkpoint.checkpoint = lambda function, *args, **_: function(*args)


@fault("https://github.com/NVIDIA/apex/issues/480", "resume.bit-identical", "resume.load-has-no-side-effects")
class MomentsNotSaved(TorchFramework):
    """`Optimizer.state_dict` holds the settings without the moments."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        state_dict = torch.optim.Optimizer.state_dict
        torch.optim.Optimizer.state_dict = lambda self: state_dict(self) | {"state": {}}


@fault("https://github.com/mosaicml/composer/pull/1376", "resume.scaler-state")
class LoadedScalerIsDropped(TorchFramework):
    """The scaler's state is not loaded, so the run goes on with the initial scale."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        torch.amp.GradScaler.load_state_dict = lambda self, state: None


@fault("https://github.com/vllm-project/speculators/issues/1027", "resume.random-state")
class StreamRestarts(TorchFramework):
    """The random state is saved and not restored."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        settings.Stream.replace = lambda self, states: None


@fault("https://github.com/EleutherAI/gpt-neox/pull/308", "resume.mid-window")
class PartialWindowIsLost(TorchFramework):
    """A checkpoint inside a window leaves out the gradients that were accumulated so far."""

    @replaces(TorchTrainer, "snapshot")
    def snapshot_without_gradients(snapshot: Any, self: TorchTrainer) -> dict[str, Any]:
        result = snapshot(self)
        return result | {LOOP: result[LOOP] | {"gradients": {}}}


@fault("https://github.com/huggingface/transformers/issues/24449", "scaling.unscales-once")
class UnscalesAgain(TorchFramework):
    """`GradScaler.unscale_` forgets that it was called, so a second call divides again."""

    @replaces(torch.amp.GradScaler, "unscale_")
    def unscale_again(unscale: Any, self: torch.amp.GradScaler, optimizer: torch.optim.Optimizer) -> None:
        self._per_optimizer_states[id(optimizer)]["stage"] = OptState.READY
        unscale(self, optimizer)


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
        torch.amp.GradScaler._maybe_opt_step = lambda self, optimizer, state, *args, **named: optimizer.step()


@fault("https://github.com/deepspeedai/DeepSpeed/pull/3008", "scaling.backs-off-on-overflow", "scaling.automaton")
class OverflowKeepsScale(TorchFramework):
    """An overflow resets the count of good updates without lowering the scale."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        adjust = torch._amp_update_scale_
        torch._amp_update_scale_ = lambda scale, *args: adjust(scale, *args[:3], 1.0, args[4])


@fault("https://github.com/pytorch/pytorch/issues/98828", "scaling.stays-finite")
class ScaleGrowsToInfinity(TorchFramework):
    """The scale grows although the product is infinite."""

    @replaces(torch, "_amp_update_scale_")
    def grow_scale(
        adjust: Any, scale: torch.Tensor, good_steps: torch.Tensor, found_inf: torch.Tensor, *factors: Any
    ) -> torch.Tensor:
        grows = not found_inf.item() and int(good_steps) + 1 == factors[2]
        grown = scale * factors[0]
        adjust(scale, good_steps, found_inf, *factors)
        return scale.copy_(grown) if grows else scale


@fault(
    "https://github.com/Lightning-AI/pytorch-lightning/issues/9330",
    "scaling.unscales-before-clipping",
    "scaling.reports-true-loss",
)
class ClipsScaledGradients(TorchFramework):
    """`unscale_` is not called before `clip_grad_norm_`, which then sees scaled gradients."""

    @replaces(TorchTrainer, "_make_update")
    def clip_before_unscaling(
        finish: Any, self: TorchTrainer, unscale_calls: int | None, inject: Gradients | None
    ) -> Update:
        return finish(self, unscale_calls or 0, inject)


@fault("https://github.com/pytorch/pytorch/issues/99174", "scaling.detects-every-group")
class ChecksFirstGroupOnly(TorchFramework):
    """`GradScaler` looks for infinities in the first parameter group and only unscales the others."""

    @replaces(torch.amp.GradScaler, "_unscale_grads_")
    def partial_check(
        unscale: Any, self: torch.amp.GradScaler, optimizer: Any, inverse: torch.Tensor, *rest: Any
    ) -> Any:
        for group in optimizer.param_groups[1:]:
            for parameter in group["params"]:
                parameter.grad.mul_(inverse)
        first_group = torch.optim.SGD(optimizer.param_groups[0]["params"])
        return unscale(self, first_group, inverse, *rest)


@fault(
    "https://github.com/pytorch/pytorch/issues/55585", "scaling.step-count-follows-updates", "scaling.skip-is-atomic"
)
class ScheduleAdvancesOnSkip(TorchFramework):
    """The scheduler steps after skipped updates too."""

    @replaces(TorchTrainer, "_make_update")
    def finish_and_step_schedules(finish: Any, self: TorchTrainer, *args: Any) -> Update:
        update = finish(self, *args)
        for stepper in self.steppers:
            if update.skipped and stepper.scheduler is not None:
                stepper.scheduler.step()
        return update


@fault(
    "https://github.com/PaddlePaddle/Paddle/issues/67895", "scaling.skip-leaves-no-residue", "scaling.skip-is-atomic"
)
class KeepsOverflowedGradients(TorchFramework):
    """After a skip gradients are not cleared, and those of the next batch are added to them."""

    @replaces(torch.optim.Optimizer, "zero_grad")
    def clear_finite_gradients(clear: Any, self: torch.optim.Optimizer, *args: Any, **named: Any) -> None:
        every = [p.grad for group in self.param_groups for p in group["params"] if p.grad is not None]
        if all(bool(torch.isfinite(gradient).all()) for gradient in every):
            clear(self, *args, **named)


@fault("https://github.com/nerfstudio-project/nerfstudio/pull/1919", "scaling.tolerates-missing-gradients", raises=True)
class DemandsEveryGradient(TorchFramework):
    """`GradScaler` raises when a parameter has no gradient in this update."""

    @replaces(torch.amp.GradScaler, "_unscale_grads_")
    def require_gradients(unscale: Any, self: torch.amp.GradScaler, optimizer: Any, *rest: Any) -> Any:
        if any(parameter.grad is None for group in optimizer.param_groups for parameter in group["params"]):
            raise AssertionError("No inf checks were recorded for this optimizer.")
        return unscale(self, optimizer, *rest)
