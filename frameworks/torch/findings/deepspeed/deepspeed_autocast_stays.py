"""After an engine with a float16 `torch_autocast`, engines without it multiply their losses by 65536 too."""

import os
import sys
import tempfile

os.environ.update(GLOO_SOCKET_IFNAME="lo", DS_ACCELERATOR="cpu", RANK="0", LOCAL_RANK="0", WORLD_SIZE="1")
import deepspeed
from torch import distributed, nn, ones, optim

folder = tempfile.TemporaryDirectory()
distributed.init_process_group("gloo", init_method=f"file://{folder.name}/store", rank=0, world_size=1)
config = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 1, "reduce_bucket_size": 1024}}
gradients = []
for scope in ({}, {"torch_autocast": {"enabled": True, "dtype": "float16"}}, {}):
    layer = nn.Linear(1, 1, bias=False)
    engine, *_ = deepspeed.initialize(model=layer, optimizer=optim.Adam(layer.parameters()), config=config | scope)
    engine.backward(engine(ones(1, 1)).sum())
    gradients.append(deepspeed.utils.safe_get_full_grad(layer.weight).item())
print("expected:", [1.0, 1.0], "before and after")
print("seen:", seen := [gradients[0], gradients[2]])
sys.exit(0 if seen == [1.0, 1.0] else 1)
