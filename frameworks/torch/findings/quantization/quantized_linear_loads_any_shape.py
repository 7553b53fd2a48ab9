"""A quantized Linear of 3 outputs strictly loads a weight of 4 outputs, which a float Linear refuses."""

import sys
import warnings

import torch

warnings.simplefilter("ignore")
outcomes = []
for layer_class in (torch.nn.Linear, torch.ao.nn.quantized.dynamic.Linear):
    receiver = layer_class(2, 3)
    try:
        receiver.load_state_dict(layer_class(2, 4).state_dict(), strict=True)
        outputs = receiver(torch.ones(1, 2)).shape[1]
        outcomes.append(f"loaded, {receiver.out_features} outputs are {outputs}")
    except RuntimeError:
        outcomes.append("refused")
print("expected: float and quantized layers refuse the weight of 4 outputs where there are 3")
print(f"seen: {', '.join(outcomes)}")
sys.exit(outcomes != ["refused", "refused"])
