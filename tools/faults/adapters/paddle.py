"""Faults of the Paddle adapter."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

import paddle
from paddle.amp.grad_scaler import AmpScaler, OptimizerState

from fixtures.arrays import Array
from fixtures.model import Batch, Model, Window
from fixtures.recipe import Ranks, Recipe
from frameworks.contract import Update
from frameworks.paddle import PaddleFramework, StaticFramework
from frameworks.paddle.core import layers
from frameworks.paddle.distributed import PaddleWorker, RankTrainer
from frameworks.paddle.training.optimizers import UpdateAfterLosses
from frameworks.paddle.training.trainer import DygraphTrainer
from tools.faults import fault, replaces


@fault(
    "https://github.com/facebookresearch/mmf/pull/747",
    "accumulation.each-counts-once",
    "accumulation.equals-full-batch",
)
class ClearsInsideWindow(PaddleFramework):
    """`clear_grad` is called before the backward pass of every micro-batch."""

    @replaces(DygraphTrainer, "accumulate")
    def clear_and_accumulate(accumulate: Any, self: DygraphTrainer, batch: Batch, items: int) -> float:
        for share in self.shares:
            share.optimizer.clear_grad(set_to_zero=False)
        return accumulate(self, batch, items)


@fault(
    "https://github.com/nntrainer/nntrainer/issues/705",
    "autocast.float32-parity",
    names="(Convolution), gradient of weight",
)
class FilterGradientTransposed(PaddleFramework):
    """The gradient of a convolution's weight has height and width exchanged."""

    @replaces(paddle.nn.Conv2D, "__init__")
    def begin_with_hook(begin: Any, self: Any, *args: Any, **named: Any) -> None:
        begin(self, *args, **named)
        self.weight.register_hook(lambda gradient: gradient.transpose([0, 1, 3, 2]))


@fault("https://github.com/PaddlePaddle/Paddle/pull/60052", "autocast.user-lists", mode="static")
class IgnoresUserLists(StaticFramework):
    """`auto_cast` drops the lists of operations that the user gives it."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        scope = paddle.amp.auto_cast
        paddle.amp.auto_cast = lambda custom_white_list=None, custom_black_list=None, **kwargs: scope(**kwargs)


@fault("https://github.com/google-deepmind/optax/issues/1754", "master.adam-epsilon-survives", mode="static")
class EpsilonUnderflows(StaticFramework):
    """Adam's epsilon is rounded to 0."""

    @replaces(paddle.optimizer.Adam, "__init__")
    def round_epsilon(make: Any, self: paddle.optimizer.Adam, *args: Any, **named: Any) -> None:
        make(self, *args, **(named | {"epsilon": 0.0}))


