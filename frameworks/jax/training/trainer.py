"""One training run, following the examples of Flax, Optax and JMP: its readable state, checkpoints and traces.

`sow` stores the output of every layer. `perturb` adds a zero to the output; the gradient for that zero is the gradient
for the output.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial, reduce
from pathlib import Path
from typing import Any, cast

import jax
import jax.numpy as jnp
import jmp
import numpy as np
import orbax.checkpoint as ocp
from jax.ad_checkpoint import checkpoint_name

from fixtures.arrays import Array
from fixtures.model import Batch, Model, Window
from fixtures.recipe import Offload, Recipe
from frameworks.base import (
    NO_AVERAGE,
    BaseTrainer,
    LossLedger,
    ending,
    of_same_class,
    over_window,
    traced_paths,
    unscaled_in_trace,
)
from frameworks.contract import (
    AmaxHistories,
    AmaxHistory,
    BackgroundRule,
    Capability,
    Gate,
    Gradients,
    Kind,
    LayerTrace,
    LiveValues,
    Operand,
    SaveSeries,
    Trainer,
    Unsupported,
    Update,
    ValueSaver,
)
from frameworks.jax import quantization
from frameworks.jax.core import ways
from frameworks.jax.core.layers import PERTURBATIONS, DeviceBatch, leaves_of, load_batch, segments
from frameworks.jax.core.settings import (
    PINNED_HOST,
    Flat,
    Place,
    arrays_of,
    flat,
    peak_bytes,
    saved_bytes,
    wide_formats,
)
from frameworks.jax.probes import TAKES_EACH_IN, window_waits_for_the_caller
from frameworks.jax.training import optimizers
from frameworks.jax.training.optimizers import LossScale, RunState, ScaleUpdate
from frameworks.jax.training.steps import (
    CarriedState,
    CompiledSteps,
    JaxMicroBatch,
    Plan,
    UpdateResult,
    differentiate_losses,
    runs_in_a_pass,
    steps_of,
    unscale_gradients,
    update,
)

FOLDER = "run"
_FIELDS = ("total", "items", "scale_before", "finite", "applied", "rate")


@partial(jax.jit, static_argnames="steps")
def trace_layers(
    steps: CompiledSteps, parameters: Flat, moved: CarriedState, scale: LossScale, batch: DeviceBatch, items: jax.Array
) -> tuple[Flat, tuple[Flat, Flat], CarriedState]:
    """Output of every layer by joined path; the gradients for the parameters and for these outputs; what has moved.

    The gradients are scaled, like those of `CompiledSteps.backward`.
    """

    def means(trees: tuple[Flat, Flat]) -> tuple[list[jax.Array], tuple[CarriedState, Flat]]:
        sums, after, outputs = steps.forward(trees[0], moved, batch, trees[1])
        return steps.means(sums, items), (after, outputs)

    gradients, _, (after, outputs) = differentiate_losses(scale, means, (parameters, _zeros(steps, batch)))
    return outputs, gradients, after


def _zeros(steps: CompiledSteps, batch: DeviceBatch) -> Flat:
    """A zero for each value of every layer's output on this batch, in its format."""
    key = jax.eval_shape(lambda: jax.random.key(0))
    shapes: Any = jax.eval_shape(partial(steps.network.init, train=False), key, batch.inputs)
    return {path: jnp.zeros(struct.shape, struct.dtype) for path, struct in flat(shapes[PERTURBATIONS]).items()}


