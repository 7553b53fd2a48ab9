"""FSDP1's HYBRID_SHARD reduces no gradients between two replicas that have one rank each."""

import os
import sys
import tempfile

os.environ["GLOO_SOCKET_IFNAME"] = "lo"
from torch import device, distributed, full, multiprocessing
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy
from torch.nn import Linear


def train(rank: int, store: str, results: multiprocessing.SimpleQueue) -> None:
    distributed.init_process_group("gloo", store=distributed.FileStore(store, 2), rank=rank, world_size=2)
    mesh = distributed.init_device_mesh("cpu", (2, 1), mesh_dim_names=("replicate", "shard"))
    options = {"sharding_strategy": ShardingStrategy.HYBRID_SHARD, "use_orig_params": True, "device_mesh": mesh}
    model = FullyShardedDataParallel(Linear(1, 1, bias=False), device_id=device("cpu"), **options)
    model(full((1, 1), 1.0 + 2.0 * rank)).sum().backward()
    results.put((rank, next(model.parameters()).grad.item()))
    distributed.barrier()


if __name__ == "__main__":
    print("expected:", "[2.0, 2.0], the mean of both ranks' gradients, 1 and 3")
    queue = multiprocessing.get_context("spawn").SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.spawn(train, (os.path.join(folder, "store"), queue), nprocs=2)
    print("seen:", seen := [value for _, value in sorted(queue.get() for _ in range(2))])
    sys.exit(0 if seen == [2.0, 2.0] else 1)
