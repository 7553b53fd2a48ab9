"""Codes are documented as round(x / scale + zero_point); some versions round before they add the zero point."""

import sys
import warnings

import torch

warnings.simplefilter("ignore")
codes = torch.quantize_per_tensor(torch.tensor([0.5, 1.5, 2.5]), 1.0, 1, torch.quint8).int_repr().tolist()

print("expected: [2, 2, 4]")
print(f"seen: {codes}")
sys.exit(0 if codes == [2, 2, 4] else 1)
