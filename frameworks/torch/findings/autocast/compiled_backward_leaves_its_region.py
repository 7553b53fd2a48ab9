"""The compiled backward pass of a float32 region within bfloat16 autocast computes in bfloat16."""

import sys

import torch

torch.manual_seed(0)
weight = torch.zeros(8, 8, requires_grad=True)
inputs = torch.randn(4, 8)


def region(x):
    with torch.autocast("cpu", enabled=False):
        return (x @ weight.T).sum()


def gradient(function):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = function(inputs)
    return torch.autograd.grad(loss, weight)[0]


expected, seen = gradient(region), gradient(torch.compile(region))
distance = (seen - expected).abs().max().item()
print("expected: the eager float32 gradient, to 1e-6")
print(f"seen: a gradient that is {distance:.1e} off")
sys.exit(int(distance > 1e-6))
