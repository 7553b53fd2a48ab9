"""Faults of data parallel training in TensorFlow and Keras."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from frameworks.tf import TensorFlowFramework, launch
from frameworks.tf.distributed.ranks import MirroredWorker
from tools.faults import fault

_reduced = keras.optimizers.Optimizer._all_reduce_sum_gradients


class OfOwnItems(MirroredWorker):
    """Ranks whose losses are divided by each replica's own items and by the number of replicas."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)

        def average(losses: tf.Tensor, weights: Any, _: Any) -> tf.Tensor:
            return (
                tf.reduce_mean(losses if weights is None else losses * weights)
                / tf.distribute.get_strategy().num_replicas_in_sync
            )

        tf.nn.compute_average_loss = average


@fault("https://github.com/meta-pytorch/torchtune/pull/2172", "sharding.mean-over-items")
class EachReplicaDividesByItsOwnItems(TensorFlowFramework):
    """The mean of replicas' means takes the place of the mean over all items."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        launch._MEMBER = f"{__name__}:OfOwnItems"


class Apart(MirroredWorker):
    """Ranks whose optimizer does not add gradients up."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        keras.optimizers.Optimizer._all_reduce_sum_gradients = lambda self, pairs: pairs


@fault("https://github.com/ByteDance-Seed/VeOmni/issues/1059", "sharding.replicas-equal", "sharding.equals-whole")
class ReplicasTrainApart(TensorFlowFramework):
    """Every replica steps on its own gradient."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        launch._MEMBER = f"{__name__}:Apart"


class Averaged(MirroredWorker):
    """Ranks whose optimizer divides the sum of gradients by the number of replicas."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)

        def mean(optimizer: Any, pairs: Any) -> list[tuple[Any, Any]]:
            count = tf.distribute.get_strategy().num_replicas_in_sync
            return [(gradient / count, variable) for gradient, variable in _reduced(optimizer, pairs)]

        keras.optimizers.Optimizer._all_reduce_sum_gradients = mean


@fault("https://github.com/PaddlePaddle/Paddle/pull/57934", "sharding.equals-whole")
class SumIsDividedByReplicas(TensorFlowFramework):
    """The sum of all replicas' shares in the mean is divided by their number once more."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        launch._MEMBER = f"{__name__}:Averaged"
