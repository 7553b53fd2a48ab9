"""The MX scale of RCEIL is half of the least power of two that is not smaller than amax / 448."""

import sys

import torch
from torchao.prototype.mx_formats.config import ScaleCalculationMode
from torchao.prototype.mx_formats.mx_tensor import MXTensor

amax = 448.0 * 2.0**20 * (1 + 2.0**-22)
values = torch.zeros(1, 32)
values[0, 0] = amax
cast = MXTensor.to_mx(values, torch.float8_e4m3fn, 32, ScaleCalculationMode.RCEIL)
scale = cast.scale.float().item()

print(f"expected: a scale of {2.0**21}, since {float(values[0, 0])} / 448 is above {2.0**20}")
print(f"seen: {scale}")
sys.exit(0 if scale == 2.0**21 else 1)
