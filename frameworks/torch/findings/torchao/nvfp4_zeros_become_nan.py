"""A tensor of zeros becomes NaN in NVFP4 with the scale of the tensor that torchao computes."""

import sys

import torch
from torchao.prototype.mx_formats.nvfp4_tensor import NVFP4Tensor, per_tensor_amax_to_scale

values = torch.zeros(1, 16)
scale = per_tensor_amax_to_scale(values.abs().max())
seen = NVFP4Tensor.to_nvfp4(values, per_tensor_scale=scale).dequantize(torch.float32)

print("expected: zeros")
print(f"seen: {seen.tolist()}")
sys.exit(0 if not seen.any() else 1)
