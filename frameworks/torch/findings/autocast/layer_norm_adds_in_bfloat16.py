"""Under autocast on a CPU, layer norm adds up the gradients of its float32 scale and shift row by row in bfloat16."""

import sys

import torch

ROWS, GRADIENT = 1024, 2.0**-7
torch.set_num_threads(1)
norm = torch.nn.LayerNorm(4)
inputs = torch.linspace(-1.0, 1.0, ROWS * 4).reshape(ROWS, 4)
with torch.autocast("cpu", torch.bfloat16):
    hidden = torch.nn.functional.linear(inputs, torch.eye(4))
    loss = (norm(hidden) * GRADIENT).sum()
loss.backward()
assert norm.bias.grad is not None
expected, seen = ROWS * GRADIENT, norm.bias.grad.tolist()
print(f"expected: {ROWS} gradients of {GRADIENT} for the shift, which is {norm.bias.dtype}, come to {expected}")
print(f"seen: {seen}")
sys.exit(int(seen != [expected] * 4))
