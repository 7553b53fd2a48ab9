"""Faults of Paddle itself and of code that uses it, patched into the calls that the adapter makes."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import paddle
from paddle.amp.grad_scaler import AmpScaler, OptimizerState

from fixtures.model import Batch
from frameworks.paddle import PaddleFramework, checkpoint, layers, recompute
from frameworks.paddle.trainer import DygraphTrainer
from tests.mutants import fault

# loss scaling


@fault(
    "https://github.com/huggingface/transformers/issues/24449",
    component="scaler",
    clauses=("scaling.unscales-once",),
    mode="dygraph-forced-scaler",
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
    component="scaler",
    clauses=("scaling.detects-inf", "scaling.skip-is-atomic"),
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
    component="scaler",
    clauses=("scaling.grows-after-interval", "scaling.automaton"),
    mode="dygraph-forced-scaler",
)
class OverflowKeepsCount(PaddleFramework):
    """An overflow does not start the count of finite updates again."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        adjust = AmpScaler._update

        def counting_on(self: AmpScaler) -> None:
            count, found = self._incr_count, bool(self._cache_found_inf)
            adjust(self)
            if found:
                self._incr_count = count

        AmpScaler._update = counting_on


@fault(
    "https://github.com/PaddlePaddle/Paddle/issues/67895",
    component="optimizer",
    clauses=("scaling.skip-leaves-no-residue",),
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
    component="scaler",
    clauses=("scaling.overflow-path-does-not-raise",),
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
    "https://github.com/deepspeedai/DeepSpeed/pull/4986",
    component="scaler",
    clauses=("scaling.defaults-are-declared",),
    mode="dygraph-forced-scaler",
)
class AnotherDefaultScale(PaddleFramework):
    """`GradScaler` starts at 2^15 where its documentation says 2^16."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        make = paddle.amp.GradScaler
        paddle.amp.GradScaler = lambda **given: make(**({"init_loss_scaling": 2.0**15} | given))


@fault(
    "https://github.com/deepspeedai/DeepSpeed/issues/138",
    component="scaler",
    clauses=("scaling.static-is-constant",),
    mode="dygraph-forced-scaler",
)
class StaticScaleIsDynamic(PaddleFramework):
    """`use_dynamic_loss_scaling=False` is not passed on."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        make = paddle.amp.GradScaler
        paddle.amp.GradScaler = lambda **given: make(**(given | {"use_dynamic_loss_scaling": True}))


# accumulation


@fault(
    "https://github.com/facebookresearch/mmf/pull/747",
    component="accumulation",
    clauses=("accumulation.each-counts-once", "accumulation.equals-full-batch"),
)
class ClearsInsideWindow(PaddleFramework):
    """`clear_grad` is called before the backward pass of every micro-batch."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        accumulate = DygraphTrainer.accumulate

        def cleared(self: DygraphTrainer, batch: Batch, items: int) -> float:
            for share in self.shares:
                share.optimizer.clear_grad(set_to_zero=False)
            return accumulate(self, batch, items)

        DygraphTrainer.accumulate = cleared


# autocast


@fault(
    "https://github.com/PaddlePaddle/Paddle/pull/60052",
    component="autocast",
    clauses=("autocast.user-lists",),
    mode="static",
)
class IgnoresUserLists(PaddleFramework):
    """`auto_cast` drops the lists of operations that the user gives it."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        scope = paddle.amp.auto_cast
        paddle.amp.auto_cast = lambda custom_white_list=None, custom_black_list=None, **given: scope(**given)


# recomputation


@fault(
    "https://github.com/ankanbhunia/PIDM/pull/66",
    component="recomputation",
    clauses=("recompute.replays-dropout", "recompute.random-stream-unmoved"),
)
class RedrawsDropout(PaddleFramework):
    """`recompute` is called with `preserve_rng_state=False`."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        layers.recompute = partial(layers.recompute, preserve_rng_state=False)


@fault(
    "https://github.com/PaddlePaddle/Paddle/issues/62981",
    component="recomputation",
    clauses=("recompute.no-grad-input",),
)
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
    component="recomputation",
    clauses=("recompute.frees-activations", "recompute.runs-forward-once-more", "cost.recompute-bytes"),
)
class RecomputeDoesNothing(PaddleFramework):
    """`recompute` runs its function and keeps every activation."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        layers.recompute = lambda function, *given, **_: function(*given)


# saving and loading


@fault(
    "https://github.com/NVIDIA/apex/issues/480",
    component="checkpoint",
    clauses=("resume.bit-identical",),
)
class MomentsNotSaved(PaddleFramework):
    """`Optimizer.state_dict` leaves out the moments."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        whole = paddle.optimizer.Optimizer.state_dict
        paddle.optimizer.Optimizer.state_dict = lambda self: {
            name: value for name, value in whole(self).items() if name == "LR_Scheduler"
        }


@fault(
    "https://github.com/huggingface/transformers/pull/11663",
    component="checkpoint",
    clauses=("resume.scaler-state",),
    mode="dygraph-forced-scaler",
)
class CountersNotLoaded(PaddleFramework):
    """`GradScaler.load_state_dict` restores the scale and counts finite updates from 0."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        load = AmpScaler.load_state_dict
        AmpScaler.load_state_dict = lambda self, state: load(self, state | {"incr_count": 0})


@fault(
    "https://github.com/vllm-project/speculators/issues/1027",
    component="checkpoint",
    clauses=("resume.random-state",),
)
class StreamRestarts(PaddleFramework):
    """The generator's state is not loaded, so a resumed run starts its stream again."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        restore = checkpoint.restore

        def forgetful(trainer: DygraphTrainer, folder: Path) -> None:
            state = trainer.stream.state
            restore(trainer, folder)
            trainer.stream.state = state

        checkpoint.restore = forgetful


# weights and moments


@fault(
    "https://github.com/google-deepmind/optax/issues/1754",
    component="optimizer",
    clauses=("master.adam-epsilon-survives",),
    mode="static",
)
class EpsilonUnderflows(PaddleFramework):
    """Adam's epsilon is rounded to 0."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        make = paddle.optimizer.Adam
        paddle.optimizer.Adam = lambda **given: make(**(given | {"epsilon": 0.0}))
