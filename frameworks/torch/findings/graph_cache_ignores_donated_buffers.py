"""With donated_buffer off, as PyTorch's error advises, Inductor takes a graph with donated buffers from its cache."""

import os
import sys
import tempfile

with tempfile.TemporaryDirectory() as folder:
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
    import torch
    import torch._functorch.config

    body, first, second = torch.nn.Linear(4, 8), torch.nn.Linear(8, 2), torch.nn.Linear(8, 2)
    models = torch.nn.ModuleList([body, first, second])
    x = torch.randn(4, 4)

    def losses(x):
        features = torch.tanh(body(x))
        return first(features).square().sum(), second(features).square().sum()

    def gradients(function):
        models.zero_grad()
        one, other = function(x)
        one.backward(retain_graph=True)
        other.backward()
        return [parameter.grad.clone() for parameter in models.parameters()]

    right = gradients(losses)
    sum(torch.compile(losses)(x)).backward()  # an earlier run, whose graph gives its buffers away
    torch.compiler.reset()
    torch._functorch.config.donated_buffer = False
    pairs = zip(gradients(torch.compile(losses)), right, strict=True)
    apart = max(float((got - want).abs().max()) for got, want in pairs)
    largest = max(float(want.abs().max()) for want in right)

print(f"expected: gradients within 0.001 of eager mode's, of which the largest is {largest:.3f}")
print(f"seen: {apart:.3f} apart")
sys.exit(0 if apart < 0.001 else 1)
