"""Cross entropy in an autocast region of a GPU rounds logarithms of probabilities to the format of the logits."""

import math
import sys

import torch

logits = torch.zeros(1, 4, dtype=torch.float16, device="cuda")
with torch.autocast("cuda"):
    loss = torch.nn.functional.cross_entropy(logits, torch.zeros(1, dtype=torch.int64, device="cuda"))
error = abs(loss.item() - math.log(4))

print(f"expected: {torch.float32}, at most 2e-7 from log 4 = {math.log(4):.7f}")
print(f"seen: {loss.dtype}, {loss.item():.7f}, which is {error:.1e} from it")
sys.exit(0 if error < 2e-7 else 1)
