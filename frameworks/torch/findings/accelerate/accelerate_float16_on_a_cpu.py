"""On a CPU mixed_precision='fp16' runs in float32 without a loss scaler, and neither raises nor warns."""

import re
import sys
import warnings

import torch
from accelerate import Accelerator

expected = "torch.float16 and a skipped update, or an exception or a warning"
layer, seen = torch.nn.Linear(1, 1, bias=False), []
layer.register_forward_hook(lambda _layer, _inputs, output: seen.append(output.dtype))
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    try:
        accelerator = Accelerator(cpu=True, mixed_precision="fp16")
        optimizer = torch.optim.SGD(layer.parameters(), lr=1.0)
        model, optimizer = accelerator.prepare(torch.nn.Sequential(layer), optimizer)
        accelerator.backward(model(torch.ones(1, 1)).sum() * float("inf"))
        optimizer.step()
        gone = seen[0] == torch.float16 and accelerator.optimizer_step_was_skipped
    except Exception as error:
        if not (gone := re.search(r"\b(fp16|float16)\b", str(error))):
            raise
gone = gone or any(re.search(r"\b(fp16|float16)\b", str(entry.message)) for entry in said)
print(f"expected: {expected}")
print(f"seen: {expected if gone else f'{seen[0]}, weight {layer.weight.item()}, neither an exception nor a warning'}")
sys.exit(not gone)
