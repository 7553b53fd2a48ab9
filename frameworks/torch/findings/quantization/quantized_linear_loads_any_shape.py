"""A quantized Linear strictly loads the weight of a layer of another size, and reports the sizes that it had."""

import sys
import warnings

import torch

warnings.simplefilter("ignore")
sizes = []
seen = []
for kind in (torch.nn.Linear, torch.ao.nn.quantized.dynamic.Linear):
    receiver = kind(2, 3)
    try:
        receiver.load_state_dict(kind(2, 4).state_dict(), strict=True)
        sizes.append(receiver(torch.ones(1, 2)).shape[1])
        seen.append(f"loaded, {receiver.out_features} outputs are {sizes[-1]}")
    except RuntimeError:
        seen.append("refused")
print("expected: float and quantized layers refuse the weight of 4 outputs where there are 3")
print(f"seen: {', '.join(seen)}")
sys.exit(bool(sizes))
