"""On a CPU ShardedGradScaler lets the loss scale of FSDP1 grow to infinity; torch.amp.GradScaler stops before."""

import math
import sys
import tempfile

from torch import distributed, ones
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler
from torch.optim import SGD

with tempfile.NamedTemporaryFile() as file:
    distributed.init_process_group("gloo", store=distributed.FileStore(file.name, 1), rank=0, world_size=1)
    scaler = ShardedGradScaler("cpu", growth_interval=1, process_group=distributed.group.WORLD)
    weight = ones(1, requires_grad=True)
    optimizer = SGD([weight])
    for _ in range(120):
        scaler.scale(0.0 * weight).backward()
        scaler.step(optimizer)
        scaler.update()
    distributed.destroy_process_group()
print("expected: a finite scale, as torch.amp.GradScaler keeps it")
print("seen:", seen := scaler.get_scale())
sys.exit(0 if math.isfinite(seen) else 1)
