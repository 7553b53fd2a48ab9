"""MinMaxObserver gives values from -3e38 to 3e38 an infinite scale; 6e38 / 255 = 2.35e36 fits float32."""

import sys

import torch
from torch.ao.quantization.observer import MinMaxObserver

observer = MinMaxObserver(dtype=torch.quint8, qscheme=torch.per_tensor_affine)
observer(torch.tensor([-3e38, 3e38]))
scale, _ = observer.calculate_qparams()
print("expected: 2.35e+36")
print("seen:", f"{scale.item():.3g}")
sys.exit(0 if torch.isfinite(scale).all() else 1)
