"""With donated_buffer off, as PyTorch's error advises, Inductor takes a graph with donated buffers from its cache."""

import sys

import torch._functorch.config

body, first_head, second_head = torch.nn.Linear(4, 8), torch.nn.Linear(8, 2), torch.nn.Linear(8, 2)
models, x = torch.nn.ModuleList([body, first_head, second_head]), torch.randn(4, 4)


def losses(x):
    return [head(torch.tanh(body(x))).square().sum() for head in (first_head, second_head)]


def gradients(function):
    models.zero_grad()
    first, second = function(x)
    first.backward(retain_graph=True)
    second.backward()
    return torch.cat([parameter.grad.flatten() for parameter in models.parameters()])


expected = gradients(losses)
sum(torch.compile(losses)(x)).backward()  # an earlier run, whose graph gives its buffers away
torch.compiler.reset()
torch._functorch.config.donated_buffer = False
distance = float((gradients(torch.compile(losses)) - expected).abs().max())
print(f"expected: gradients within 0.001 of eager mode's\nseen: {distance:.3f} apart, of {expected.abs().max():.3f}")
sys.exit(0 if distance < 0.001 else 1)
