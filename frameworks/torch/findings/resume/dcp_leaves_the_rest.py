"""torch.distributed.checkpoint loads a checkpoint of two layers into a model of one, and ignores the other layer."""

import sys
import tempfile

import torch
from torch.distributed import checkpoint

saved = {"layer.0": torch.ones(2), "layer.1": torch.ones(2)}
state = {"layer.0": torch.zeros(2)}
with tempfile.TemporaryDirectory() as folder:
    checkpoint.save(saved, checkpoint_id=folder)
    try:
        checkpoint.load(state, checkpoint_id=folder)
        seen = f"loaded {sorted(state)}"
    except checkpoint.CheckpointException as error:
        seen = type(error).__name__

print("expected: an error that names layer.1")
print(f"seen: {seen}")
sys.exit(0 if seen == "CheckpointException" else 1)
