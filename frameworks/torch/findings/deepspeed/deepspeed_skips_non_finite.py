"""ZeRO's stage 1 skips a float32 update with an infinite gradient in silence, without loss scaling or clipping."""

import os
import sys
import tempfile

os.environ.update(GLOO_SOCKET_IFNAME="lo", DS_ACCELERATOR="cpu", RANK="0", LOCAL_RANK="0", WORLD_SIZE="1")
import deepspeed
from torch import distributed, nn, optim, tensor

folder = tempfile.TemporaryDirectory()
distributed.init_process_group("gloo", init_method=f"file://{folder.name}/store", rank=0, world_size=1)
config = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 1}, "zero_allow_untested_optimizer": True}
layer = nn.Linear(1, 1)
before = layer.bias.item()
engine, *_ = deepspeed.initialize(model=layer, optimizer=optim.SGD(layer.parameters(), 0.5), config=config)
engine.backward(engine(tensor([[float("inf")]])).sum())  # the weight's gradient is infinite, the bias's is 1
engine.step()
moved = round(before - layer.bias.item(), 4)
print("expected: the bias moves by 0.5")
print(f"seen: by {moved}, skipped steps: {engine.skipped_steps}")
sys.exit(0 if moved == 0.5 else 1)
