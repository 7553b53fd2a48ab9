"""A Linear8bitLt of weight 1 gives 1.000018 for 1: it multiplies 127 * 127 by 6.200124e-05 instead of 1 / 127**2."""

import sys

import torch
from bitsandbytes.nn import Linear8bitLt

layer = Linear8bitLt(1, 1, bias=False, has_fp16_weights=False)
layer.load_state_dict({"weight": torch.ones(1, 1)})
layer = layer.to("cpu").eval()
with torch.no_grad():
    result = layer(torch.ones(1, 1)).item()

print("expected: 1.0, within 1e-6")
print(f"seen: {result!r}")
sys.exit(0 if abs(result - 1.0) <= 1e-6 else 1)
