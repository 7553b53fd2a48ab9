"""After an evaluation between backward pass and step, FSDP1's next forward pass still uses the old weights."""

import os
import sys
import tempfile

os.environ["GLOO_SOCKET_IFNAME"] = "lo"
from torch import device, distributed, multiprocessing, no_grad, ones
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.nn import Linear
from torch.optim import SGD


def train(rank: int, store: str, results: multiprocessing.SimpleQueue) -> None:
    distributed.init_process_group("gloo", store=distributed.FileStore(store, 2), rank=rank, world_size=2)
    model = FullyShardedDataParallel(Linear(4, 1, bias=False), device_id=device("cpu"))
    model(x := ones(1, 4)).sum().backward()
    before = no_grad()(model)(x)
    SGD(model.parameters(), lr=1.0).step()
    results.put((rank, round((model(x) - before).item(), 2)))
    distributed.barrier()


if __name__ == "__main__":
    print("expected:", "[-4.0, -4.0], what a step of -1 for each of four weights changes the output by")
    queue = multiprocessing.get_context("spawn").SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.spawn(train, (os.path.join(folder, "store"), queue), nprocs=2)
    print("seen:", seen := [value for _, value in sorted(queue.get() for _ in range(2))])
    sys.exit(0 if seen == [-4.0, -4.0] else 1)
