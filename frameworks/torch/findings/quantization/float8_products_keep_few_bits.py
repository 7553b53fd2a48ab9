"""On a GPU a product of float8 operands in float32 drops a small term next to a large one."""

import sys

import torch

rows = torch.tensor([256.0, 2.0**-6], device="cuda").repeat(16, 8).to(torch.float8_e4m3fn)
columns = torch.tensor([256.0, 1.0], device="cuda").repeat(16, 8).to(torch.float8_e4m3fn)
one = torch.ones((), device="cuda")
product = torch._scaled_mm(rows, columns.t(), one, one, out_dtype=torch.float32, use_fast_accum=False)
seen = float(product[0, 0])

print(f"expected: {8 * (2.0**16 + 2.0**-6)}")
print(f"seen: {seen}")
sys.exit(0 if seen == 8 * (2.0**16 + 2.0**-6) else 1)
