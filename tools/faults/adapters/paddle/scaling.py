"""Faults of loss scaling in Paddle."""

from __future__ import annotations

from typing import Any

import paddle
from paddle.amp.grad_scaler import AmpScaler, OptimizerState

from frameworks.paddle import PaddleFramework
from tools.faults import fault


@fault(
    "https://github.com/huggingface/transformers/issues/24449", "scaling.unscales-once", mode="dygraph-forced-scaler"
)
class UnscalesAgain(PaddleFramework):
    """`GradScaler.unscale_` forgets that it was called, so a second call divides again."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        unscale = AmpScaler._unscale

        def forgetful(self: AmpScaler, optimizer: Any) -> None:
            self._optimizer_states[id(optimizer)]["state"] = OptimizerState.INIT
            unscale(self, optimizer)

        AmpScaler._unscale = forgetful


@fault(
    "https://github.com/google-deepmind/optax/pull/1746",
    "scaling.detects-inf",
    "scaling.skip-is-atomic",
    mode="dygraph-forced-scaler",
)
class AppliesOverflow(PaddleFramework):
    """`GradScaler` forgets what it found, so `step` applies infinite gradients."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        unscale = AmpScaler._unscale

        def forgetful(self: AmpScaler, optimizer: Any) -> None:
            unscale(self, optimizer)
            self._found_inf = self._temp_found_inf_value_false

        AmpScaler._unscale = forgetful


@fault(
    "https://github.com/deepspeedai/DeepSpeed/pull/3553",
    "scaling.grows-after-interval",
    "scaling.automaton",
    mode="dygraph-forced-scaler",
)
class OverflowKeepsCount(PaddleFramework):
    """An overflow does not start the count of finite updates again."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        adjust = AmpScaler._update

        def counting_on(self: AmpScaler) -> None:
            count, result = self._incr_count, bool(self._cache_found_inf)
            adjust(self)
            if result:
                self._incr_count = count

        AmpScaler._update = counting_on


@fault(
    "https://github.com/PaddlePaddle/Paddle/issues/67895",
    "scaling.skip-leaves-no-residue",
    mode="dygraph-forced-scaler",
)
class KeepsOverflowedGradients(PaddleFramework):
    """`clear_grad` is left out after a skip, so infinite gradients stay for the next batch to be added to."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        clear = paddle.optimizer.Optimizer.clear_grad

        def unless_spoilt(self: Any, set_to_zero: bool = True) -> None:
            gradients = [p.grad for p in self._parameter_list if p.grad is not None]
            if all(bool(paddle.isfinite(gradient).all()) for gradient in gradients):
                clear(self, set_to_zero)

        paddle.optimizer.Optimizer.clear_grad = unless_spoilt


@fault(
    "https://github.com/PaddlePaddle/Paddle/pull/77010",
    "scaling.overflow-path-does-not-raise",
    mode="dygraph-forced-scaler",
    raises=True,
)
class FirstOverflowRaises(PaddleFramework):
    """`GradScaler.update` converts an array of one element to a number, which newer NumPy refuses."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        adjust = AmpScaler._update

        def strict(self: AmpScaler) -> None:
            if self._cache_found_inf:
                raise TypeError("only 0-dimensional arrays can be converted to Python scalars")
            adjust(self)

        AmpScaler._update = strict


@fault(
    "https://github.com/deepspeedai/DeepSpeed/pull/4986", "scaling.defaults-are-declared", mode="dygraph-forced-scaler"
)
class AnotherDefaultScale(PaddleFramework):
    """`GradScaler` starts at 2^15 where its documentation says 2^16."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        make = paddle.amp.GradScaler
        paddle.amp.GradScaler = lambda **given: make(**({"init_loss_scaling": 2.0**15} | given))


@fault(
    "https://github.com/deepspeedai/DeepSpeed/issues/138", "scaling.static-is-constant", mode="dygraph-forced-scaler"
)
class StaticScaleIsDynamic(PaddleFramework):
    """`use_dynamic_loss_scaling=False` is not passed on."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        make = paddle.amp.GradScaler
        paddle.amp.GradScaler = lambda **given: make(**(given | {"use_dynamic_loss_scaling": True}))