class JaxTrainer(BaseTrainer):
    """A run on one device; windows of several micro-batches are `optax.MultiSteps`'s, which ends them itself.

    Attributes:
        train_state: parameters and the optimizer's state.
        scale: the loss scale, JMP's or Flax's.
        moved: running statistics and the random key's data.
        pending: gradients that wait for `apply`, with the check by Flax's scale; None if there are none.
        length: number of micro-batches of the open window.
        sharers: number of ranks whose gradients are given for a micro-batch.
    """

    train_state: RunState
    scale: LossScale
    sharers = 1

    def __init__(
        self, model: Model, recipe: Recipe, weights: Mapping[str, Array] | None, device: jax.Device, mode: str
    ) -> None:
        self.model = model
        self.recipe = recipe
        self.device = device
        self._wide = any(head.format == "float64" for head in model.heads.heads)
        self._eager = mode == "nojit"
        with self.scope():
            history, chosen = getattr(recipe.quantization, "history", None), recipe.ways_of("backward", "recompute")
            parts = (recipe.precision, recipe.recompute, recipe.separate_losses, history, chosen, recipe.frozen)
            self.steps = self._compile(Plan(model, *parts))
            self.layout = self.steps.layout
            initial_weights = model.weights(recipe.seed) if weights is None else weights
            leaves = leaves_of(self.layout, initial_weights, self.steps.shapes, self.place)
            key = jax.device_put(jax.random.key_data(jax.random.key(recipe.seed)), self.place)
            self.moved = CarriedState(
                leaves_of(self.layout, model.buffers(), self.steps.buffer_shapes, self.place), key
            )
            self._rules = optimizers.rules_of(recipe, self.layout.parameters, self._wide)
            tree = quantization.state_tree(leaves | self.steps.memory())
            state = RunState.create(apply_fn=None, params=tree, tx=optimizers.transformation(self._rules))
            average = None if recipe.average is None else leaves
            gathered = quantization.nothing_gathered(tree) if recipe.accumulation > 1 else None
            state = state.replace(step=jnp.zeros((), jnp.int32), average=average, overwritten=gathered)
            self.train_state = self._place_state(state)
            self.scale = optimizers.loss_scale(recipe, self.place)
        optimizers.refuse_several_gradients(self.scale, recipe)
        self._asked: Any = {"guarded": optimizers.is_dynamic(self.scale), "normed": recipe.clip is not None}
        self._asked |= {"decay": recipe.average, "chosen": recipe.ways_of("average", "scaling")}
        self._whole = self.steps.whole(**self._asked)
        self._settings = optimizers.settings(self.scale)
        self._schedule = optimizers.schedule_of(recipe)
        self.length = recipe.accumulation
        self._passes = 0
        self._loaded: DeviceBatch | None = None
        self.outcome: UpdateResult | None = None
        self.ledger: LossLedger[JaxMicroBatch] = LossLedger()
        self.pending: tuple[Flat, ScaleUpdate | None] | None = None

    @contextmanager
    def scope(self) -> Iterator[None]:
        """The context of the run: float64 if a head has it, and no compilation in mode "nojit"."""
        with wide_formats(self._wide), jax.default_device(self.device), jax.disable_jit(self._eager):
            yield

    @property
    def place(self) -> Place:
        """The placement of arrays that are not sharded."""
        return self.device

    def _compile(self, plan: Plan) -> CompiledSteps:
        return steps_of(plan)

    def _place_state(self, state: RunState) -> RunState:
        placed: RunState = jax.device_put(state, self.place)
        return placed

    # state of the run

    @property
    def leaves(self) -> Flat:
        """Every parameter by joined path, as the optimizer holds them, and the delayed-scaling state."""
        return quantization.leaves_in(self.train_state.params)

    def parameters(self) -> dict[str, Array]:
        with self.scope():
            return self.layout.arrays(self.steps.cast(self.leaves))

    def master_parameters(self) -> dict[str, Array]:
        return self.layout.arrays(self.leaves)

    def optimizer_state(self) -> dict[str, Array]:
        return optimizers.optimizer_state(self.train_state, self.layout, self._rules)

    def buffers(self) -> dict[str, Array]:
        return self.layout.arrays(self.moved.buffers) | quantization.delayed_scaling_state(self.leaves)

    def views(self) -> Mapping[type, Callable[[], Any]]:
        return {**super().views(), AmaxHistories: self.amax_histories, LiveValues: self._tree}

    def amax_histories(self) -> dict[str, dict[Operand, AmaxHistory]]:
        if not (result := quantization.amax_histories(self.leaves, self.layout.canonical)):
            raise self.refusal(Capability.FLOAT8_TRAINING)
        return result

    def scaler_state(self) -> dict[str, Array]:
        return optimizers.read_scale(self.scale)

    def scaler_settings(self) -> dict[str, float]:
        return self._settings

    def accumulator(self) -> dict[str, Array]:
        pending = self.pending[0] if self.pending else {}
        return self.of_trained(pending | optimizers.read_accumulators(self.train_state))

    def of_trained(self, leaves: Flat) -> dict[str, Array]:
        """Arrays by canonical name, without the zeros of parameters that are not trained."""
        result = self.layout.arrays(leaves)
        return {name: value for name, value in result.items() if name not in self.recipe.frozen}

    def random_state(self) -> dict[str, Array]:
        return {"key": np.array(self.moved.key)}

    def predict(self, inputs: Array) -> dict[str, Array]:
        return {name: np.array(value) for name, value in self.outputs(self.leaves, inputs).items()}

    def predict_averaged(self, inputs: Array) -> dict[str, Array]:
        return {name: np.array(value) for name, value in self.outputs(self.averages(), inputs).items()}

    def averages(self) -> Flat:
        """The average of the weights by joined path.

        Raises:
            ValueError: the recipe asks for no average.
        """
        if self.recipe.average is None:
            raise ValueError(NO_AVERAGE)
        result: Flat = self.train_state.average
        return result | quantization.amax_leaves(self.leaves)

    def outputs(self, leaves: Flat, inputs: Array) -> dict[str, jax.Array]:
        """Evaluation-mode forward with these parameters: output by head name."""
        with self.scope():
            return self.steps.predict(leaves, self.moved.buffers, jax.device_put(inputs, self.place))

    # forward and backward

    def _load(self, batch: Batch) -> DeviceBatch:
        self._passes += 1
        self._loaded = load_batch(self.model, batch)
        return self._loaded

    def _backward(self, batch: Batch, items: int) -> tuple[Flat, ScaleUpdate | None, list[jax.Array]]:
        gradients, judged, sums, self.moved = self.steps.backward(
            self.leaves, self.moved, self.scale, self._load(batch), np.float32(items)
        )
        return gradients, judged, sums

    def _micro_batch(self, batch: Batch, sums: list[jax.Array], before: float) -> JaxMicroBatch:
        return JaxMicroBatch(sum(total.item() for total in sums), batch.items, before)

    def accumulate(self, batch: Batch, items: int) -> float:
        with self.scope():
            before = self._scale()
            gradients, judged, sums = self._backward(batch, items)
            micro = self._hand_over(gradients, judged, self._micro_batch(batch, sums, before))
        return self.ledger.add(micro, items)

    def _hand_over(self, gradients: Flat, judged: ScaleUpdate | None, micro: JaxMicroBatch) -> JaxMicroBatch:
        """Hands the gradients to `optax.MultiSteps`, or keeps them for `apply`."""
        if self.recipe.accumulation == 1:
            if self.pending is not None:
                raise ValueError("this recipe's windows hold one micro-batch, and one waits for apply")
            self.pending = gradients, judged
            return micro
        rate = self._rate()
        outcome = self._update(unscale_gradients(self.scale, gradients, self.leaves), None, last=False)
        finite = outcome.finite is None or outcome.finite.item()
        return replace(micro, finite=finite, applied=outcome.is_applied(), rate=rate)

    def gradients(self, window: Window) -> dict[str, Array]:
        return self.of_trained(self.window_gradients(window))

    def window_gradients(self, window: Window) -> Flat:
        """`gradients` by joined path."""
        with self.scope():
            parts = [
                unscale_gradients(self.scale, scaled, self.leaves)
                for scaled, _, _ in over_window(window, self._backward)
            ]
            return reduce(partial(jax.tree.map, jnp.add), parts)

    # the update

    def update(self, window: Window) -> Update:
        """Makes an update. A window of one micro-batch is one compiled program, unless gradients wait for `apply`."""
        if len(window) > 1 or self.recipe.accumulation > 1 or self.ledger.micro_batches:
            self._begin(len(window))
            try:
                return super().update(window)
            finally:
                if not self.ledger.micro_batches:
                    self.resize(self.recipe.accumulation)
        (batch,) = window
        self.train_state = ways.with_rate(self._rules, self.train_state, self._rate)
        with self.scope() if self._wide or self._eager else nullcontext():
            before, rate = self._scale(), self._rate()
            self.train_state, self.scale, self.moved, sums, self.outcome = self._whole(
                self.train_state, self.moved, self.scale, self._load(batch), np.float32(batch.items)
            )
            moved, norm = self.outcome.is_applied(), self.outcome.read_norm()
            micro = self._micro_batch(batch, sums, before)
        self.ledger.add(micro, batch.items)
        return self._report(before, rate, norm, skipped=not moved)

    def _begin(self, length: int) -> None:
        """Begins a window of this length, which may be shorter than the others: `every_k_schedule` can change."""
        if length < self.recipe.accumulation and not optimizers.read_accumulators(self.train_state):
            self.resize(length)

    def resize(self, length: int) -> None:
        """Changes the length of windows and keeps the state of `optax.MultiSteps`."""
        if length != self.length:
            self.length = length
            with self.scope():
                window = optimizers.transformation(replace(self._rules, length=length))
                self.train_state = self.train_state.replace(tx=window)

    def _update(self, gradients: Flat, judged: ScaleUpdate | None, *, last: bool) -> UpdateResult:
        """Hands unscaled gradients to the optimizer; with the `last` micro-batch of its window the scale moves."""
        self.train_state = ways.with_rate(self._rules, self.train_state, self._rate)
        self.train_state, self.scale, self.outcome = update(
            self.train_state, self.scale, gradients, judged, **self._asked, last=last, pin=self.steps.pin
        )
        return self.outcome

    def apply(self) -> Update:
        return self._end_window() if self.recipe.accumulation > 1 else self._finish(1, None)

    def _end_window(self) -> Update:
        """Reports the window's result from `optax.MultiSteps`, and moves the loss scale once.

        A window that ends early is carried over: only a k-th micro-batch ends it. `optax.MultiSteps` does not count
        micro-batches that are not finite, so a window with one of them stays open too.
        """
        window = self.ledger.micro_batches
        moved, before, rate = ending(window)
        if not moved and len(window) < self.length:
            return self._window_update(before, rate, None, skipped=True)
        if self._asked["guarded"]:
            with self.scope():
                self.scale = optimizers.adjust_scale(self.scale, np.asarray(all(micro.finite for micro in window)))
        self.resize(self.recipe.accumulation)
        return self._report(before, rate, None, skipped=not moved)

    def apply_gradients(
        self,
        *window: Gradients,
        unscale_calls: int | None = None,
        inject: Gradients | None = None,
        discard: bool = False,
    ) -> Update:
        if (unscale_calls or 0) > 1 and not optimizers.unscales_itself(self.scale):
            raise self.refusal(Capability.SECOND_UNSCALE)
        manual = inject is not None or discard
        calls = optimizers.unscale_calls(self.scale, unscale_calls, manual=manual)
        if manual and self.recipe.accumulation > 1:
            raise Unsupported(Capability.EXPLICIT_UNSCALE, TAKES_EACH_IN, window_waits_for_the_caller)
        self._begin(len(window))
        with self.scope():
            for mapping in window:
                before, cotangents = self._scale(), self._place_gradients(mapping)
                parts = np.float32(self.length * self.sharers)
                gradients, judged = self.steps.surrogate(self.leaves, self.scale, cotangents, parts)
                micro = self._hand_over(gradients, judged, self._fed_micro_batch(before))
                self.ledger.add(micro, len(window))
        if self.recipe.accumulation > 1:
            return self._end_window()
        return self._discard_update() if discard else self._finish(calls, inject)

    def _fed_micro_batch(self, before: float) -> JaxMicroBatch:
        return JaxMicroBatch(math.nan, 1, before)

    def _place_gradients(self, gradients: Gradients) -> Flat:
        """The gradients passed in for a micro-batch, or to add to a window's, by joined path."""
        leaves = self.leaves
        names = [name for name, value in gradients.items() if value is not None and name not in self.recipe.frozen]
        places = {name: self.layout.parameters[name] for name in names}
        return {
            path: jax.device_put(self.layout.leaf(name, np.asarray(gradients[name]), leaves[path].dtype), self.place)
            for name, path in places.items()
        }

    def _inject(self, gradients: Gradients) -> Flat:
        return self._place_gradients(gradients)

    def _finish(self, unscale_calls: int, inject: Gradients | None) -> Update:
        with self.scope():
            before, rate, (gradients, judged) = self._scale(), self._rate(), self._take_pending()
            for _ in range(unscale_calls):
                gradients = unscale_gradients(self.scale, gradients, self.leaves)
            for path, value in self._inject(inject or {}).items():
                gradients = gradients | {path: gradients[path] + value}
            outcome = self._update(gradients, judged, last=True)
        return self._report(before, rate, outcome.read_norm(), skipped=not outcome.is_applied())

    def _discard_update(self) -> Update:
        """Ends an update of unscaled gradients without a step; the loss scale still reacts to an overflow."""
        with self.scope():
            before, rate = self._scale(), self._rate()
            gradients = unscale_gradients(self.scale, self._take_pending()[0], self.leaves)
            self.scale = optimizers.adjust_scale(self.scale, jmp.all_finite(gradients))
        return self._report(before, rate, None, skipped=True)

    def _take_pending(self) -> tuple[Flat, ScaleUpdate | None]:
        """The gradients that wait for `apply`, which are no longer pending then.

        Raises:
            ValueError: there are none.
        """
        pending, self.pending = self.pending, None
        if pending is None:
            raise ValueError("apply without any micro-batch before it")
        return pending

    def _report(self, before: float, rate: float, norm: float | None, *, skipped: bool) -> Update:
        """The update of a window that has ended; the next one begins empty."""
        update = self._window_update(before, rate, norm, skipped=skipped)
        self.ledger.empty()
        return update

    def _window_update(self, before: float, rate: float, norm: float | None, *, skipped: bool) -> Update:
        state = optimizers.read_scale(self.scale)
        good = int(state["good_steps"]) if "good_steps" in state else None
        loss, losses, after = self.ledger.loss(), self.ledger.losses(), self._scale()
        return Update(loss, losses, before, after, good, skipped=skipped, gradient_norm=norm, learning_rate=rate)

    def _scale(self) -> float:
        return optimizers.current(self.scale)

    def _rate(self) -> float:
        return float(self._schedule(optimizers.count_applied_updates(self.train_state)))

    def segment_calls(self) -> tuple[int, ...]:
        """Forwards of each segment: the counts of one pass on the last batch, times the number of passes so far."""
        if self._loaded is None:
            return (0,) * len(segments(self.model, self.recipe.recompute))
        with self.scope():
            counts = runs_in_a_pass(self.steps.plan, self.leaves, self.moved, self.scale, self._loaded)
        return tuple(self._passes * runs for runs in counts)

    def _tree(self) -> dict[str, Any]:
        """The full state of the run.

        Orbax cannot save JMP's scale object, so its two numbers are saved.
        """
        window = self.ledger.micro_batches
        micro = np.zeros((self.recipe.accumulation, len(_FIELDS)))
        for row, micro_batch in zip(micro, window, strict=False):
            row[:] = [getattr(micro_batch, name) for name in _FIELDS]
        return {
            "state": self.train_state,
            "scale": optimizers.read_scale(self.scale),
            "moved": self.moved,
            "window": {"micro": micro, "counts": np.array([len(window), self.ledger.items, self.length])},
        }

    def save(self, path: Path) -> None:
        if self.pending is not None:
            raise ValueError("a run is saved between updates, and gradients wait for apply")
        ways.write(self.recipe.way("save"), path.absolute() / FOLDER, self._tree())

    def restore(self, path: Path) -> None:
        folder = path.absolute() / FOLDER
        with self.scope():
            like = self._tree()
            try:
                run = ways.read(self.recipe, folder, like)
            except Exception as error:  # Orbax raises `Exception` itself for some unreadable files
                raise ValueError(f"{folder} cannot be restored: {' '.join(str(error).split())}") from error
            count, items, length = (int(number) for number in run["window"]["counts"])
            self.train_state, self.moved = run["state"], CarriedState(*run["moved"])
            self.scale = optimizers.with_state(self.scale, run["scale"], self.place)
            window = [
                JaxMicroBatch(total, int(own), before, applied=bool(applied), rate=rate, finite=bool(finite))
                for total, own, before, finite, applied, rate in run["window"]["micro"][:count].tolist()
            ]
            self.ledger.replace(window, items)
            self.pending = None
            self.resize(length)

    def take(self, other: Trainer) -> None:
        source = of_same_class(self, other)
        with self.scope():  # arrays are immutable, so both runs can share them
            self.train_state, self.moved, self.scale = source.train_state, source.moved, source.scale
            self.ledger.replace(source.ledger.micro_batches, source.ledger.items)
            self.pending = source.pending
            self.resize(source.length)

    def saved_bytes(self, batch: Batch) -> int:
        with self.scope():
            loaded = jax.device_put(load_batch(self.model, batch), self.device)
            return saved_bytes(lambda leaves: self.steps.losses(leaves, self.moved, loaded)[0], self.leaves, loaded)

    def trace(self, batch: Batch) -> LayerTrace:
        loaded = self._load(batch)
        with self.scope():
            outputs, gradients, self.moved = trace_layers(
                self.steps, self.leaves, self.moved, self.scale, loaded, np.float32(batch.items)
            )
            of_parameters = self.of_trained(unscale_gradients(self.scale, gradients[0], self.leaves))
        scale = 1.0 if optimizers.unscales_itself(self.scale) else self._scale()
        places = {path: self.layout.outputs[path] for path in traced_paths(self.model, batch)}
        return LayerTrace(
            {path: np.array(outputs[key]) for path, key in places.items()},
            {path: unscaled_in_trace(np.array(gradients[1][key]), scale) for path, key in places.items()},
            of_parameters,
        )

    def peak_bytes(self) -> int:
        if (peak := peak_bytes(self.device)) is None:
            raise self.refusal(Capability.PEAK_BYTES)
        return peak