@fault("https://github.com/ankanbhunia/PIDM/pull/66", "recompute.replays-dropout", "recompute.random-stream-unmoved")
class RedrawsDropout(PaddleFramework):
    """`recompute` is called with `preserve_rng_state=False`."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        layers.recompute = partial(layers.recompute, preserve_rng_state=False)


@fault("https://github.com/PaddlePaddle/Paddle/issues/62981", "recompute.no-grad-input")
class AlwaysReentrant(PaddleFramework):
    """`use_reentrant=False` is not passed on, so an input without a gradient cuts the parameters off."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        call = layers.recompute
        layers.recompute = lambda function, *args, use_reentrant, **named: call(
            function, *args, use_reentrant=True, **named
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
        layers.recompute = lambda function, *args, **_: function(*args)


@fault("https://github.com/NVIDIA/apex/issues/480", "resume.bit-identical")
class MomentsNotSaved(PaddleFramework):
    """`Optimizer.state_dict` leaves out the moments."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        state_dict = paddle.optimizer.Optimizer.state_dict
        paddle.optimizer.Optimizer.state_dict = lambda self: {
            name: value for name, value in state_dict(self).items() if name == "LR_Scheduler"
        }


@fault("https://github.com/huggingface/transformers/pull/11663", "resume.scaler-state", mode="dygraph-forced-scaler")
class CountersNotLoaded(PaddleFramework):
    """`GradScaler.load_state_dict` restores the scale and counts finite updates from 0."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        load = AmpScaler.load_state_dict
        AmpScaler.load_state_dict = lambda self, state: load(self, state | {"incr_count": 0})


@fault("https://github.com/vllm-project/speculators/issues/1027", "resume.random-state")
class StreamRestarts(PaddleFramework):
    """The generator's state is not loaded, so a resumed run starts its stream again."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        restore = DygraphTrainer.restore

        def restore_without_stream(self: DygraphTrainer, path: Path) -> None:
            state = self.stream.state
            restore(self, path)
            self.stream.state = state

        DygraphTrainer.restore = restore_without_stream


@fault(
    "https://github.com/huggingface/transformers/issues/24449", "scaling.unscales-once", mode="dygraph-forced-scaler"
)
class UnscalesAgain(PaddleFramework):
    """`GradScaler.unscale_` forgets that it was called, so a second call divides again."""

    @replaces(AmpScaler, "_unscale")
    def unscale_again(unscale: Any, self: AmpScaler, optimizer: Any) -> None:
        self._optimizer_states[id(optimizer)]["state"] = OptimizerState.INIT
        unscale(self, optimizer)


@fault(
    "https://github.com/google-deepmind/optax/pull/1746",
    "scaling.detects-inf",
    "scaling.skip-is-atomic",
    mode="dygraph-forced-scaler",
)
class AppliesOverflow(PaddleFramework):
    """`GradScaler` clears its overflow flag, so `step` applies infinite gradients."""

    @replaces(AmpScaler, "_unscale")
    def unscale_and_clear_flag(unscale: Any, self: AmpScaler, optimizer: Any) -> None:
        unscale(self, optimizer)
        self._found_inf = self._temp_found_inf_value_false


@fault(
    "https://github.com/deepspeedai/DeepSpeed/pull/3553",
    "scaling.grows-after-interval",
    "scaling.automaton",
    mode="dygraph-forced-scaler",
)
class OverflowKeepsCount(PaddleFramework):
    """An overflow does not reset the count of finite updates."""

    @replaces(AmpScaler, "_update")
    def adjust_and_keep_count(adjust: Any, self: AmpScaler) -> None:
        count, result = self._incr_count, bool(self._cache_found_inf)
        adjust(self)
        if result:
            self._incr_count = count


@fault(
    "https://github.com/PaddlePaddle/Paddle/issues/67895",
    "scaling.skip-leaves-no-residue",
    mode="dygraph-forced-scaler",
)
class KeepsOverflowedGradients(PaddleFramework):
    """After a skip gradients are not cleared, and those of the next batch are added to them."""

    @replaces(paddle.optimizer.Optimizer, "clear_grad")
    def clear_finite_gradients(clear: Any, self: Any, set_to_zero: bool = True) -> None:
        gradients = [p.grad for p in self._parameter_list if p.grad is not None]
        if all(bool(paddle.isfinite(gradient).all()) for gradient in gradients):
            clear(self, set_to_zero)


@fault(
    "https://github.com/PaddlePaddle/Paddle/pull/77010",
    "scaling.overflow-path-does-not-raise",
    mode="dygraph-forced-scaler",
    raises=True,
)
class FirstOverflowRaises(PaddleFramework):
    """`GradScaler.update` converts an array of one element to a number, which newer NumPy refuses."""

    @replaces(AmpScaler, "_update")
    def adjust_or_raise(adjust: Any, self: AmpScaler) -> None:
        if self._cache_found_inf:
            raise TypeError("only 0-dimensional arrays can be converted to Python scalars")
        adjust(self)


@fault(
    "https://github.com/deepspeedai/DeepSpeed/pull/4986", "scaling.defaults-are-declared", mode="dygraph-forced-scaler"
)
class AnotherDefaultScale(PaddleFramework):
    """`GradScaler` starts at 2^15 where its documentation says 2^16."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        make = paddle.amp.GradScaler
        paddle.amp.GradScaler = lambda **kwargs: make(**({"init_loss_scaling": 2.0**15} | kwargs))


@fault(
    "https://github.com/deepspeedai/DeepSpeed/issues/138", "scaling.static-is-constant", mode="dygraph-forced-scaler"
)
class StaticScaleIsDynamic(PaddleFramework):
    """`use_dynamic_loss_scaling=False` is not passed on."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        make = paddle.amp.GradScaler
        paddle.amp.GradScaler = lambda **kwargs: make(**(kwargs | {"use_dynamic_loss_scaling": True}))


class _Worker(PaddleWorker):
    """A rank whose trainer has another class."""

    kind: type[RankTrainer]

    def trainer(self, model: Model, recipe: Recipe, weights: Mapping[str, Array]) -> RankTrainer:
        return self.kind(recipe.ranks or Ranks(self.count), model, recipe, weights, forced=False)


class _OwnItems(RankTrainer):
    def _count_items(self, window: Window) -> int:
        return sum(batch.items for batch in window) * self.ranks.count or 1

    def update_share(self, window: Window, items: int) -> Update:
        return super().update_share(window, self._count_items(window))

    def gradients_share(self, window: Window, items: int) -> dict[str, Array]:
        return super().gradients_share(window, self._count_items(window))


class OwnItemsWorker(_Worker):
    kind = _OwnItems


@fault("https://github.com/meta-pytorch/torchtune/pull/2172", "sharding.mean-over-items")
class DividesByOwnItems(PaddleFramework):
    """Each rank's loss is the mean over its own items, and `DataParallel` averages the ranks' means."""

    member = "tools.faults.adapters.paddle:OwnItemsWorker"


class _Unsynchronised(RankTrainer):
    def _micro_batch(self, *, last: bool) -> AbstractContextManager[None]:
        return super()._micro_batch(last=False)


class UnsynchronisedWorker(_Worker):
    kind = _Unsynchronised


@fault(
    "https://github.com/modelscope/FunASR/pull/3472",
    "sharding.replicas-equal",
    "sharding.equals-whole",
    "sharding.accumulates",
)
class NeverLeavesNoSync(PaddleFramework):
    """A window's last micro-batch runs inside `no_sync` too, so no gradient is reduced."""

    member = "tools.faults.adapters.paddle:UnsynchronisedWorker"


class _StepsPerRank(RankTrainer):
    def _step(self, *, unscaled: bool = False) -> UpdateAfterLosses:
        done = super()._step(unscaled=unscaled)
        for share in self.shares:
            for _ in range(self.ranks.count - 1 if share.scheduler is not None else 0):
                share.scheduler.step()  # type: ignore[union-attr]
        return done


class StepsPerRankWorker(_Worker):
    kind = _StepsPerRank


@fault("https://github.com/tracel-ai/burn/issues/5695", "sharding.schedule-counts-updates")
class SchedulerStepsForEachRank(PaddleFramework):
    """An update advances the schedule once for each rank."""

    member = "tools.faults.adapters.paddle:StepsPerRankWorker"
