"""On a CPU mixed_precision='fp16' runs in float32 without a loss scaler, and neither raises nor warns."""

import math
import sys
import warnings

import torch
from accelerate import Accelerator

with warnings.catch_warnings(record=True) as warned:
    warnings.simplefilter("always")
    accelerator = Accelerator(cpu=True, mixed_precision="fp16")
    layer, seen = torch.nn.Linear(1, 1, bias=False), []
    optimizer = torch.optim.SGD(layer.parameters(), lr=1.0)
    layer.register_forward_hook(lambda _layer, _inputs, output: seen.append(output.dtype))
    model, optimizer = accelerator.prepare(torch.nn.Sequential(layer), optimizer)
    accelerator.backward(model(torch.ones(1, 1)).sum() * math.inf)
    optimizer.step()
warnings_about_it = [entry for entry in warned if "fp16" in str(entry.message) or "float16" in str(entry.message)]

print("expected: torch.float16 and a skipped update, or an exception or a warning")
skipped = accelerator.optimizer_step_was_skipped
print(f"seen: {seen[0]}, weight {layer.weight.item()}, skipped: {skipped}, warnings: {len(warnings_about_it)}")
sys.exit(0 if warnings_about_it or (seen[0] == torch.float16 and skipped) else 1)
