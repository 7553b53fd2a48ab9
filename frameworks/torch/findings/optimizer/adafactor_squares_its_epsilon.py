"""torch.optim.Adafactor squares the paper's epsilon1 of 1e-30 to 0, so a row without a gradient becomes NaN."""

import sys

import torch

weight = torch.nn.Parameter(torch.ones(2, 2))
weight.grad = torch.tensor([[1.0, 1.0], [0.0, 0.0]])
torch.optim.Adafactor([weight], lr=0.5, eps=(1e-30, 1e-3)).step()
print("expected: a second row [1.0, 1.0], moved by 0 / max(sqrt(0), epsilon1)")
print(f"seen: a second row {weight[1].tolist()}")
sys.exit(int(weight[1].tolist() != [1.0, 1.0]))
