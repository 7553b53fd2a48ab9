"""FSDP1 adds up the gradients of a window in its bfloat16 param_dtype, although its reduce_dtype is float32."""

import sys
import tempfile

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision

with tempfile.TemporaryDirectory() as folder:
    dist.init_process_group("gloo", f"file://{folder}/store", rank=0, world_size=1)
    policy = MixedPrecision(torch.bfloat16, torch.float32)
    model = FullyShardedDataParallel(
        torch.nn.Linear(1, 1, bias=False), mixed_precision=policy, device_id=torch.device("cpu")
    )
    for step in range(64):
        with model.no_sync() if step < 63 else torch.enable_grad():
            model(torch.full([1, 1], 1.0 if step == 0 else 2.0**-12)).sum().backward()
    seen = next(model.parameters()).grad.item()
    dist.destroy_process_group()
print("expected: 1.015380859375")
print(f"seen: {seen}")
sys.exit(abs(seen - 1.015380859375) > 1e-3)
