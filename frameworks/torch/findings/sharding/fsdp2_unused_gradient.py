"""fully_shard leaves the gradients of a layer that only one of two ranks used unreduced: the other rank has none."""

import os
import sys
import tempfile

os.environ["GLOO_SOCKET_IFNAME"] = "lo"
from torch import distributed, multiprocessing, nn, ones
from torch.distributed.fsdp import fully_shard


def train(rank: int, store: str, results: multiprocessing.SimpleQueue) -> None:
    distributed.init_process_group("gloo", store=distributed.FileStore(store, 2), rank=rank, world_size=2)
    layers = nn.ModuleList([nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)])
    for layer in layers:
        fully_shard(layer, mesh=distributed.init_device_mesh("cpu", (2,)))
    layers[rank](ones(1, 4)).sum().backward()
    results.put((rank, [layer.weight.grad is not None for layer in layers]))
    distributed.barrier()
    distributed.destroy_process_group()


if __name__ == "__main__":
    print("expected: [True, True] on both ranks: each used one of two layers")
    queue = multiprocessing.get_context("spawn").SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.spawn(train, (os.path.join(folder, "store"), queue), nprocs=2)
    print("seen:", seen := dict(sorted(queue.get() for _ in range(2))))
    sys.exit(0 if all(map(all, seen.values())) else 1)
