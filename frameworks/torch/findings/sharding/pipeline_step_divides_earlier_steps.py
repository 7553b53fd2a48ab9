"""A step of a pipeline's schedule with scale_grads, the default, divides the gradients that earlier steps added up."""

import os
import sys
import tempfile

os.environ["GLOO_SOCKET_IFNAME"] = "lo"
from torch import device, distributed, multiprocessing, nn, ones
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe


def train(rank: int, store: str, results: multiprocessing.SimpleQueue) -> None:
    distributed.init_process_group("gloo", store=distributed.FileStore(store, 2), rank=rank, world_size=2)
    layer = nn.Linear(1, 1, bias=False)
    nn.init.ones_(layer.weight)
    stage = PipelineStage(layer, rank, 2, device("cpu"))
    schedule = ScheduleGPipe(stage, 4, loss_fn=lambda output, target: (output * target).mean())
    for _ in range(2):
        schedule.step(*([ones(4, 1)] if rank == 0 else []), **({"target": ones(4, 1)} if rank == 1 else {}))
    results.put((rank, layer.weight.grad.item()))
    distributed.barrier()
    distributed.destroy_process_group()


if __name__ == "__main__":
    print("expected:", wanted := {0: 2.0, 1: 2.0})
    queue = multiprocessing.get_context("spawn").SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.spawn(train, (os.path.join(folder, "store"), queue), nprocs=2)
    print("seen:", seen := dict(sorted(queue.get() for _ in range(2))))
    sys.exit(0 if seen == wanted else 1)