class OffloadedTrainer(JaxTrainer):
    """A run whose state is fetched on read and offloaded on assignment."""

    _offloaded: RunState

    @property
    def train_state(self) -> RunState:
        """The state, moved to the devices that compute."""
        return self._with_kinds(self._offloaded, self.device.default_memory().kind)

    @train_state.setter
    def train_state(self, state: RunState) -> None:
        self._offloaded = self._with_kinds(state, PINNED_HOST)

    @property
    def _offload(self) -> Offload:
        assert self.recipe.offload is not None
        return self.recipe.offload

    def _with_kinds(self, state: RunState, kind: str) -> RunState:
        fields = {"params": "parameters", "opt_state": "optimizer"}
        moved = {
            name: _move_arrays(getattr(state, name), kind) for name, of in fields.items() if of in self._offload.what
        }
        return cast(RunState, state.replace(**moved))

    def offloaded_bytes(self) -> dict[str, int]:
        kinds = {
            "parameters": jax.tree.leaves(self._offloaded.params),
            "optimizer": arrays_of(self._offloaded, "optimizer"),
        }
        return {kind: sum(map(_offloaded_bytes, kinds[kind])) for kind in self._offload.what}


def _offloaded_bytes(value: jax.Array) -> int:
    """Bytes of an array in host memory; the copy for each device counts."""
    if value.sharding.memory_kind != PINNED_HOST:
        return 0
    return sum(shard.data.nbytes for shard in value.addressable_shards)


