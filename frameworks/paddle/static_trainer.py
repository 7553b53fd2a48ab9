"""One training run in static mode: programs built once for each kind of batch, run by an `Executor`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import paddle

from fixtures.arrays import Array
from fixtures.model import Batch, Model, Window
from fixtures.recipe import Recipe
from frameworks.base import BaseTrainer
from frameworks.contract import Capability, Gradients, Unsupported, Update
from frameworks.paddle import memory, static_checkpoint
from frameworks.paddle.arrays import canonical, format_name, stored
from frameworks.paddle.batches import add
from frameworks.paddle.modules import Network, item_losses
from frameworks.paddle.optimizers import build_shares, steps_of
from frameworks.paddle.scaling import build_scaler, read_settings, skipped_by_counters
from frameworks.paddle.static_programs import Built, Store
from frameworks.paddle.streams import Stream

SCALE, GOOD, BAD = "loss_scaling_0", "num_good_steps_0", "num_bad_steps_0"
_ONE = "the static graph accumulates no gradients: a window is one micro-batch"


class StaticTrainer(BaseTrainer):
    """A run of the static graph with `paddle.static.Program`, `auto_cast`, `amp.decorate` and `GradScaler.minimize`.

    A whole update is one run of one program, so a window is one micro-batch and `apply` only reports. `skipped` is read
    from the scale and the step counters that `GradScaler` keeps in the scope or, where they cannot tell, from whether
    parameters or slots changed.
    """

    def __init__(self, model: Model, recipe: Recipe, weights: Mapping[str, Array]) -> None:
        self.model, self.recipe = model, recipe
        self.stream, self.store = Stream(recipe.seed), Store()
        self.programs: dict[tuple[object, ...], Built] = {}
        self.heads = tuple(head.name for head in model.heads.heads)
        self.scheduler: Any = None
        self._settings: dict[str, Any] = {}
        self.pending: Update | None = None
        first = self._forward_program(masked=False, heads=self.heads, training=False)
        self.stored_names = first.parameters
        for name, value in weights.items():
            self.store.write(self.stored_names[name], stored(np.asarray(value)))
        if recipe.schedule is not None or recipe.scaling is not None:
            self._feed_program(tuple(weights))

    def _network(self, *, training: bool) -> Network:
        network = Network(self.model)
        network.train() if training else network.eval()
        return network

    def _names(self, network: Network) -> dict[str, str]:
        statistics = {f"buffer/{name}": value.name for name, value in network.statistics.items()}
        return {name: parameter.name for name, parameter in network.named.items()} | statistics

    def _precision(self) -> AbstractContextManager[None]:
        precision = self.recipe.precision
        if precision.level == "O0":
            return paddle.amp.auto_cast(enable=False, dtype="float16") if self.recipe.scaling else nullcontext()
        return paddle.amp.auto_cast(level="O1" if precision.level == "O1" else "O2", dtype=precision.format)

    def _inputs(self) -> Any:
        kind = "int64" if self.model.integer_inputs else "float32"
        inputs = paddle.static.data("inputs", [None, *self.model.sample], kind)
        if not self.model.integer_inputs:
            inputs.stop_gradient = False  # without it the backward of a bfloat16 matmul crashes the process
        return inputs

    def _loss(self, network: Network, heads: tuple[str, ...], *, masked: bool) -> Any:
        kinds = dict(self.model.losses)
        inputs = self._inputs()
        positions = list(self.model.sample) if self.model.token_level else []
        mask = paddle.static.data("mask", [None, *positions], "float32") if masked else None
        items = paddle.static.data("items", [], "float32")
        losses = []
        with self._precision():
            for name, output in network(inputs, heads).items():
                if kinds[name] == "cross_entropy":
                    target = paddle.static.data(f"target.{name}", [None, *positions], "int64")
                else:
                    target = paddle.static.data(f"target.{name}", [None, output.shape[-1]], "float32")
                each = item_losses(kinds[name], output, target)
                total = (each if mask is None else each * mask).sum()
                losses.append(total / items.astype(total.dtype))
        return add(losses)

    def _optimizer(self, network: Network) -> Any:
        (share,) = build_shares(self.recipe, network.named, static=True, scheduler=self.scheduler)
        self.scheduler = share.scheduler
        return share.optimizer

    def _minimize(self, network: Network, loss: Any, startup: Any) -> None:
        optimizer = self._optimizer(network)
        if self.recipe.scaling is None:
            optimizer.minimize(loss, startup_program=startup)
            return
        dtype = "float16" if self.recipe.precision.level == "O0" else self.recipe.precision.format
        _, decorated = paddle.amp.decorate(models=network, optimizers=optimizer, level="O1", dtype=dtype)
        scaler = build_scaler(self.recipe.scaling)
        scaled = scaler.scale(loss)
        self._settings = {"dynamic": scaler.is_use_dynamic_loss_scaling(), "enabled": scaler.is_enable()}
        self._settings |= read_settings(scaler)
        scaler.minimize(decorated, scaled, startup_program=startup)

    def _cached(self, key: tuple[object, ...], make: Any) -> Built:
        if key not in self.programs:
            with self.stream.open():
                state = self.stream.state
                self.programs[key] = self.store.build(make)
                paddle.set_rng_state(state)
        return self.programs[key]

    def _forward_program(self, *, masked: bool, heads: tuple[str, ...], training: bool) -> Built:
        def make(startup: Any) -> tuple[tuple[Any, ...], dict[str, str]]:
            network = self._network(training=training)
            if training:
                loss = self._loss(network, heads, masked=masked)
                self._minimize(network, loss, startup)
                return (loss,), self._names(network)
            inputs = self._inputs()
            with self._precision():
                outputs = network(inputs, heads)
            with paddle.amp.auto_cast(enable=False):
                shown = [value.astype("float32") if _low(value) else value for value in outputs.values()]
            self.output_formats = {name: format_name(value.dtype) for name, value in outputs.items()}
            return tuple(shown), self._names(network)

        return self._cached(("update" if training else "predict", heads, masked), make)

    def _gradient_program(self, *, masked: bool, heads: tuple[str, ...]) -> Built:
        def make(_: Any) -> tuple[tuple[Any, ...], dict[str, str]]:
            network = self._network(training=True)
            found = paddle.static.append_backward(self._loss(network, heads, masked=masked))
            pairs = [(parameter, grad) for parameter, grad in found if grad is not None]
            names = {value: name for name, value in self._names(network).items()}
            return tuple(grad for _, grad in pairs), {names[p.name]: p.name for p, _ in pairs}

        return self._cached(("gradients", heads, masked), make)

    def _feed_program(self, fed: tuple[str, ...]) -> Built:
        def make(startup: Any) -> tuple[tuple[Any, ...], dict[str, str]]:
            network = self._network(training=True)
            terms = []
            with self._precision():
                for name in fed:
                    p = network.named[name]
                    given = paddle.static.data(f"gradient.{name}", list(p.shape), format_name(p.dtype))
                    terms.append((p * given).sum())
            loss = add(terms) if terms else paddle.zeros([])
            self._minimize(network, loss, startup)
            return (loss,), self._names(network)

        return self._cached(("feed", fed), make)

    def _feed_of(self, batch: Batch) -> tuple[dict[str, Array], tuple[str, ...]]:
        heads = tuple(name for name in self.heads if name in batch.targets)
        feed = {"inputs": np.asarray(batch.inputs), "items": np.array(batch.items, np.float32)}
        for name in heads:
            target = np.asarray(batch.targets[name])
            feed[f"target.{name}"] = target if target.dtype.kind in "iu" else target.astype(np.float32)
        if batch.mask is not None:
            feed["mask"] = np.asarray(batch.mask)
        return feed, heads

    def accumulate(self, batch: Batch, items: int) -> float:
        if batch.items != items or self.pending is not None:
            raise Unsupported(Capability.ACCUMULATION, _ONE)
        feed, heads = self._feed_of(batch)
        built = self._forward_program(masked=batch.mask is not None, heads=heads, training=True)
        loss, update = self._run(built, feed)
        self.pending = Update(loss, (loss,), *update)
        return loss

    def apply(self) -> Update:
        if self.pending is None:
            raise ValueError("there is no micro-batch to apply")
        update, self.pending = self.pending, None
        return update

    def _run(self, built: Built, feed: Mapping[str, Array]) -> tuple[float, tuple[Any, ...]]:
        rate = self._rate()
        before = self._counters()
        edge = bool(before) and skipped_by_counters(before, {**before, "incr_count": 0}) is None
        watched = edge or bool(before and before["incr_count"] + 1 >= before["incr_every_n_steps"])
        mark = self.store.snapshot() if watched else {}
        with self.stream.open():
            (loss,) = self.store.run(built, feed)
        after = self._counters()
        skipped = skipped_by_counters(before, after) if before else False
        if skipped is None:
            counters = {SCALE, GOOD, BAD}
            skipped = all(self.store.read(n).tobytes() == v.tobytes() for n, v in mark.items() if n not in counters)
        if self.scheduler is not None and not skipped:
            self.scheduler.step()
        scales = [float(state["scale"][0]) if state else 1.0 for state in (before, after)]
        good = int(after["incr_count"]) if after and after["use_dynamic_loss_scaling"] else None
        return float(loss), (scales[0], scales[1], good, skipped, None, rate)

    def _rate(self) -> float:
        return float(self.recipe.optimizer.learning_rate if self.scheduler is None else self.scheduler())

    def _counters(self) -> dict[str, Any]:
        """The scaler's variables in the form of `GradScaler.state_dict`; empty without an enabled scaler."""
        if not self._settings.get("enabled"):
            return {}
        dynamic = self._settings["dynamic"]
        found = {"scale": self.store.read(SCALE), "use_dynamic_loss_scaling": dynamic, "incr_count": 0}
        if dynamic:
            found |= {"incr_count": int(self.store.read(GOOD)[0]), "decr_count": int(self.store.read(BAD)[0])}
        return {**found, "incr_every_n_steps": self._settings["interval"]}

    def gradients(self, window: Window) -> dict[str, Array]:
        if len(window) != 1:
            raise Unsupported(Capability.ACCUMULATION, _ONE)
        feed, heads = self._feed_of(window[0])
        built = self._gradient_program(masked=window[0].mask is not None, heads=heads)
        with self.stream.open():
            values = self.store.run(built, feed)
        found = dict(zip(built.parameters, values, strict=True))
        return {name: canonical(np.asarray(found[name])) for name in self.model.parameter_shapes() if name in found}

    def feed(
        self,
        *window: Gradients,
        unscale_calls: int | None = None,
        poison: Gradients | None = None,
        abandon: bool = False,
    ) -> Update:
        if unscale_calls or poison or abandon:
            raise Unsupported(Capability.EXPLICIT_UNSCALE, "GradScaler.minimize is one call in static mode")
        if len(window) != 1:
            raise Unsupported(Capability.ACCUMULATION, _ONE)
        given = {name: value for name, value in window[0].items() if value is not None}
        built = self._feed_program(tuple(given))
        feed = {f"gradient.{name}": stored(np.asarray(value, np.float32)) for name, value in given.items()}
        return Update(math.nan, (), *self._run(built, feed)[1])

    def parameters(self) -> dict[str, Array]:
        return {name: canonical(self.store.read(self.stored_names[name])) for name in self.model.parameter_shapes()}

    def optimizer_state(self) -> dict[str, Array]:
        owners = {self.stored_names[name]: name for name in self.model.parameter_shapes()}
        found: dict[str, Array] = {}
        for variable in self.store.names:
            owner = max((own for own in owners if variable.startswith(f"{own}_")), key=len, default=None)
            if owner is not None:
                slot = variable[len(owner) + 1 :].rsplit("_", 1)[0]
                found[f"{slot}/{owners[owner]}"] = canonical(self.store.read(variable))
        if self.scheduler is not None:
            found["schedule"] = np.array(self.scheduler.last_epoch, np.int64)
        steps = steps_of(self.recipe.optimizer, found)
        return found if steps is None else {**found, "steps": np.array(steps, np.int64)}

    def buffers(self) -> dict[str, Array]:
        return {name: self.store.read(self.stored_names[f"buffer/{name}"]) for name in self.model.buffer_shapes()}

    def scaler_state(self) -> dict[str, Array]:
        if not self._counters():
            return {}
        names = {"scale": SCALE, "good_steps": GOOD, "bad_steps": BAD}
        return {name: self.store.read(key).reshape(()) for name, key in names.items() if key in self.store.names}

    def scaler_settings(self) -> dict[str, float]:
        return {name: value for name, value in self._settings.items() if name not in ("dynamic", "enabled")}

    def random_state(self) -> dict[str, Array]:
        return {"generator": self.stream.words()}

    def predict(self, inputs: Array) -> dict[str, Array]:
        import ml_dtypes

        built = self._forward_program(masked=False, heads=self.heads, training=False)
        with self.stream.open():
            values = self.store.run(built, {"inputs": np.asarray(inputs)})
        wanted = {n: np.dtype(ml_dtypes.bfloat16 if f == "bfloat16" else f) for n, f in self.output_formats.items()}
        return {name: np.asarray(v).astype(wanted[name]) for name, v in zip(self.heads, values, strict=True)}

    def segment_calls(self) -> tuple[int, ...]:
        raise Unsupported(Capability.SEGMENT_CALLS, "a segment's Python code runs only when the program is built")

    def save(self, path: Path) -> None:
        static_checkpoint.save(self, path)

    def restore(self, path: Path) -> None:
        static_checkpoint.restore(self, path)

    def saved_bytes(self, batch: Batch) -> int:  # noqa: ARG002
        raise Unsupported(Capability.SAVED_BYTES, "forward and backward are one program")

    def peak_bytes(self) -> int:
        return memory.peak_bytes()


def _low(value: Any) -> bool:
    return format_name(value.dtype) in ("float16", "bfloat16")
