"""One training run with Keras on TensorFlow, saved by `tf.train.Checkpoint`, whose files carry a checksum.

The checkpoint gets every variable by name, because `tf.train.Checkpoint(model=..., optimizer=...)` finds neither
layers that a Keras model holds in lists or dicts, nor seed generators, nor the optimizers inside a `MultiOptimizer`.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import keras
import numpy as np
import tensorflow as tf

from fixtures.arrays import Array
from fixtures.model import Batch, Model
from fixtures.recipe import Float8, Recipe
from frameworks.base import of_same_class
from frameworks.contract import (
    AmaxHistories,
    AmaxHistory,
    BackgroundRule,
    Capability,
    Gate,
    Kind,
    LayerTrace,
    LiveValues,
    Operand,
    SaveSeries,
    Trainer,
    Unsupported,
    ValueSaver,
)
from frameworks.keras_common.layers import BuiltNetwork, NetworkBuilder
from frameworks.keras_common.optimizers import make_optimizer, scaler_settings
from frameworks.keras_common.run import COLUMNS, KerasMicroBatch, StatefulRun, micro_batches_of, rows_of
from frameworks.keras_common.settings import dtype_policy
from frameworks.tf.core import ways
from frameworks.tf.core.settings import graph_rewrite
from frameworks.tf.core.steps import WRAPPERS, SegmentCounts, TapeBackend, TracedSteps, as_array, captured_bytes
from frameworks.tf.probes import shows_recomputed
from frameworks.tf.quantization import amax_histories, delayed_scaling_state

INSIDE_RECOMPUTED = "a tape does not see what is computed inside keras.remat or tf.recompute_grad"


def _parts(bound: BuiltNetwork, optimizer: keras.optimizers.Optimizer) -> dict[str, dict[str, Any]]:
    return {
        "parameters": dict(bound.variables),
        "buffers": bound.buffers | bound.memory,
        "seeds": {path: seed.state for path, seed in bound.seeds.items()},
        "optimizer": {f"{index}-{variable.name}": variable for index, variable in enumerate(optimizer.variables)},
    }


def _rows(windows: Sequence[Sequence[KerasMicroBatch]]) -> tf.Variable:
    """The open windows as (windows, micro-batches, fields)."""
    rows = np.stack([rows_of(own) for own in windows])
    return tf.Variable(rows, trainable=False, shape=tf.TensorShape((None, None, COLUMNS)))


class TensorFlowTrainer(StatefulRun):
    """One run.

    Args:
        policy: name of the dtype policy of the layers.
        rewrite: grappler option that is on in this run's functions; `NO_REWRITE`: all are off; None: the present ones.
        device: TensorFlow's device name, such as "/GPU:0".
    """

    loop: TracedSteps

    def __init__(
        self,
        model: Model,
        recipe: Recipe,
        weights: Mapping[str, Array] | None,
        *,
        mode: str,
        policy: str,
        rewrite: str | None,
        device: str,
    ) -> None:
        self.mode = mode
        self.compiling = {"run_eagerly": mode == "eager", "jit_compile": mode == "xla"}
        self._rewrite = rewrite
        self._place = device
        self._counts = SegmentCounts()
        with self.scope():
            with dtype_policy(ways.policy(recipe, policy)):
                asked = recipe.quantization
                history = asked.history if isinstance(asked, Float8) else None
                bound = NetworkBuilder(self._counts, WRAPPERS).build(model, recipe.seed, recipe.recompute, history)
            bound.load(model.weights(recipe.seed) if weights is None else weights)
            bound.freeze(recipe.frozen)
            before = recipe.replace(clip=None) if recipe.way("clip") else recipe
            optimizer = make_optimizer(before, bound.variables, TapeBackend(mode))
            optimizer.build([*bound.trained.values(), *bound.memory.values()])
            super().__init__(model, recipe, bound, optimizer)
            self.loop = self._made_steps()
        if not device.startswith("/CPU"):
            tf.config.experimental.reset_memory_stats(device.strip("/"))

    def _made_steps(self) -> TracedSteps:
        return TracedSteps(self.model, self.bound, self.optimizer, self.mode, self.recipe)

    @contextmanager
    def scope(self) -> Iterator[None]:
        with tf.device(self._place), graph_rewrite(self._rewrite):
            yield

    def value(self, variable: keras.Variable) -> Array:
        return as_array(variable)

    def array(self, tensor: tf.Tensor) -> Array:
        return np.array(tensor.numpy())

    def buffers(self) -> dict[str, Array]:
        return super().buffers() | delayed_scaling_state(self.bound.memory, self.gathered)

    def views(self) -> Mapping[type, Callable[[], Any]]:
        parts = partial(_parts, self.bound, self.optimizer)
        return {**super().views(), AmaxHistories: self.amax_histories, LiveValues: parts}

    def amax_histories(self) -> dict[str, dict[Operand, AmaxHistory]]:
        if not self.bound.memory:
            raise self.refusal(Capability.FLOAT8_TRAINING)
        return amax_histories(self.bound.memory)

    def scaler_settings(self) -> dict[str, float]:
        return scaler_settings(self.optimizer, TapeBackend("eager"))

    def segment_calls(self) -> tuple[int, ...]:
        return self._counts.read()

    def save(self, path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)
        way, rows = self.recipe.way("save"), _rows([ledger.micro_batches for ledger in self.ledgers])
        if way == "weights-file":
            ways.write_files(path, self.bound, self.optimizer, rows.numpy())
        else:
            ways.write(way, path, tf.train.Checkpoint(window=rows, **_parts(self.bound, self.optimizer)))

    def restore(self, path: Path) -> None:
        with self.scope():
            windows = self._read(path)
        for ledger, window in zip(self.ledgers, windows, strict=True):
            ledger.replace(window, sum(micro.items for micro in window))

    def _read(self, path: Path) -> list[list[KerasMicroBatch]]:
        """Restores network and optimizer by `read` and `assert_consumed`; returns the open windows."""
        way, rows = self.recipe.way("save"), _rows([[]])
        try:
            if way == "weights-file":
                rows.assign(ways.read_files(path, self.bound, self.optimizer))
            else:
                ways.read(way, path, tf.train.Checkpoint(window=rows, **_parts(self.bound, self.optimizer)))
        except (tf.errors.OpError, ValueError, AssertionError, IndexError, OSError, KeyError, BadZipFile) as error:
            reason = str(error).split("\n", 1)[0][:200]
            raise ValueError(f"{path} holds no whole checkpoint of this run: {reason}") from error
        windows = [micro_batches_of(own) for own in rows.numpy()]
        count = len(self.ledgers)
        if not any(windows):
            return [[] for _ in range(count)]
        if len(windows) != count:
            raise ValueError(f"{path}: saved inside a window by {len(windows)} ranks, and these are {count}")
        return windows

    def freeze(self, names: Collection[str]) -> None:
        for name, variable in self.bound.variables.items():
            variable.trainable = name not in names and name not in self.recipe.frozen
        self.loop = self._made_steps()  # trace functions again for the new set of trained variables

    def take(self, other: Trainer) -> None:
        source = of_same_class(self, other)
        store: dict[str, Any] = {}
        with self.scope():
            self.bound.network.set_weights(source.bound.network.get_weights())
            for path, seed in source.bound.seeds.items():
                self.bound.seeds[path].state.assign(seed.state)
            source.optimizer.save_own_variables(store)
            self.optimizer.load_own_variables(store)
        self.ledger.replace(source.ledger.micro_batches, source.ledger.items)

    def saved_bytes(self, batch: Batch) -> int:
        if self.mode != "graph":
            raise self.refusal(Capability.SAVED_BYTES)
        return captured_bytes(self.loop.forward_loss, batch)

    def trace(self, batch: Batch) -> LayerTrace:
        if self.recipe.recompute is not None:
            raise Unsupported(Capability.TRACE, INSIDE_RECOMPUTED, partial(shows_recomputed, self.mode))
        return super().trace(batch)

    def peak_bytes(self) -> int:
        if self._place.startswith("/CPU"):
            raise self.refusal(Capability.PEAK_BYTES)
        return int(tf.config.experimental.get_memory_info(self._place.strip("/"))["peak"])


RULE = BackgroundRule("next-save", "waits", "finished", "finishes")
BACKGROUND = tf.train.CheckpointOptions(experimental_enable_async_checkpoint=True)


class Number(tf.train.experimental.PythonState):
    """A Python number that a checkpoint holds."""

    def __init__(self, value: float) -> None:
        self.value = value

    def serialize(self) -> str:
        return str(self.value)

    def deserialize(self, text: str) -> None:
        self.value = float(text)


class GatedState(tf.train.experimental.PythonState):
    """An entry of a checkpoint at which the writer is held: the thread that writes asks for its text."""

    def __init__(self) -> None:
        self.gates: deque[Gate] = deque()

    def serialize(self) -> str:
        if self.gates:
            self.gates.popleft().hold("data")
        return ""

    def deserialize(self, text: str) -> None:
        pass


class TensorFlowValues(LiveValues):
    """Variables and numbers."""

    def make(self, kind: Kind, value: float, size: int) -> Any:
        return Number(value) if kind == "number" else tf.Variable(np.full(size, value, np.float32))

    def overwrite(self, kind: Kind, current: Any, value: float) -> Any:
        if kind == "number":
            current.value = value
        else:
            current.assign(tf.fill(current.shape, value))
        return current

    def to_array(self, kind: Kind, current: Any) -> Array:
        return np.array(current.value if kind == "number" else current.numpy(), np.float32)


class TensorFlowSeries(SaveSeries):
    """Saves of one checkpoint object, by a `CheckpointManager` or by `Checkpoint.write`."""

    def __init__(self, folder: Path, values: LiveValues, shared: str) -> None:
        self._folder, self._tree, self._gate = folder, values.tree, GatedState()
        self._root = tf.train.Checkpoint(gate=self._gate, **self._tree)
        options = {"max_to_keep": None, "checkpoint_name": ""}
        self._manager = tf.train.CheckpointManager(self._root, folder, **options) if shared == "manager" else None

    def save(self, step: int, gate: Gate | None = None) -> None:
        for name, value in self._tree.items():
            setattr(self._root, name, value)
        self._gate.gates.append(gate or Gate())
        options = None if gate is None else BACKGROUND
        try:
            if self._manager is None:
                self._root.write(self._folder / str(step), options)
            else:
                self._manager.save(step, options=options)
        except Exception:
            self._gate.gates.clear()
            raise

    def wait(self) -> None:
        (self._root if self._manager is None else self._manager).sync()

    def latest(self) -> int | None:
        path = tf.train.latest_checkpoint(self._folder)
        return None if path is None else int(path.rpartition("-")[2])

    def load(self, step: int, target: LiveValues) -> None:
        path = self._folder / (str(step) if self._manager is None else f"-{step}")
        try:
            tf.train.Checkpoint(**target.tree).read(path).assert_existing_objects_matched()
        except (tf.errors.OpError, ValueError, AssertionError) as error:
            raise ValueError(f"{path} cannot be loaded: {str(error).splitlines()[0]}") from error

    def close(self) -> None:
        self.wait()


SAVER = ValueSaver(TensorFlowValues, TensorFlowSeries, ("tensor", "number"), ("manager", "checkpoint"), ("data",), RULE)
