"""One training run in static mode, by programs for each kind of batch that an `Executor` runs, and its checkpoints."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import paddle

from fixtures.arrays import Array
from fixtures.model import Batch, Model, Window
from fixtures.recipe import Recipe
from frameworks.base import BaseTrainer, of_same_class, same_parts
from frameworks.contract import Capability, Gradients, LayerTrace, LoadOrder, Trainer, Update
from frameworks.paddle.core import settings as devices
from frameworks.paddle.core.settings import canonical, to_paddle_layout
from frameworks.paddle.static.programs import MASTER, BuiltProgram, Programs, Reduction
from frameworks.paddle.training.optimizers import (
    UpdateAfterLosses,
    counters,
    read_update,
    schedule_of,
    skipped_by_counters,
)

PROGRAM, REST = "program", "rest.pdparams"
SCALE, GOOD, BAD = "loss_scaling_0", "num_good_steps_", "num_bad_steps_"


class StaticTrainer(BaseTrainer):
    """A run of the static graph with `paddle.static.Program`, `auto_cast`, `amp.decorate` and `GradScaler.minimize`.

    A whole update is one run of one program, so a window is one micro-batch and `apply` only reports. `skipped` is read
    from the scale and the step counters that `GradScaler` keeps in the scope or, where these are ambiguous or there are
    several optimizers, from whether parameters or slots changed.

    Attributes:
        stored_names: stored names of parameters and statistics.
    """

    def __init__(
        self, model: Model, recipe: Recipe, weights: Mapping[str, Array], reduction: Reduction | None = None
    ) -> None:
        self.model, self.recipe = model, recipe
        self.programs = Programs(model, recipe, reduction)
        self.stream, self.store = self.programs.stream, self.programs.store
        self.pending: Update | None = None
        self.stored_names = self.programs.begin(weights, to_paddle_layout)
        if recipe.schedule is not None or recipe.scaling is not None or recipe.optimizers > 1:
            self.programs.training()

    def anew(self) -> StaticTrainer:
        """A new run, as created by a process that resumes."""
        return StaticTrainer(self.model, self.recipe, self.model.weights(self.recipe.seed))

    def schedulers(self) -> list[Any]:
        """The schedules of the optimizers that have one."""
        return [share.scheduler for share in self.programs.shares if share.scheduler is not None]

    # checkpoints: the variables of the training program, and a dictionary of other state

    def _rest(self) -> dict[str, Any]:
        schedules = {f"schedule {index}": scheduler.state_dict() for index, scheduler in enumerate(self.schedulers())}
        return {**schedules, "generator": self.stream.state}

    def save(self, path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)
        self.store.save(self.programs.training(), path / PROGRAM)
        paddle.save(self._rest(), str(path / REST))

    def restore(self, path: Path) -> None:
        vars(self).update(vars(self.load_run(path)))

    def restore_in(self, path: Path, order: LoadOrder) -> None:
        vars(self).update(vars(self.load_run(path, order)))

    def load_run(self, folder: Path, order: LoadOrder | None = None) -> StaticTrainer:
        """The run from the files of `save`, with new program, scope and schedules, as in a new process.

        Raises:
            ValueError: a file is missing, cut short or foreign, or Paddle refuses it.
        """
        file = folder / REST
        resumed = self._anew_with_frozen()
        try:
            training = resumed.programs.training()
            rest = paddle.load(str(file))
            same_parts(file, rest if isinstance(rest, dict) else (), resumed._rest())
            if order == "scaler-used":
                resumed.programs.use_scaler()
            if order == "optimizer-first":
                resumed._load_schedules(rest)
                resumed.store.load_in_two_steps(training, folder / PROGRAM, tuple(resumed.stored_names.values()))
            else:
                resumed.store.load(training, folder / PROGRAM)
                if order in ("schedule-made-last", "schedule-made-there"):
                    resumed._make_schedules(rest, there=order == "schedule-made-there")
                if order != "schedule-made-there":
                    resumed._load_schedules(rest)
            resumed.stream.state = rest["generator"]
        except ValueError:
            raise
        except Exception as error:  # Paddle raises various types for an unreadable file
            raise ValueError(f"{folder}: {type(error).__name__}: {error}") from error
        return resumed

    def take(self, other: Trainer) -> None:
        other = of_same_class(self, other)
        resumed = self._anew_with_frozen()
        other.programs.training()
        resumed.store.take(resumed.programs.training(), other.store)
        resumed._load_schedules(other._rest())
        resumed.stream.state = other.stream.state
        vars(self).update(vars(resumed))

    def _anew_with_frozen(self) -> StaticTrainer:
        resumed = self.anew()
        resumed.programs.frozen = self.programs.frozen
        return resumed

    def _load_schedules(self, rest: dict[str, Any]) -> None:
        for index, scheduler in enumerate(self.schedulers()):
            scheduler.set_state_dict(rest[f"schedule {index}"])

    def _make_schedules(self, rest: dict[str, Any], *, there: bool) -> None:
        """Builds programs with new schedules; `there`: they begin at the step of the saved ones."""
        last_updates = [rest[f"schedule {index}"]["last_epoch"] for index, _ in enumerate(self.schedulers())]
        if last_updates:
            self.programs.renew_schedules(schedule_of(self.recipe, n - 1 if there else -1) for n in last_updates)

    # updates

    def _feed_of(self, batch: Batch, items: int) -> tuple[dict[str, Array], tuple[str, ...]]:
        formats = {head.name: head.format for head in self.model.heads.heads}
        heads = tuple(name for name in self.programs.heads if name in batch.targets)
        feed = {"inputs": np.asarray(batch.inputs), "items": np.array(items, np.float32)}
        for name in heads:
            target = np.asarray(batch.targets[name])
            wide = np.float64 if formats[name] == "float64" else np.float32
            feed[f"target.{name}"] = target if target.dtype.kind in "iu" else target.astype(wide)
        if batch.mask is not None:
            feed["mask"] = np.asarray(batch.mask)
        return feed, heads

    def accumulate(self, batch: Batch, items: int) -> float:
        if batch.items != items or self.pending is not None:
            raise self.refusal(Capability.ACCUMULATION)
        return self._update_by(batch, items)

    def _update_by(self, batch: Batch, items: int) -> float:
        """Makes the update of a batch, which `apply` reports; returns the mean loss of the batch's own items."""
        feed, heads = self._feed_of(batch, items)
        built = self.programs.update(heads, masked=batch.mask is not None, present=self._present(heads))
        loss, update = self._run(built, feed)
        if batch.items != items:
            loss = loss * items / batch.items if batch.items else math.nan
        self.pending = Update(loss, (loss,), *update)
        return loss

    def _present(self, heads: tuple[str, ...]) -> tuple[str, ...]:
        """Heads with targets in the whole micro-batch; this run's part has targets for the given ones."""
        return heads

    def apply(self) -> Update:
        if self.pending is None:
            raise ValueError("there is no micro-batch to apply")
        update, self.pending = self.pending, None
        return update

    def _run(self, built: BuiltProgram, feed: Mapping[str, Array]) -> tuple[float, UpdateAfterLosses]:
        rate = self._rate()
        before = self._counters()
        several = len(self.programs.shares) > 1
        edge = bool(before) and skipped_by_counters(before, {**before, "incr_count": 0}) is None
        watched = several or edge or bool(before and before["incr_count"] + 1 >= before["incr_every_n_steps"])
        mark = self.store.snapshot() if watched else {}
        with self.stream.open():
            (loss,) = self.store.run(built, feed)
        after = self._counters()
        skipped = skipped_by_counters(before, after) if before and not several else None
        if skipped is None:
            applied = [not before or self._has_changed(share.names, mark) for share in self.programs.shares]
        else:
            applied = [not skipped] * len(self.programs.shares)
        for share, was_applied in zip(self.programs.shares, applied, strict=True):
            if share.scheduler is not None and was_applied:
                share.scheduler.step()
        return float(loss), read_update(before, after, rate, skipped=not any(applied))

    def _has_changed(self, names: tuple[str, ...], mark: Mapping[str, Array]) -> bool:
        """Returns whether one of these parameters, or its optimizer state, has changed."""
        owners = tuple(self.stored_names[name] for name in names)
        own = [name for name in mark if name in owners or name.startswith(tuple(f"{owner}_" for owner in owners))]
        return any(self.store.read(name).tobytes() != mark[name].tobytes() for name in own)

    def _rate(self) -> float:
        schedulers = self.schedulers()
        return float(schedulers[0]() if schedulers else self.recipe.optimizer.learning_rate)

    def _counters(self) -> dict[str, Any]:
        """The scaler's variables in the form of `GradScaler.state_dict`; empty without an enabled scaler."""
        settings = self.programs.settings
        if not settings.get("enabled"):
            return {}
        state = {"scale": self.store.read(SCALE), "use_dynamic_loss_scaling": settings["dynamic"], "incr_count": 0}
        if settings["dynamic"]:
            good, bad = (int(self.store.read(f"{name}0")[0]) for name in (GOOD, BAD))
            state |= {"incr_count": good, "decr_count": bad}
        return {**state, "incr_every_n_steps": settings["interval"]}

    def gradients(self, window: Window) -> dict[str, Array]:
        return self._gradients(window, sum(batch.items for batch in window))

    def _gradients(self, window: Window, items: int) -> dict[str, Array]:
        if len(window) != 1:
            raise self.refusal(Capability.ACCUMULATION)
        feed, heads = self._feed_of(window[0], items)
        masked = window[0].mask is not None
        built = self.programs.gradients(heads, masked=masked, present=self._present(heads))
        with self.stream.open():
            values = self.store.run(built, feed)
        gradients = dict(zip(built.parameters, values, strict=True))
        return {
            name: canonical(np.asarray(gradients[name])) for name in self.model.parameter_shapes() if name in gradients
        }

    def trace(self, batch: Batch) -> LayerTrace:
        feed, heads = self._feed_of(batch, batch.items)
        built = self.programs.build_trace(heads, masked=batch.mask is not None)
        with self.stream.open():
            values = self.store.run(built, feed)
        fetched = dict(zip(built.parameters, values, strict=True))

        def of(kind: str, names: Iterable[str]) -> dict[str, Array]:
            return {name: fetched[f"{kind}/{name}"] for name in names if f"{kind}/{name}" in fetched}

        paths, parameters = self.model.output_shapes(), of("parameter", self.model.parameter_shapes())
        gradients = {name: canonical(value) for name, value in parameters.items()}
        return LayerTrace(of("output", paths), of("gradient", paths), gradients)

    def apply_gradients(
        self,
        *window: Gradients,
        unscale_calls: int | None = None,
        inject: Gradients | None = None,
        discard: bool = False,
    ) -> Update:
        if unscale_calls or inject or discard:
            raise self.refusal(Capability.EXPLICIT_UNSCALE)
        if len(window) != 1:
            raise self.refusal(Capability.ACCUMULATION)
        gradients = {name: value for name, value in window[0].items() if value is not None}
        built = self.programs.build_gradient_update(tuple(gradients))
        feed = {}
        for name, value in gradients.items():
            wide = np.float64 if self.store.read(self.stored_names[name]).dtype == np.float64 else np.float32
            feed[f"gradient.{name}"] = to_paddle_layout(np.asarray(value, wide))
        return Update(math.nan, (), *self._run(built, feed)[1])

    def parameters(self) -> dict[str, Array]:
        return {name: canonical(self.store.read(self.stored_names[name])) for name in self.model.parameter_shapes()}

    def master_parameters(self) -> dict[str, Array]:
        masters = {name.partition(MASTER)[0]: name for name in self.store.initial if MASTER in name}
        own = {name: self.stored_names[name] for name in self.model.parameter_shapes()}
        return {name: canonical(self.store.read(masters.get(variable, variable))) for name, variable in own.items()}

    def optimizer_state(self) -> dict[str, Array]:
        self.programs.training()  # create the optimizer's variables, if there was no update yet
        owners = {self.stored_names[name]: name for name in self.model.parameter_shapes()}
        slots: dict[str, Array] = {}
        for variable in self.store.initial:
            owner = max((own for own in owners if variable.startswith(f"{own}_")), key=len, default=None)
            if owner is not None and MASTER not in variable:
                slot = variable[len(owner) + 1 :].rsplit("_", 1)[0]
                slots[f"{slot}/{owners[owner]}"] = canonical(self.store.read(variable))
        for index, scheduler in enumerate(self.schedulers()):
            slots[f"schedule/{index}" if index else "schedule"] = np.array(scheduler.last_epoch, np.int64)
        return slots | counters(self.recipe.optimizer, slots)

    def buffers(self) -> dict[str, Array]:
        return {name: self.store.read(self.stored_names[f"buffer/{name}"]) for name in self.model.buffer_shapes()}

    def scaler_state(self) -> dict[str, Array]:
        if not self._counters():
            return {}
        names = {"scale": SCALE}
        for index in range(len(self.programs.shares)):
            own = f"/{index}" if index else ""
            names |= {f"good_steps{own}": f"{GOOD}{index}", f"bad_steps{own}": f"{BAD}{index}"}
        return {name: self.store.read(key).reshape(()) for name, key in names.items() if key in self.store.initial}

    def scaler_settings(self) -> dict[str, float]:
        return {name: value for name, value in self.programs.settings.items() if name not in ("dynamic", "enabled")}

    def random_state(self) -> dict[str, Array]:
        return {"generator": self.stream.words()}

    def predict(self, inputs: Array) -> dict[str, Array]:
        with self.stream.open():
            values = self.store.run(self.programs.evaluation(), {"inputs": np.asarray(inputs)})
        return dict(zip(self.programs.heads, values, strict=True))

    def freeze(self, names: Collection[str]) -> None:
        self.programs.frozen = frozenset(self.recipe.frozen) | frozenset(names)

    def peak_bytes(self) -> int:
        self.require(Capability.PEAK_BYTES)
        return devices.peak_bytes()
