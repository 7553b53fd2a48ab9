"""At ZeRO's stage 1 safe_get_full_optimizer_state raises for the optimizer's second group of parameters."""

import os
import sys
import tempfile

os.environ.update(GLOO_SOCKET_IFNAME="lo", DS_ACCELERATOR="cpu", RANK="0", LOCAL_RANK="0", WORLD_SIZE="1")
import deepspeed
from torch import distributed, nn, ones, optim

folder = tempfile.TemporaryDirectory()
distributed.init_process_group("gloo", init_method=f"file://{folder.name}/store", rank=0, world_size=1)
config = {"train_micro_batch_size_per_gpu": 1, "gradient_clipping": 0.0, "zero_optimization": {"stage": 1}}
layer = nn.Linear(1, 1)
optimizer = optim.Adam([{"params": [layer.weight]}, {"params": [layer.bias]}])
engine, *_ = deepspeed.initialize(model=layer, optimizer=optimizer, config=config)
engine.backward(engine(ones(1, 1)).sum())
engine.step()
seen = []
for parameter in (layer.weight, layer.bias):
    try:
        seen.append(round(deepspeed.utils.safe_get_full_optimizer_state(parameter, "exp_avg").item(), 4))
    except (TypeError, ValueError) as error:
        seen.append(f"{type(error).__name__}: {error}")
print("expected:", [0.1, 0.1])
print("seen:", seen)
sys.exit(0 if seen == [0.1, 0.1] else 1)