def _move_arrays(tree: Any, kind: str) -> Any:
    """The tree with its arrays in another memory; NumPy arrays read from a rank stay unchanged."""

    def move(value: Any) -> Any:
        is_placed = isinstance(value, jax.Array)
        return jax.device_put(value, value.sharding.with_memory_kind(kind)) if is_placed else value

    return jax.tree.map(move, tree)


def activations_leave() -> bool:
    """Returns whether arrays that a checkpoint policy offloads use host memory in the compiled program."""
    policy = jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=[],
        names_which_can_be_offloaded=["kept"],
        offload_src="device",
        offload_dst=PINNED_HOST,
    )

    def loss(x: jax.Array) -> jax.Array:
        return jnp.sum(jnp.sin(checkpoint_name(jnp.sin(x), "kept")))

    compiled = jax.jit(jax.grad(jax.checkpoint(loss, policy=policy))).lower(jnp.ones((64, 64))).compile()
    memory = compiled.memory_analysis()
    return memory is not None and memory.host_temp_size_in_bytes > 0


def disk_is_a_memory() -> bool:
    """Returns whether JAX has a memory kind for arrays in files."""
    sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0], memory_kind="disk")
    return bool(jax.device_put(jnp.ones(2), sharding).sharding.memory_kind == "disk")


