"""Under custom_fwd and custom_bwd a function whose setup_context is a separate method raises AttributeError."""

import sys

import torch


class Square(torch.autograd.Function):
    @staticmethod
    @torch.amp.custom_fwd(device_type="cpu")
    def forward(x):
        return x * x

    @staticmethod
    def setup_context(ctx, inputs, _output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    @torch.amp.custom_bwd(device_type="cpu")
    def backward(ctx, gradient):
        return 2.0 * ctx.saved_tensors[0] * gradient


x, seen = torch.ones(1, requires_grad=True), "a gradient of 2.0"
try:
    Square.apply(x).backward()
except AttributeError as error:
    seen = str(error)
print(f"expected: a gradient of 2.0\nseen: {seen}")
sys.exit(int(x.grad is None))
