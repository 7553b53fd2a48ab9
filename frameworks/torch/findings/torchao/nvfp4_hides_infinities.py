"""An infinity becomes the finite number 2688 in NVFP4."""

import sys

import torch
from torchao.prototype.mx_formats.nvfp4_tensor import NVFP4Tensor

values = torch.ones(1, 16)
values[0, 3] = torch.inf
seen = NVFP4Tensor.to_nvfp4(values).dequantize(torch.float32)[0, 3].item()

print("expected: infinity or NaN")
print(f"seen: {seen}")
sys.exit(1 if seen < torch.inf else 0)
