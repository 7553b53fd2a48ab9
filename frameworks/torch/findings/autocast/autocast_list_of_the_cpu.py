"""Autocast's list of float32 operations on a CPU has no sum, var, exp, expm1, pow or square, which overflow float16."""

import sys

import torch

calls = {
    "sum of 70,000 ones": lambda: torch.ones(70_000, dtype=torch.float16).sum(),
    "variance of +-300": lambda: torch.tensor([300.0, -300.0], dtype=torch.float16).var(correction=0),
    "exp(12)": lambda: torch.tensor(12.0, dtype=torch.float16).exp(),
    "expm1(12)": lambda: torch.tensor(12.0, dtype=torch.float16).expm1(),
    "60 ** 3.0": lambda: torch.tensor(60.0, dtype=torch.float16).pow(3.0),
    "square of 300": lambda: torch.tensor(300.0, dtype=torch.float16).square(),
}
with torch.autocast("cpu", dtype=torch.float16):
    seen = {name: call().item() for name, call in calls.items()}

print("expected: 70000.0, 90000.0, 162754.8, 162753.8, 216000.0, 90000.0, as in float32")
print(f"seen: {seen}")
sys.exit(1 if float("inf") in seen.values() else 0)
