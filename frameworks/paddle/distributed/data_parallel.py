"""A network on several ranks: `DataParallel`, whose gradients are reduced with a window's last micro-batch."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import paddle
from paddle.distributed.fleet.utils.hybrid_parallel_util import fused_allreduce_gradients
from paddle.distributed.sharding import group_sharded_parallel

from fixtures.recipe import Sharding
from frameworks.paddle.core.losses import BatchTensors
from frameworks.paddle.core.network import Network
from frameworks.paddle.training.optimizers import Share

Losses = Callable[[BatchTensors], list[Any]]
Fed = Callable[[Mapping[str, Any]], Any]

_SHARDED: Mapping[str, str] = {"optimizer": "os", "gradients": "os_g", "full": "p_g_os"}


class _WithLosses(paddle.nn.Layer):
    """The network and its losses as one layer, since `DataParallel` reduces what its outputs depend on."""

    def __init__(self, network: Network, losses: Losses, fed: Fed) -> None:
        super().__init__()
        self.network = network
        self._losses, self._fed = losses, fed

    def forward(self, tensors: BatchTensors | None, given: Mapping[str, Any]) -> list[Any]:
        return [self._fed(given)] if tensors is None else self._losses(tensors)


class Replicas:
    """This rank's copy of a network, made when all ranks make theirs.

    Gradients are reduced by `DataParallel` in its backward pass. It takes no `PyLayer`, which reentrant recomputation
    is: there they are reduced after the window's last micro-batch by `fused_allreduce_gradients`, as its documentation
    has it. Either takes the mean over the ranks.

    Args:
        losses: sums of a micro-batch's losses, one a head.
        fed: Σ p·g over given gradients.
        way: of the technique "data-parallel".
    """

    def __init__(self, network: Network, losses: Losses, fed: Fed, way: str) -> None:
        self._manually = network.is_reentrant or way == "reduced-by-hand"
        options: dict[str, Any] = {"find_unused_parameters": not network.is_reentrant and way != "all-used"}
        if way == "small-buffers":
            options |= {"comm_buffer_size": 1, "last_comm_buffer_size": 0.0001}
        self._layer = paddle.DataParallel(_WithLosses(network, losses, fed), **options)

    def losses(self, tensors: BatchTensors) -> list[Any]:
        sums: list[Any] = self._layer(tensors, {})
        return sums

    def fed(self, given: Mapping[str, Any]) -> Any:
        return self._layer(None, given)[0]

    @contextmanager
    def micro_batch(self, *, last: bool) -> Iterator[None]:
        """The context of forward and backward; after the last micro-batch every rank has the mean."""
        if last and not self._manually:
            yield
            return
        with self._layer.no_sync():
            yield
        if last:
            fused_allreduce_gradients(self._layer.parameters(), None)


def shard(network: Network, shares: list[Share], level: Sharding) -> None:
    """Shards the level's state over all ranks.

    Raises:
        AssertionError: on a CPU.
    """
    for share in shares:
        _, share.optimizer, _ = group_sharded_parallel(network, share.optimizer, _SHARDED[level])
