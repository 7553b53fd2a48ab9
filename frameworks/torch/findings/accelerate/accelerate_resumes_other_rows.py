"""Resumed in a shuffled epoch by `load_state` and `skip_first_batches`, a run gets rows of another permutation."""

import sys
import tempfile

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState


def rows_after_three(folder, resumed):
    AcceleratorState._reset_state(True)  # as in a new process
    GradientState._reset_state()
    torch.manual_seed(1 if resumed else 0)
    accelerator, model, rows = Accelerator(cpu=True), torch.nn.Linear(1, 1), []
    model, loader = accelerator.prepare(model, torch.utils.data.DataLoader(range(8), shuffle=True))
    if resumed:
        accelerator.load_state(folder)
        return [row.item() for row in accelerator.skip_first_batches(loader, 3)]
    for number, row in enumerate(loader, start=1):
        rows.append(row.item())
        if number == 3:
            accelerator.save_state(folder)
    return rows[3:]


with tempfile.TemporaryDirectory() as folder:
    expected, seen = rows_after_three(folder, False), rows_after_three(folder, True)
print(f"expected: {expected}\nseen: {seen}")
sys.exit(0 if expected == seen else 1)
