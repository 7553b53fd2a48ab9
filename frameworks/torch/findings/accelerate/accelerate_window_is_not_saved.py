"""`save_state` inside an accumulation window saves the position in the window and not the gradients."""

import sys
import tempfile

import torch
from accelerate import Accelerator


def micro_batch(model, optimizer):
    with accelerator.accumulate(model):
        accelerator.backward(model(torch.full((1, 1), 2.0)).sum())
        optimizer.step()
        optimizer.zero_grad()


accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
model = torch.nn.Linear(1, 1, bias=False)
torch.nn.init.zeros_(model.weight)
model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=1.0))
with tempfile.TemporaryDirectory() as folder:
    micro_batch(model, optimizer)  # the first of two
    accelerator.save_state(folder)
    model.zero_grad()  # as in a new process, where no gradient is there
    accelerator.load_state(folder)
micro_batch(model, optimizer)  # the second
print("expected: -2.0, or a refusal")
print(f"seen: {model.weight.item()}")
sys.exit(0 if model.weight.item() == -2.0 else 1)
