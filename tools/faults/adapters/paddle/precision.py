"""Faults of autocast, master weights and the formats of optimizers in Paddle."""

from __future__ import annotations

from typing import Any

import paddle

from frameworks.paddle import StaticFramework
from tools.faults import fault


@fault("https://github.com/PaddlePaddle/Paddle/pull/60052", "autocast.user-lists", mode="static")
class IgnoresUserLists(StaticFramework):
    """`auto_cast` drops the lists of operations that the user gives it."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        scope = paddle.amp.auto_cast
        paddle.amp.auto_cast = lambda custom_white_list=None, custom_black_list=None, **given: scope(**given)


@fault("https://github.com/google-deepmind/optax/issues/1754", "master.adam-epsilon-survives", mode="static")
class EpsilonUnderflows(StaticFramework):
    """Adam's epsilon is rounded to 0."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        make = paddle.optimizer.Adam.__init__

        def rounded(self: paddle.optimizer.Adam, *given: Any, **named: Any) -> None:
            make(self, *given, **(named | {"epsilon": 0.0}))

        paddle.optimizer.Adam.__init__ = rounded
