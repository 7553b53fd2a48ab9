"""Under ShardedGradScaler a rank applies its fused update although another rank met an overflow."""

import sys
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler


def train(rank: int, store: str) -> None:
    dist.init_process_group("gloo", f"file://{store}", rank=rank, world_size=2)
    weight = torch.ones(2, requires_grad=True)
    optimizer = torch.optim.SGD([weight], 0.5, fused=True)
    scaler = ShardedGradScaler("cpu", init_scale=2.0)
    scaler.scale(weight.sum()).backward()
    if rank == 0:
        weight.grad.fill_(float("inf"))
    scaler.step(optimizer)
    if rank == 1:
        print("expected: [1.0, 1.0]")
        print(f"seen: {weight.tolist()}", flush=True)
    dist.destroy_process_group()
    sys.exit(rank == 1 and weight.tolist() != [1.0, 1.0])


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(train, (f"{folder}/store",), nprocs=2)
