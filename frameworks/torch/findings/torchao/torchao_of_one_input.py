"""quantize_ of a linear layer with one input raises, or, with dynamic quantization, the layer does for several rows."""

import sys

import torch
from torchao.quantization import Int8DynamicActivationInt8WeightConfig, Int8WeightOnlyConfig, quantize_

seen = {}
for config, outputs in ((Int8WeightOnlyConfig(), 2), (Int8DynamicActivationInt8WeightConfig(), 1)):
    layer = torch.nn.Linear(1, outputs)
    try:
        quantize_(layer, config)
        seen[type(config).__name__] = list(layer(torch.ones(3, 1)).shape)
    except RuntimeError as error:
        seen[type(config).__name__] = str(error)

print("expected: 3 rows of results by each")
print(f"seen: {seen}")
sys.exit(0 if all(isinstance(value, list) for value in seen.values()) else 1)
