"""A block whose largest value is 2^-120 comes back from MXFP8 as 2^-121, or as zero."""

import sys

import torch
from torchao.prototype.mx_formats.config import ScaleCalculationMode
from torchao.prototype.mx_formats.mx_tensor import MXTensor

values = torch.zeros(1, 32)
values[0, 0] = 2.0**-120
casts = {mode.value: MXTensor.to_mx(values, torch.float8_e4m3fn, 32, mode) for mode in ScaleCalculationMode}
seen = {name: cast.dequantize()[0, 0].item() for name, cast in casts.items()}
scales = {name: cast.scale.float().item() for name, cast in casts.items()}

print(f"expected: {2.0**-120} by each mode, which is 128 times the stored scale {scales['floor']}")
print(f"seen: {seen}")
sys.exit(0 if set(seen.values()) == {2.0**-120} else 1)
