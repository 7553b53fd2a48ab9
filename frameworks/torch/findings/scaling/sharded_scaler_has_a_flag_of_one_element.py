"""Fused Adam refuses the overflow flag of ShardedGradScaler.unscale_, which has one dimension instead of none."""

import sys
import tempfile

import torch
import torch.distributed as dist
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

with tempfile.TemporaryDirectory() as folder:
    dist.init_process_group("gloo", f"file://{folder}/store", rank=0, world_size=1)
    weight = torch.ones(2, requires_grad=True)
    optimizer = torch.optim.Adam([weight], fused=True)
    scaler = ShardedGradScaler("cpu", init_scale=2.0)
    scaler.scale(weight.sum()).backward()
    scaler.unscale_(optimizer)
    try:
        scaler.step(optimizer)
        seen = "an update"
    except RuntimeError as error:
        seen = str(error).splitlines()[0]
    dist.destroy_process_group()
print("expected: an update")
print(f"seen: {seen}")
sys.exit(seen != "an update")
