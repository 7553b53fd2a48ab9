"""Compiled, a checkpoint's output is recomputed for the layer behind it, so fewer bytes are saved than eagerly."""

import sys

import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

layer, head, x, held = torch.nn.Linear(16, 16), torch.nn.Linear(16, 4), torch.ones(64, 16), {}
excluded = {tensor.data_ptr() for tensor in (x, *layer.parameters(), *head.parameters())}


def loss(inputs):
    return head(checkpoint(lambda y: torch.tanh(layer(y)), inputs, use_reentrant=False)).square().sum()


for name, call in {"eager": loss, "compiled": torch.compile(loss)}.items():
    storages = {}
    with saved_tensors_hooks(lambda t, kept=storages: kept.setdefault(t.data_ptr(), t), lambda t: t):
        call(x)
    held[name] = sum(t.nbytes for pointer, t in storages.items() if pointer not in excluded)

print(f"expected: as many bytes compiled as in eager mode, {held['eager']}")
print(f"seen: {held}")
sys.exit(0 if held["compiled"] >= held["eager"] else 1)
