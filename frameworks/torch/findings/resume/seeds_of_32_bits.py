"""On a CPU only the lower 32 of a seed's 64 bits count: two seeds that differ above them draw one dropout mask."""

import sys

import torch

layer, x = torch.nn.Dropout(0.5), torch.ones(64)
masks = []
for seed in (1, 1 + 2**32):
    torch.manual_seed(seed)
    masks.append(layer(x) != 0)
same = torch.equal(*masks)

print("expected: another dropout mask for a seed that differs in one of its 64 bits")
print(f"seen: {'the same mask' if same else 'another mask'}")
sys.exit(same)
