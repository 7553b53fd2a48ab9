"""At ZeRO's stage 1 safe_get_full_optimizer_state raises between load_checkpoint and the next step."""

import os
import sys
import tempfile

os.environ.update(GLOO_SOCKET_IFNAME="lo", DS_ACCELERATOR="cpu", RANK="0", LOCAL_RANK="0", WORLD_SIZE="1")
import deepspeed
from torch import distributed, nn, ones, optim

folder = tempfile.TemporaryDirectory()
distributed.init_process_group("gloo", init_method=f"file://{folder.name}/store", rank=0, world_size=1)
config = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 1, "reduce_bucket_size": 1024}}
engines = []
for layer in (nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)):
    engine, *_ = deepspeed.initialize(model=layer, optimizer=optim.Adam(layer.parameters()), config=config)
    engines.append(engine)
first, second = engines
first.backward(first(ones(1, 1)).sum())
first.step()
first.save_checkpoint(folder.name, tag="first")
second.load_checkpoint(folder.name, tag="first")
try:
    seen = round(deepspeed.utils.safe_get_full_optimizer_state(second.module.weight, "exp_avg").item(), 4)
except TypeError as error:
    seen = f"TypeError: {error}"
print("expected:", 0.1)
print("seen:", seen)
sys.exit(0 if seen == 0.1 else 1)
