"""One training run in dynamic mode, following Paddle's documentation, its readable state and its checkpoints."""

from __future__ import annotations

import math
import tempfile
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import paddle
from paddle.distributed import load_state_dict, save_state_dict

from fixtures.arrays import Array
from fixtures.model import Batch, Dropout, Model, Window, walk
from fixtures.recipe import Recipe
from frameworks.base import NO_SCALER, BaseTrainer, LossLedger, MicroBatch, of_same_class, same_parts
from frameworks.contract import (
    Capability,
    Gate,
    Gradients,
    Kind,
    LayerTrace,
    LiveValues,
    LoadOrder,
    SaveSeries,
    Trainer,
    Unsupported,
    Update,
    ValueSaver,
)
from frameworks.paddle.core import settings, ways
from frameworks.paddle.core.layers import BatchTensors, Network, Watch, add, batch_tensors, hook_layers, item_losses
from frameworks.paddle.core.settings import (
    Stream,
    activations_of,
    canonical,
    copy_of_gradient,
    put_gradient,
    to_numpy,
    to_paddle_layout,
    to_tensor,
)
from frameworks.paddle.training import optimizers

FILE = "run.pdparams"
Scope = Callable[[], AbstractContextManager[None]]


class DygraphTrainer(BaseTrainer):
    """A run of `paddle.nn` layers with `auto_cast`, `GradScaler` and `recompute`.

    Gradients add up in `.grad` and are dropped after each window by `clear_grad(set_to_zero=False)`, so that a
    parameter without a gradient has none. A scheduler advances when its optimizer's update was applied. Paddle reports
    neither skipped updates nor gradient norms; `skipped` is read from the scaler's documented counters or, where these
    are ambiguous (a static scale, two optimizers), from whether parameters or accumulators changed.

    Args:
        forced: the scaler works although Paddle turns it off.

    Attributes:
        settings: initial settings of the scaler; empty without one.
    """

    def __init__(self, model: Model, recipe: Recipe, weights: Mapping[str, Array], *, forced: bool = False) -> None:
        self.model, self.recipe, self.forced = model, recipe, forced
        self._scaler_scope: Scope = optimizers.forced_scaler if forced else nullcontext
        self.stream = Stream(recipe.seed)
        self._draws = any(isinstance(layer, Dropout) for _, layer in walk(model.layers))
        before = self.stream.state
        with self.stream.open():
            self.network = Network(model, recipe.recompute, sequential=recipe.way("recompute") == "sequential")
            self.network.assign(weights)
            self.freeze(())
            self.shares = self._build_shares()
        self.stream.state = before
        self._clips_jointly = recipe.clip is not None and (len(self.shares) > 1 or recipe.way("clip") != "")
        self._loss, self.activations = paddle.zeros([]), activations_of(recipe.offload)
        if self._clips_jointly:
            optimizers.refuse_mixed_clip(self.network.named.values())
        self.scaler: Any | None = None
        if recipe.scaling is not None:
            with self._scaler_scope():
                self.scaler = optimizers.build_scaler(recipe.scaling)
        self.settings = {} if self.scaler is None else optimizers.read_settings(self.scaler)
        self.ledger: LossLedger[MicroBatch] = LossLedger()

    def _build_shares(self) -> list[optimizers.Share]:
        shares = optimizers.build_shares(self.recipe, self.network.named)
        level = self.recipe.precision.level
        if level in ("O2", "O3"):
            wide = [self.network.heads[head.name] for head in self.model.heads.heads if head.format == "float64"]
            paddle.amp.decorate(
                models=self.network,
                optimizers=[share.optimizer for share in shares],
                level="O2",
                dtype=self.recipe.precision.format,
                master_weight=None if level == "O2" else False,
                excluded_layers=wide or None,
            )
        return shares

    def anew(self) -> DygraphTrainer:
        """A new run, as created by a process that resumes."""
        return DygraphTrainer(self.model, self.recipe, self.model.weights(self.recipe.seed), forced=self.forced)

    @contextmanager
    def _running(self) -> Iterator[None]:
        prints = self.scaler is not None or self.recipe.recompute is not None
        stream = self.stream.open() if self._draws else self.stream.with_fresh_names()
        with optimizers.quiet() if prints else nullcontext(), self._scaler_scope(), stream:
            yield

    def _precision(self) -> AbstractContextManager[None]:
        precision = self.recipe.precision
        if precision.level == "O0":
            needs_scope = self.scaler is not None and self.scaler.is_enable() and not self.forced
            return optimizers.scope_for_a_scaler() if needs_scope else nullcontext()
        level = "O1" if precision.level == "O1" else "O2"
        return paddle.amp.auto_cast(level=level, dtype=precision.format)

    def _batch(self, batch: Batch) -> BatchTensors:
        """The micro-batch; reentrant recomputation gives weights no gradient unless an input needs one."""
        tensors = batch_tensors(self.model, batch)
        if self.network.is_reentrant and not self.model.integer_inputs:
            tensors.inputs.stop_gradient = False
        return tensors

    def _losses(self, tensors: BatchTensors) -> list[Any]:
        """Sum of the item losses of each head that the batch has targets for."""
        kinds = dict(self.model.losses)
        sums = []
        with self._precision(), self.activations.saving():
            for name, output in self.network(tensors.inputs, tuple(tensors.targets)).items():
                losses = item_losses(kinds[name], output, tensors.targets[name])
                sums.append((losses if tensors.mask is None else losses * tensors.mask).sum())
        return sums

    def _backward(self, batch: Batch, items: int, scaler: Any | None) -> float:
        sums = self._losses(self._batch(batch))
        total = float(sum(float(value) for value in sums))
        losses = [self._share(value, items) for value in sums]
        if self.recipe.separate_losses:
            passes = [[loss] for loss in losses]
        else:
            passes = [losses if self.recipe.way("backward") in ways.SEVERAL_ROOTS else [add(losses)]]
        for position, roots in enumerate(passes, start=1):
            self._back([self._scale_loss(root, scaler) for root in roots], retain=position < len(passes))
        return total

    def _back(self, losses: list[Any], *, retain: bool = False) -> None:
        self._loss = losses[0]
        ways.run_backward(self.recipe.way("backward"), losses, [*self.network.named.values()], retain=retain)

    def _share(self, total: Any, items: int) -> Any:
        """Contribution of a micro-batch's loss sum to the mean over a window of `items` items."""
        return total / items

    def _micro_batch(self, *, last: bool) -> AbstractContextManager[None]:
        """The context of a micro-batch's forward and backward."""
        return nullcontext()

    def _passes(self, window: Window, items: int, scaler: Any | None) -> list[float]:
        """Runs a whole window forward and backward; returns the sum of each micro-batch's losses."""
        totals = []
        for number, batch in enumerate(window, 1):
            with self._micro_batch(last=number == len(window)):
                totals.append(self._backward(batch, items, scaler))
        return totals

    def _scale_loss(self, loss: Any, scaler: Any | None) -> Any:
        with self._scaler_scope():
            return loss if scaler is None else scaler.scale(loss)

    def accumulate(self, batch: Batch, items: int) -> float:
        with self._running():
            total = self._backward(batch, items, self.scaler)
        return self.ledger.add(MicroBatch(total, batch.items), items)

    def apply(self) -> Update:
        with self._running():
            update = self._step()
        loss, losses = self.ledger.loss(), self.ledger.losses()
        self.ledger.empty()
        return Update(loss, losses, *update)

    def _check_kernel(self) -> None:
        """In the forced mode on a CPU, refuses updates that a GPU's kernel decides differently."""
        if self.forced and paddle.device.get_device() == "cpu" and (state := self._scaler_state_dict()):
            scale = float(state["scale"][0])
            if scale < 1.0:
                optimizers.refuse_what_differs(scale, self.accumulator().values())

    def _step(self, *, unscaled: bool = False) -> optimizers.UpdateAfterLosses:
        """Makes the update. Several optimizers unscale first, as in the guide on AMP, and clip by their joint norm."""
        if not unscaled:
            self._check_kernel()
            if self.scaler is not None and (self._clips_jointly or self.recipe.way("scaling") == "unscale-first"):
                self._unscale(self.scaler)
        if self._clips_jointly:
            paddle.nn.utils.clip_grad_norm_(list(self.network.named.values()), self.recipe.clip)
        rate = float(self.shares[0].optimizer.get_lr())
        before = self._scaler_state_dict()
        watch = bool(before) and (len(self.shares) > 1 or not before["use_dynamic_loss_scaling"])
        edge = bool(before) and before["incr_count"] + 1 >= before["incr_every_n_steps"]
        marks = [optimizers.mark_of(share, self.network.named) for share in self.shares] if watch or edge else []
        results = [ways.step(self.recipe, share.optimizer, self.scaler, self._loss) for share in self.shares]
        if self.scaler is not None and not all(results):
            self.scaler.update()
        after = self._scaler_state_dict()
        skipped = optimizers.skipped_by_counters(before, after) if before and not watch else None
        applied = [not skipped] * len(self.shares)
        if before and skipped is None:
            applied = [
                optimizers.has_moved(mark, optimizers.mark_of(share, self.network.named))
                or not share.optimizer._get_auxiliary_var("found_inf")
                for mark, share in zip(marks, self.shares, strict=True)
            ]
        for share, was_applied in zip(self.shares, applied, strict=True):
            if share.scheduler is not None and was_applied:
                share.scheduler.step()
        ways.drop_gradients(self.recipe.way("zero-grad"), (share.optimizer for share in self.shares), self.network)
        return optimizers.read_update(before, after, rate, skipped=not any(applied))

    def _unscale(self, scaler: Any) -> None:
        for share in self.shares:
            scaler.unscale_(share.optimizer)

    def _discard_update(self) -> optimizers.UpdateAfterLosses:
        """Ends an update of unscaled gradients without a step: `update` resets the scaler for the next one."""
        rate, before = float(self.shares[0].optimizer.get_lr()), self._scaler_state_dict()
        self.scaler.update()  # type: ignore[union-attr]
        return optimizers.read_update(before, self._scaler_state_dict(), rate, skipped=True)

    def _scaler_state_dict(self) -> dict[str, Any]:
        return {} if self.scaler is None else self.scaler.state_dict()

    def gradients(self, window: Window) -> dict[str, Array]:
        return self._gradients(window, sum(batch.items for batch in window))

    def _gradients(self, window: Window, items: int) -> dict[str, Array]:
        former = {name: copy_of_gradient(parameter) for name, parameter in self.network.named.items()}
        self._drop_gradients()
        with self._running():
            scaler = None
            if self.scaler is not None and self.recipe.scaling is not None:
                scaler = optimizers.build_scaler(self.recipe.scaling)
                scaler.load_state_dict(self.scaler.state_dict())
            self._passes(window, items, scaler)
            if scaler is not None:
                self._unscale(scaler)
            result = self.accumulator()
        for name, parameter in self.network.named.items():
            put_gradient(parameter, former[name])
        return result

    def trace(self, batch: Batch) -> LayerTrace:
        state = self._scaler_state_dict()
        watch = Watch()
        with hook_layers(self.network.layers_by_path, watch.hook):
            parameters = self.gradients((batch,))
        return watch.trace(self.model, parameters, scale=float(state["scale"][0]) if state else 1.0)

    def _drop_gradients(self) -> None:
        for share in self.shares:
            share.optimizer.clear_grad(set_to_zero=False)

    def apply_gradients(
        self,
        *window: Gradients,
        unscale_calls: int | None = None,
        inject: Gradients | None = None,
        discard: bool = False,
    ) -> Update:
        if self.scaler is None and (unscale_calls or inject or discard):
            raise Unsupported(Capability.EXPLICIT_UNSCALE, NO_SCALER)
        named = self.network.named
        with self._running():
            try:
                for number, gradients in enumerate(window, 1):
                    with self._micro_batch(last=number == len(window)):
                        self._feed_backward(gradients, len(window))
                calls = max(unscale_calls or 0, 1 if inject or discard else 0)
                if calls:
                    self._check_kernel()
                for _ in range(calls):
                    self._unscale(self.scaler)
                for name, value in (inject or {}).items():
                    if value is not None:
                        extra = to_tensor(to_paddle_layout(value), named[name])
                        named[name].grad = extra if named[name].grad is None else named[name].grad + extra
                update = self._discard_update() if discard else self._step(unscaled=bool(calls))
            finally:
                self._drop_gradients()
        return Update(math.nan, (), *update)

    def _feed_backward(self, gradients: Gradients, count: int) -> None:
        own = self.network.named
        tensors = {n: to_tensor(to_paddle_layout(value), own[n]) for n, value in gradients.items() if value is not None}
        if tensors:
            self._back([self._scale_loss(self._sum_products(tensors) / count, self.scaler)])

    def _sum_products(self, gradients: Mapping[str, Any]) -> Any:
        """Σ p·g over the gradients g, a loss with these gradients."""
        with self._precision():
            return add([(self.network.named[name] * gradient).sum() for name, gradient in gradients.items()])

    def predict(self, inputs: Array) -> dict[str, Array]:
        self.network.eval()
        try:
            with self._running(), paddle.no_grad(), self._precision():
                names = tuple(head.name for head in self.model.heads.heads)
                outputs = self.network(paddle.to_tensor(inputs), names)
                return {name: to_numpy(value) for name, value in outputs.items()}
        finally:
            self.network.train()

    def parameters(self) -> dict[str, Array]:
        return {name: canonical(to_numpy(parameter)) for name, parameter in self.network.named.items()}

    def master_parameters(self) -> dict[str, Array]:
        masters: dict[str, Any] = {}
        for share in self.shares:
            masters.update(share.optimizer.state_dict().get("master_weights", {}))
        return {
            name: canonical(to_numpy(masters.get(parameter.name, parameter)))
            for name, parameter in self.network.named.items()
        }

    def optimizer_state(self) -> dict[str, Array]:
        result: dict[str, Array] = {}
        for index, share in enumerate(self.shares):
            for slot, value in optimizers.slots(share, self.network.named).items():
                result[f"{slot}/{index}" if slot == "schedule" and index else slot] = value
        return result | optimizers.counters(self.recipe.optimizer, result)

    def buffers(self) -> dict[str, Array]:
        return {name: to_numpy(value) for name, value in self.network.statistics.items()}

    def scaler_state(self) -> dict[str, Array]:
        return {} if self.scaler is None else optimizers.read_state(self.scaler)

    def scaler_settings(self) -> dict[str, float]:
        return dict(self.settings)

    def accumulator(self) -> dict[str, Array]:
        grads = {name: parameter.grad for name, parameter in self.network.named.items()}
        return {name: canonical(to_numpy(grad)) for name, grad in grads.items() if grad is not None}

    def random_state(self) -> dict[str, Array]:
        return {"generator": self.stream.words()}

    def offloaded_bytes(self) -> dict[str, int]:
        if self.recipe.offload is None:
            return super().offloaded_bytes()
        return {"activations": self.activations.take_bytes()}

    def segment_calls(self) -> tuple[int, ...]:
        return tuple(segment.calls for segment in self.network.segments)

    def freeze(self, names: Collection[str]) -> None:
        for name, parameter in self.network.named.items():
            parameter.stop_gradient = name in names or name in self.recipe.frozen

    # checkpoints: one file, a dictionary of parts

    def parts(self) -> dict[str, Any]:
        """Network, optimizers and scaler by their state dictionaries; open window, generator and counters."""
        grads = {name: parameter.grad for name, parameter in self.network.named.items()}
        return {
            "model": self.network.state_dict(),
            **{f"optimizer {index}": share.optimizer.state_dict() for index, share in enumerate(self.shares)},
            **({} if self.scaler is None else {"scaler": self.scaler.state_dict()}),
            "window": {
                "gradients": {name: grad for name, grad in grads.items() if grad is not None},
                "micro-batches": [[micro.total, micro.items] for micro in self.ledger.micro_batches],
                "items": self.ledger.items,
            },
            "generator": self.stream.state,
            "calls": list(self.segment_calls()),
        }

    def save(self, path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)
        ways.write(self.recipe.way("save"), self.parts(), path / FILE)

    def restore(self, path: Path) -> None:
        self._restore(path)

    def restore_in(self, path: Path, order: LoadOrder) -> None:
        self._restore(path, order)

    def _restore(self, path: Path, order: LoadOrder | None = None) -> None:
        """Restores the file of `save`.

        Model, optimizers and scaler are created again, as in a process that resumes, and replace the old ones when all
        parts are loaded. A part counts as refused if `set_state_dict` warns that it skips it.
        """
        file = path / FILE
        resumed = self.anew()
        try:
            saved = ways.read(self.recipe, file)
            same_parts(file, saved if isinstance(saved, dict) else (), resumed.parts())
            if order == "scaler-used":
                resumed.use_scaler()
            resumed.load(saved, reverse=order == "optimizer-first")
            if order in ("schedule-made-last", "schedule-made-there"):
                resumed._make_schedules(saved, there=order == "schedule-made-there")
        except ValueError:
            raise
        except Exception as error:  # Paddle raises various types for an unreadable file
            raise ValueError(f"{file}: {type(error).__name__}: {error}") from error
        vars(self).update(vars(resumed))

    def take(self, other: Trainer) -> None:
        resumed = self.anew()
        resumed.load(of_same_class(self, other).parts())
        vars(self).update(vars(resumed))

    def _make_schedules(self, saved: dict[str, Any], *, there: bool) -> None:
        """Gives loaded optimizers new schedules, made at the step of the saved ones if `there`, otherwise loaded."""
        for index, share in enumerate(self.shares):
            state = saved[f"optimizer {index}"].get("LR_Scheduler", {})
            last = state.get("last_epoch", 0) - 1 if there else -1
            schedule = share.scheduler = optimizers.schedule_of(self.recipe, last)
            if schedule is not None:
                share.optimizer.set_lr_scheduler(schedule)
                if not there:
                    schedule.set_state_dict(state)

    def load(self, saved: dict[str, Any], *, reverse: bool = False) -> None:
        """Loads every part, or the last one first; raises where `set_state_dict` only warns."""
        loads = (self._load_model, self._load_optimizers, self._load_scaler, self._load_loop)
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message="Skip loading")
            for load_part in reversed(loads) if reverse else loads:
                load_part(saved)

    def _load_model(self, saved: dict[str, Any]) -> None:
        self.network.set_state_dict(saved["model"])

    def _load_optimizers(self, saved: dict[str, Any]) -> None:
        for index, share in enumerate(self.shares):
            share.optimizer.set_state_dict(saved[f"optimizer {index}"])

    def _load_scaler(self, saved: dict[str, Any]) -> None:
        if self.scaler is not None and self.scaler.is_enable():
            self.scaler.load_state_dict(saved["scaler"])

    def _load_loop(self, saved: dict[str, Any]) -> None:
        for name, parameter in self.network.named.items():
            gradient = saved["window"]["gradients"].get(name)
            put_gradient(parameter, to_tensor(gradient, parameter) if isinstance(gradient, np.ndarray) else gradient)
        window = [MicroBatch(float(total), int(items)) for total, items in saved["window"]["micro-batches"]]
        self.ledger.replace(window, int(saved["window"]["items"]))
        self.stream.state = saved["generator"]
        for segment, count in zip(self.network.segments, saved["calls"], strict=True):
            segment.calls = int(count)

    def use_scaler(self) -> None:
        """Scales a loss that nothing is done with."""
        if self.scaler is not None:
            with self._running(), self._precision():
                self.scaler.scale(paddle.ones([1]))

    def saved_bytes(self, batch: Batch) -> int:
        state, buffers = self.stream.state, self.buffers()
        calls = self.segment_calls()
        try:
            with self._running():
                tensors = self._batch(batch)
                return settings.allocated_bytes(lambda: add(self._losses(tensors)))
        finally:
            self.stream.state = state
            for segment, count in zip(self.network.segments, calls, strict=True):
                segment.calls = count
            for name, value in buffers.items():
                self.network.statistics[name].set_value(value)

    def peak_bytes(self) -> int:
        self.require(Capability.PEAK_BYTES)
        return settings.peak_bytes()


