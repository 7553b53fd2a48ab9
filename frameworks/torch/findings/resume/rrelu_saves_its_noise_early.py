"""rrelu saves its noise before it is drawn, so a hook that copies saved values copies what was in memory."""

import sys

import torch

x = torch.full([4096], -1.0, requires_grad=True)
torch.full([4096], 1e30)  # leaves something in memory
with torch.autograd.graph.saved_tensors_hooks(torch.clone, lambda saved: saved):
    output = torch.nn.functional.rrelu(x, 0.25, 0.5, training=True)
output.sum().backward()
equal = torch.equal(x.grad, -output.detach())
print("expected: the slopes of the forward pass as gradient")
print(f"seen: {'the slopes' if equal else 'other numbers'}")
sys.exit(not equal)
