"""DeepSpeed's group for gradients waits 30 minutes for a rank, whatever timeout init_process_group was given."""

import os
import sys
import tempfile
from datetime import timedelta

os.environ.update(GLOO_SOCKET_IFNAME="lo", DS_ACCELERATOR="cpu", RANK="0", LOCAL_RANK="0", WORLD_SIZE="1")
import deepspeed
import torch
from torch import distributed, nn

folder = tempfile.TemporaryDirectory()
distributed.init_process_group(
    "gloo", init_method=f"file://{folder.name}/store", rank=0, world_size=1, timeout=timedelta(seconds=20)
)
model = nn.Linear(1, 1)
engine, *_ = deepspeed.initialize(
    model=model, optimizer=torch.optim.SGD(model.parameters()), config={"train_micro_batch_size_per_gpu": 1}
)
limit = engine.data_parallel_group._get_backend(torch.device("cpu")).options._timeout
print("expected:", timedelta(seconds=20))
print("seen:", limit)
sys.exit(0 if limit == timedelta(seconds=20) else 1)
