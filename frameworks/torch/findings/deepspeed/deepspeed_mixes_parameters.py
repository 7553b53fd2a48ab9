"""Where each of two ranks of ZeRO uses another layer, the gradient of one layer is added to that of the other."""

import os
import sys
import tempfile

os.environ.update(GLOO_SOCKET_IFNAME="lo", DS_ACCELERATOR="cpu")
import deepspeed
from torch import distributed, multiprocessing, nn, ones, optim


def train(rank: int, store: str, results: multiprocessing.SimpleQueue) -> None:
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2")
    distributed.init_process_group("gloo", store=distributed.FileStore(store, 2), rank=rank, world_size=2)
    model = nn.ModuleList(nn.Linear(1, 1, bias=False) for _ in range(2))
    model.forward = lambda layer, x: layer(x).sum()
    config = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 2, "reduce_bucket_size": 1024}}
    engine, *_ = deepspeed.initialize(model=model, optimizer=optim.Adam(model.parameters()), config=config)
    engine.backward(engine(model[rank], ones(1, 1) * (2.0 + 4.0 * rank)))
    results.put((rank, [deepspeed.utils.safe_get_full_grad(layer.weight).item() for layer in model]))
    distributed.barrier()


if __name__ == "__main__":
    print("expected:", "[1.0, 3.0] on both ranks, half of the 2 of one rank and of the 6 of the other")
    queue = multiprocessing.get_context("spawn").SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.spawn(train, (os.path.join(folder, "store"), queue), nprocs=2)
    print("seen:", seen := [value for _, value in sorted(queue.get() for _ in range(2))])
    sys.exit(0 if seen == [[1.0, 3.0]] * 2 else 1)
