"""Faults of recomputation in PyTorch."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch.utils import checkpoint
from torch.utils.checkpoint import CheckpointFunction

from frameworks.torch import TorchFramework
from tools.faults import fault


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

        def forgetful(ctx: Any, *gradients: Any) -> Any:
            ctx.cpu_autocast_kwargs["dtype"] = torch.bfloat16
            return replay(ctx, *gradients)

        CheckpointFunction.backward = staticmethod(forgetful)


@fault("https://github.com/huggingface/transformers/issues/21381", "recompute.no-grad-input")
class AlwaysReentrant(TorchFramework):
    """`use_reentrant=False` is not passed on, so an input without a gradient cuts the parameters off."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        from frameworks.torch.core import recompute

        call = recompute.checkpoint
        recompute.checkpoint = lambda function, *given, use_reentrant, **named: call(
            function, *given, use_reentrant=True, **named
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
        checkpoint.checkpoint = lambda function, *given, **_: function(*given)
