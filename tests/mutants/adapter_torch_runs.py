"""Faults of PyTorch's autocast, recomputation, checkpoints and weights, patched into the adapter's calls."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch.nn import functional
from torch.utils.checkpoint import CheckpointFunction

from fixtures.arrays import Array
from fixtures.model import Model
from fixtures.recipe import Recipe
from frameworks.torch import TorchFramework, checkpoint, network, streams
from frameworks.torch.arrays import DTYPES
from frameworks.torch.operations import OPERATIONS
from frameworks.torch.trainer import TorchTrainer
from tests.mutants import fault

# autocast


@fault(
    "https://github.com/pytorch/pytorch/issues/125186",
    component="autocast",
    clauses=("autocast.matmul-is-low", "autocast.backward-in-forward-precision"),
)
class ScopeForgetsFormat(TorchFramework):
    """`torch.autocast` runs in the device's default format, whatever format was asked for."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        scope = torch.autocast
        torch.autocast = lambda device, dtype=None, enabled=True: scope(device, enabled=enabled)


@fault(
    "https://github.com/PaddlePaddle/Paddle/pull/47985",
    component="autocast",
    clauses=("autocast.scope-restored",),
)
class ScopeLeaksThroughExceptions(TorchFramework):
    """`torch.autocast` restores nothing when an exception leaves its scope."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        leave = torch.autocast.__exit__

        def careless(self: torch.autocast, kind: Any, *rest: Any) -> Any:
            return None if kind is not None else leave(self, kind, *rest)

        torch.autocast.__exit__ = careless


@fault(
    "https://github.com/pytorch/pytorch/pull/82196",
    component="autocast",
    clauses=("autocast.loss-is-wide",),
)
class LossInLowPrecision(TorchFramework):
    """Losses are on no list of operations that run wide, so they keep the format of their inputs."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        for name in ("cross_entropy", "mse_loss"):
            setattr(functional, name, partial(unlisted, getattr(functional, name)))
        OPERATIONS.update(cross_entropy=functional.cross_entropy, squared_error=functional.mse_loss)


def unlisted(function: Any, *args: Any, **named: Any) -> torch.Tensor:
    """The function in the format of its arguments, whatever scope is open."""
    with torch.autocast("cpu", enabled=False):
        return function(*args, **named)


# recomputation


@fault(
    "https://github.com/ankanbhunia/PIDM/pull/66",
    component="recomputation",
    clauses=("recompute.replays-dropout", "recompute.random-stream-unmoved"),
)
class RedrawsDropout(TorchFramework):
    """`checkpoint` is called with `preserve_rng_state=False`."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        network.checkpoint = partial(network.checkpoint, preserve_rng_state=False)


@fault(
    "https://github.com/pytorch/pytorch/pull/71169",
    component="recomputation",
    clauses=("recompute.replays-autocast",),
)
class RecomputesInDefaultFormat(TorchFramework):
    """The reentrant `checkpoint` replays the forward pass in a CPU's default format, whatever its scope had."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        replay = CheckpointFunction.backward

        def forgetful(ctx: Any, *gradients: Any) -> Any:
            ctx.cpu_autocast_kwargs["dtype"] = torch.bfloat16
            return replay(ctx, *gradients)

        CheckpointFunction.backward = staticmethod(forgetful)


@fault(
    "https://github.com/huggingface/transformers/issues/21381",
    component="recomputation",
    clauses=("recompute.no-grad-input",),
)
class AlwaysReentrant(TorchFramework):
    """`use_reentrant=False` is not passed on, so an input without a gradient cuts the parameters off."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        from frameworks.torch import recompute

        checkpoint = recompute.checkpoint
        recompute.checkpoint = lambda function, *given, use_reentrant, **named: checkpoint(
            function, *given, use_reentrant=True, **named
        )


@fault(
    "https://github.com/jax-ml/jax/pull/37888",
    component="recomputation",
    clauses=("recompute.frees-activations", "recompute.runs-forward-once-more", "cost.recompute-bytes"),
)
class CheckpointDoesNothing(TorchFramework):
    """`checkpoint` runs its function and keeps every activation."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        network.checkpoint = lambda function, *given, **_: function(*given)


# saving and loading


@fault(
    "https://github.com/NVIDIA/apex/issues/480",
    component="checkpoint",
    clauses=("resume.bit-identical", "resume.load-has-no-side-effects"),
)
class MomentsNotSaved(TorchFramework):
    """`Optimizer.state_dict` holds the settings without the moments."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        whole = torch.optim.Optimizer.state_dict
        torch.optim.Optimizer.state_dict = lambda self: whole(self) | {"state": {}}


@fault(
    "https://github.com/mosaicml/composer/pull/1376",
    component="checkpoint",
    clauses=("resume.scaler-state",),
)
class LoadedScalerIsDropped(TorchFramework):
    """The scaler's state is not loaded, so the run goes on with the initial scale."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        torch.amp.GradScaler.load_state_dict = lambda self, state: None


@fault(
    "https://github.com/vllm-project/speculators/issues/1027",
    component="checkpoint",
    clauses=("resume.random-state",),
)
class StreamRestarts(TorchFramework):
    """The random state is saved and not put back."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        streams.Stream.replace = lambda self, states: None


@fault(
    "https://github.com/EleutherAI/gpt-neox/pull/308",
    component="checkpoint",
    clauses=("resume.mid-window",),
)
class PartialWindowIsLost(TorchFramework):
    """A checkpoint inside a window leaves out the gradients that were accumulated so far."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        whole = checkpoint.snapshot

        def forgetful(trainer: TorchTrainer) -> dict[str, Any]:
            found = whole(trainer)
            return found | {checkpoint.LOOP: found[checkpoint.LOOP] | {"gradients": {}}}

        checkpoint.snapshot = forgetful


# weights and moments


@fault(
    "https://github.com/pytorch/ao/pull/1124",
    component="masters",
    clauses=("master.small-update-survives", "autocast.parameters-stay-float32"),
)
class CastsWeights(TorchFramework):
    """Level O1 casts the module itself, so small updates vanish in low-precision weights."""

    def trainer(self, model: Model, recipe: Recipe, weights: dict[str, Array] | None = None) -> TorchTrainer:
        trainer = super().trainer(model, recipe, weights)
        if recipe.precision.level == "O1":
            trainer.network.to(DTYPES[recipe.precision.format])
        return trainer


@fault(
    "https://github.com/google-deepmind/optax/issues/1754",
    component="optimizer",
    clauses=("master.adam-epsilon-survives",),
)
class EpsilonUnderflows(TorchFramework):
    """Adam's epsilon is rounded to float16, where it is zero."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        make = torch.optim.Adam.__init__

        def rounded(self: torch.optim.Adam, *given: Any, eps: float, **named: Any) -> None:
            make(self, *given, eps=float(torch.tensor(eps, dtype=torch.float16)), **named)

        torch.optim.Adam.__init__ = rounded
