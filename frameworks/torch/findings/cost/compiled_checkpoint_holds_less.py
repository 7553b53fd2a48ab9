"""Compiled, a checkpoint's output is recomputed for the layer behind it, so fewer bytes are saved than eagerly."""

import sys

import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

layer, head, x, saved_bytes = torch.nn.Linear(16, 16), torch.nn.Linear(16, 4), torch.ones(64, 16), {}
excluded = {tensor.data_ptr() for tensor in (x, *layer.parameters(), *head.parameters())}


def loss(inputs):
    return head(checkpoint(lambda y: torch.tanh(layer(y)), inputs, use_reentrant=False)).square().sum()


for name, call in {"eager": loss, "compiled": torch.compile(loss)}.items():
    storages = {}
    with saved_tensors_hooks(lambda t, kept=storages: kept.setdefault(t.data_ptr(), t), lambda t: t):
        call(x)
    saved_bytes[name] = sum(t.nbytes for pointer, t in storages.items() if pointer not in excluded)

print(f"expected: as many bytes compiled as in eager mode, {saved_bytes['eager']}")
print(f"seen: {saved_bytes}")
sys.exit(0 if saved_bytes["compiled"] >= saved_bytes["eager"] else 1)