NO_BACKGROUND = "on a CPU paddle.distributed.save_state_dict(async_save=True) raises TypeError: device should be gpu"


class PaddleValues(LiveValues):
    """Tensors."""

    def make(self, kind: Kind, value: float, size: int) -> Any:
        return paddle.full([size], value, "float32")

    def overwrite(self, kind: Kind, current: Any, value: float) -> Any:
        return current.fill_(value)

    def to_array(self, kind: Kind, current: Any) -> Array:
        return np.array(current.numpy())


class PaddleSeries(SaveSeries):
    """Saves of one dictionary of tensors, each in a folder of its own."""

    def __init__(self, folder: Path, values: LiveValues, shared: str) -> None:
        self._folder, self._values = folder, values

    def save(self, step: int, gate: Gate | None = None) -> None:
        save_state_dict(self._values.tree, str(self._folder / str(step)))

    def load(self, step: int, target: LiveValues) -> None:
        path = self._folder / str(step)
        try:
            load_state_dict(target.tree, str(path))
        except Exception as error:
            raise ValueError(f"{path} cannot be loaded: {type(error).__name__}: {error}") from error


def saves_in_background() -> bool:
    """Returns whether a save in the background can be read."""
    saved, loaded = paddle.ones([4]), paddle.zeros([4])
    with tempfile.TemporaryDirectory() as folder:
        save_state_dict({"value": saved}, folder, async_save=True)
        load_state_dict({"value": loaded}, folder)
    return bool((loaded == saved).all())


SAVER = ValueSaver(PaddleValues, PaddleSeries, ("tensor",), ("none",))
