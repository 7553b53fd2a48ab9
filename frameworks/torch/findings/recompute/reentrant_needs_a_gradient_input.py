"""Reentrant checkpointing gives parameters no gradient unless a tensor among its own arguments asks for one."""

import sys
import warnings

import torch
from torch.utils.checkpoint import checkpoint

warnings.simplefilter("ignore")
table, head = torch.nn.Embedding(4, 2), torch.nn.Linear(2, 1)
head(checkpoint(table, torch.arange(4), use_reentrant=True)).sum().backward()
pair = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
(checkpoint(lambda both: both[0] * both[1], pair, use_reentrant=True) * head.bias).sum().backward()

seen = {"embedding of ids": table.weight.grad is not None, "tensors in a tuple": pair[0].grad is not None}
print("expected: a gradient for the embedding, and for the tensors in the tuple")
print(f"seen: gradients are there: {seen}")
sys.exit(0 if all(seen.values()) else 1)
