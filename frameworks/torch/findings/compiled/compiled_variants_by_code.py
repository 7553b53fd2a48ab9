"""torch.compile counts variants by code: the ninth model of one class is not compiled any more, and runs eagerly."""

import logging
import sys

import torch

logging.disable(logging.WARNING)
compiled = []


def backend(graph, _):
    compiled.append(graph)
    return graph.forward


class Model(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.layer = torch.nn.Linear(width, width)

    def forward(self, x):
        return self.layer(x)


for width in range(1, 13):
    torch.compile(Model(width), backend=backend, dynamic=False)(torch.ones(2, width))
print("expected: 12 models compiled")
print(f"seen: {len(compiled)} models compiled")
sys.exit(0 if len(compiled) == 12 else 1)