RULE = BackgroundRule("wait", "waits", "running", "loses")
_overwrite = jax.jit(lambda array, value: array * 0 + value, donate_argnums=0)


class JaxValues(LiveValues):
    """Arrays whose buffers are donated, and values of NumPy and Python."""

    def make(self, kind: Kind, value: float, size: int) -> Any:
        return jax.device_put(np.full(size, value, np.float32)) if kind == "tensor" else super().make(kind, value, size)

    def overwrite(self, kind: Kind, current: Any, value: float) -> Any:
        return _overwrite(current, value) if kind == "tensor" else super().overwrite(kind, current, value)


@dataclass
class _GatedFuture:
    """A further future of a save, for which Orbax waits before it commits the files."""

    gate: Gate

    def result(self, timeout: float | None = None) -> None:
        self.gate.hold("commit")


class GatedHandler(ocp.StandardCheckpointHandler):
    """The handler of trees of arrays, held at a gate."""

    async def async_save(self, directory: Any, args: Any) -> Any:
        return [_GatedFuture(args.gate), *(await super().async_save(directory, args=args))]


@ocp.args.register_with_handler(GatedHandler, for_save=True, for_restore=True)
@dataclass
class GatedSave(ocp.args.StandardSave):
    """A tree to save and the gate of its writer; a manager asks for arguments that restore, too."""

    gate: Gate = None  # type: ignore[assignment]


