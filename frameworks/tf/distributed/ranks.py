"""The process of all ranks: replicas of one strategy on logical CPU devices."""

from collections.abc import Mapping
from pathlib import Path

import tensorflow as tf

from fixtures.arrays import Array
from fixtures.model import Model
from fixtures.recipe import Recipe
from frameworks.keras_common.ranks import KerasRanks
from frameworks.tf.core.settings import pin_threads
from frameworks.tf.distributed.mirrored_strategy import MirroredTrainer
from frameworks.tf.framework import TensorFlowFramework
from frameworks.ways import required

THREADS_PER_RANK = 16
"""Number of threads: reductions block one for each replica, and deadlock with too few."""

_READ_BY_EACH = frozenset(
    {
        "parameters",
        "master_parameters",
        "optimizer_state",
        "buffers",
        "scaler_state",
        "accumulator",
        "random_state",
        "state",
        "segment_calls",
        "resident_bytes",
    }
)


class MirroredWorker:
    """The process of all ranks, with their strategy.

    Raises:
        RuntimeError: TensorFlow runs already, with other devices.
    """

    def __init__(self, rank: int, count: int, folder: Path, device: str, mode: str) -> None:
        (processor,) = tf.config.list_physical_devices("CPU")
        tf.config.set_logical_device_configuration(processor, [tf.config.LogicalDeviceConfiguration()] * count)
        pin_threads(THREADS_PER_RANK * count)
        self._devices = [f"/CPU:{index}" for index in range(count)]
        self._usual = tf.distribute.MirroredStrategy(self._devices)
        self.framework = TensorFlowFramework(device, mode)

    def trainer(self, model: Model, recipe: Recipe, weights: Mapping[str, Array] | None = None) -> KerasRanks:
        """A new run of all ranks.

        Raises:
            ValueError: the recipe is for another number of ranks.
        """
        count = len(self._devices)
        if recipe.ranks is None or recipe.ranks.count != count:
            raise ValueError(f"ranks of the recipe: got {recipe.ranks}, want {count}")
        policy = self.framework.policy(recipe.precision)
        way = recipe.way("data-parallel")
        mode = "xla" if way == "compiled" else self.framework.mode
        with required("tf", recipe, "data-parallel"):
            run = MirroredTrainer(self._strategy(way), model, recipe, weights, mode=mode, policy=policy)
        return KerasRanks(self.framework.bound(run), _READ_BY_EACH)

    def _strategy(self, way: str) -> tf.distribute.Strategy:
        options = {
            "hierarchical-copy": tf.distribute.HierarchicalCopyAllReduce,
            "one-device": tf.distribute.ReductionToOneDevice,
        }
        if way not in options:
            return self._usual
        return tf.distribute.MirroredStrategy(self._devices, cross_device_ops=options[way]())

    def barrier(self) -> None:
        """Returns at once: all ranks are in this process."""
