"""A run saved in the middle of a shuffled epoch and resumed by `load_state` and `skip_first_batches`: its next rows."""

import sys
import tempfile

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState


def epoch(folder, resumed):
    AcceleratorState._reset_state(True), GradientState._reset_state()  # as in a new process
    torch.manual_seed(1 if resumed else 0)
    accelerator, model = Accelerator(cpu=True), torch.nn.Linear(1, 1)
    model, rows = accelerator.prepare(model, torch.utils.data.DataLoader(range(8), shuffle=True))
    if resumed:
        accelerator.load_state(folder)
        rows = accelerator.skip_first_batches(rows, 3)
    for number, row in enumerate(rows, 4 if resumed else 1):
        seen[resumed] += row.tolist() if number > 3 else []
        if number == 3:
            accelerator.save_state(folder)


seen = [[], []]
with tempfile.TemporaryDirectory() as folder:
    epoch(folder, False), epoch(folder, True)
print("expected:", seen[0])
print("seen:", seen[1])
sys.exit(0 if seen[0] == seen[1] else 1)
