"""Faults of recomputation in Paddle."""

from __future__ import annotations

from functools import partial
from typing import Any

from frameworks.paddle import PaddleFramework
from frameworks.paddle.core import network, recompute
from tools.faults import fault


@fault("https://github.com/ankanbhunia/PIDM/pull/66", "recompute.replays-dropout", "recompute.random-stream-unmoved")
class RedrawsDropout(PaddleFramework):
    """`recompute` is called with `preserve_rng_state=False`."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        network.recompute = partial(network.recompute, preserve_rng_state=False)


@fault("https://github.com/PaddlePaddle/Paddle/issues/62981", "recompute.no-grad-input")
class AlwaysReentrant(PaddleFramework):
    """`use_reentrant=False` is not passed on, so an input without a gradient cuts the parameters off."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        call = recompute.recompute
        recompute.recompute = lambda function, *given, use_reentrant, **named: call(
            function, *given, use_reentrant=True, **named
        )


@fault(
    "https://github.com/jax-ml/jax/pull/37888",
    "recompute.frees-activations",
    "recompute.runs-forward-once-more",
    "cost.recompute-bytes",
)
class RecomputeDoesNothing(PaddleFramework):
    """`recompute` runs its function and keeps every activation."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        network.recompute = lambda function, *given, **_: function(*given)
