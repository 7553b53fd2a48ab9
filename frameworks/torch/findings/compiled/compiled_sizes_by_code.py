"""A compiled gradient has other last bits after an earlier run of the same code on a batch of another size."""

import sys

import torch


def loss(layer, x):
    return layer(x).square().sum()


def bias_gradient(after_another_run):
    torch.compiler.reset()
    torch.manual_seed(0)
    layer, earlier, x = torch.nn.Linear(8, 4), torch.nn.Linear(8, 4), torch.randn(4, 8)
    if after_another_run:
        torch.compile(loss)(earlier, torch.randn(2, 8)).backward()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.compile(loss)(layer, x).backward()
    return layer.bias.grad


alone, after = bias_gradient(False), bias_gradient(True)
seen = f"{int((alone != after).sum())} of {alone.numel()} elements differ"

print("expected: 0 of 4 elements differ")
print(f"seen: {seen}")
sys.exit(0 if seen.startswith("0 ") else 1)
