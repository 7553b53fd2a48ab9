"""Compiled, torch.func.grad differentiates the forward of an autograd.Function, and ignores its backward."""

import sys

import torch


class SineWithoutSlope(torch.autograd.Function):
    @staticmethod
    def forward(x):
        return torch.sin(x)

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(_, gradient):
        return gradient * 0.0


slope = torch.func.grad(lambda x: SineWithoutSlope.apply(x).sum())
x = torch.tensor([0.0, 1.0])
expected, seen = slope(x).tolist(), torch.compile(slope, backend="eager")(x).tolist()
print(f"expected: {expected}")
print(f"seen: {seen}")
sys.exit(0 if seen == expected else 1)
