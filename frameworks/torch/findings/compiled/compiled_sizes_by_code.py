"""A compiled run rounds otherwise after another run of the same code with micro-batches of another size."""

import sys

import torch


def loss(layer, x):
    return layer(x).square().sum()


def bias_gradient(between):
    torch.compiler.reset()
    torch.manual_seed(0)
    layer, other, x = torch.nn.Linear(8, 4), torch.nn.Linear(8, 4), torch.randn(4, 8)
    if between:
        torch.compile(loss)(other, torch.randn(2, 8)).backward()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.compile(loss)(layer, x).backward()
    return layer.bias.grad


alone, beside = bias_gradient(False), bias_gradient(True)
seen = f"{int((alone != beside).sum())} of {alone.numel()} elements differ"

print("expected: 0 of 4 elements differ")
print(f"seen: {seen}")
sys.exit(0 if seen.startswith("0 ") else 1)
