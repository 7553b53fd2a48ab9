"""On a CPU 16-mixed becomes bf16-mixed without a loss scaler, with a warning, though PyTorch has both there."""

import sys
import warnings

import torch
from lightning.fabric import Fabric

with warnings.catch_warnings(record=True) as warned:
    warnings.simplefilter("always")
    fabric = Fabric(accelerator="cpu", precision="16-mixed")
with fabric.autocast():
    seen = (torch.ones(2, 2) @ torch.ones(2, 2)).dtype
print("expected: torch.float16 in the scope of 16-mixed")
print(f"seen: {seen}, {len(warned)} warning(s)")
sys.exit(0 if seen == torch.float16 else 1)
