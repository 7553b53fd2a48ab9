"""DDP with static_graph=True raises in the first backward pass within no_sync(), which accumulates gradients."""

import os
import sys
import tempfile

os.environ["GLOO_SOCKET_IFNAME"] = "lo"
from torch import distributed, multiprocessing, nn, ones
from torch.nn.parallel import DistributedDataParallel


def train(rank: int, store: str, results: multiprocessing.SimpleQueue) -> None:
    distributed.init_process_group("gloo", store=distributed.FileStore(store, 2), rank=rank, world_size=2)
    layer = DistributedDataParallel(nn.Linear(1, 1, bias=False), static_graph=True)
    try:
        with layer.no_sync():
            layer(ones(1, 1)).sum().backward()
        layer((rank + 1.0) * ones(1, 1)).sum().backward()
        results.put(layer.module.weight.grad.item())
    except RuntimeError as error:
        results.put(str(error).splitlines()[0][:100])


if __name__ == "__main__":
    print("expected: [2.5, 2.5]: the gradients are 1 + 1 and 1 + 2, and the mean over ranks is 2.5")
    queue = multiprocessing.get_context("spawn").SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.spawn(train, (os.path.join(folder, "store"), queue), nprocs=2)
    print("seen:", seen := [queue.get() for _ in range(2)])
    sys.exit(0 if seen == [2.5, 2.5] else 1)