class OrbaxSeries(SaveSeries):
    """Saves of one tree by one `CheckpointManager` or one `AsyncCheckpointer`."""

    def __init__(self, folder: Path, values: LiveValues, shared: str) -> None:
        self._folder, self._values = folder.absolute(), values
        handler, self._managed = GatedHandler(), shared == "manager"
        self._saver = (
            ocp.CheckpointManager(self._folder, item_handlers=handler)
            if self._managed
            else ocp.AsyncCheckpointer(handler)
        )

    def save(self, step: int, gate: Gate | None = None) -> None:
        path, tree = self._folder / str(step), self._values.tree
        if gate is None:
            ocp.Checkpointer(ocp.StandardCheckpointHandler()).save(path, args=ocp.args.StandardSave(tree), force=True)
        elif not self._managed:
            self._saver.save(path, args=GatedSave(tree, gate=gate), force=True)
        elif not self._saver.save(step, args=GatedSave(tree, gate=gate)):
            raise ValueError(f"CheckpointManager has step {step} already")

    def wait(self) -> None:
        self._saver.wait_until_finished()

    def latest(self) -> int | None:
        return self._saver.latest_step() if self._managed else None

    def load(self, step: int, target: LiveValues) -> None:
        path = self._folder / str(step)
        path = path / "default" if (path / "default").exists() else path
        try:
            target.tree = ocp.StandardCheckpointer().restore(path, target.tree)
        except Exception as error:  # Orbax raises `Exception` itself for some unreadable files
            raise ValueError(f"{path} cannot be restored: {' '.join(str(error).split())}") from error

    def close(self) -> None:
        self._saver.close()


SAVER = ValueSaver(
    JaxValues, OrbaxSeries, ("tensor", "array", "list", "number"), ("manager", "checkpointer"), ("commit",), RULE
)
