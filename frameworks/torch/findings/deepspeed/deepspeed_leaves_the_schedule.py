"""load_checkpoint of an engine without a schedule removes the schedule's state from what it returns to the caller."""

import os
import sys
import tempfile

os.environ.update(GLOO_SOCKET_IFNAME="lo", DS_ACCELERATOR="cpu", RANK="0", LOCAL_RANK="0", WORLD_SIZE="1")
import deepspeed
from torch import distributed, nn, optim

folder = tempfile.TemporaryDirectory()
distributed.init_process_group("gloo", init_method=f"file://{folder.name}/store", rank=0, world_size=1)
engines = []
for scheduled in (True, False):
    model = nn.Linear(1, 1)
    optimizer = optim.Adam(model.parameters())
    schedule = {"lr_scheduler": optim.lr_scheduler.StepLR(optimizer, 2)} if scheduled else {}
    config = {"train_micro_batch_size_per_gpu": 1}
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config, **schedule)
    engines.append(engine)
engines[0].save_checkpoint(folder.name, tag="saved")
try:
    path, state = engines[1].load_checkpoint(folder.name, tag="saved")
    seen = f"a load, {'with' if 'lr_scheduler' in state else 'without'} the schedule's state for the caller"
except Exception as error:  # any refusal is right
    seen = type(error).__name__
print("expected:", "an error, or the state for the caller")
print("seen:", seen)
sys.exit(1 if "without" in seen else 0)
