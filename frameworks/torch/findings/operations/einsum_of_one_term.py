"""Under autocast einsum returns bfloat16, but float32 where the dimension that it sums over has size 1."""

import sys

import torch

seen = {}
for terms in (2, 1):
    with torch.autocast("cpu", torch.bfloat16):
        product = torch.einsum("ij,jk->ik", torch.ones(4, terms), torch.ones(terms, 4))
    seen[terms] = str(product.dtype)

print("expected: one format, whatever the size of the dimension that is summed over")
print(f"seen: {seen}")
sys.exit(0 if seen[1] == seen[2] else 1)
