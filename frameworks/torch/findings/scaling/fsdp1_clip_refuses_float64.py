"""FullyShardedDataParallel.clip_grad_norm_ raises for the gradients of a float64 model."""

import os
import sys
import tempfile

os.environ["GLOO_SOCKET_IFNAME"] = "lo"
from torch import device, distributed, float64, multiprocessing, ones
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.nn import Linear


def train(rank: int, store: str, results: multiprocessing.SimpleQueue) -> None:
    distributed.init_process_group("gloo", store=distributed.FileStore(store, 2), rank=rank, world_size=2)
    model = FullyShardedDataParallel(Linear(4, 1, bias=False, dtype=float64), device_id=device("cpu"))
    model(ones(1, 4, dtype=float64)).sum().backward()
    try:
        results.put((rank, model.clip_grad_norm_(1.0).item()))
    except RuntimeError as error:
        results.put((rank, str(error)))
    distributed.barrier()


if __name__ == "__main__":
    print("expected:", "[2.0, 2.0], the norm of four ones")
    queue = multiprocessing.get_context("spawn").SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.spawn(train, (os.path.join(folder, "store"), queue), nprocs=2)
    print("seen:", seen := [value for _, value in sorted(queue.get() for _ in range(2))])
    sys.exit(0 if seen == [2.0, 2.0] else 1)
