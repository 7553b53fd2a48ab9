"""A model that saw no data between prepare and convert is quantized with a scale of 1, and only a warning says so."""

import sys
import warnings

import torch
from torch.ao import quantization

warnings.simplefilter("ignore")
model = torch.nn.Sequential(torch.nn.Linear(1, 1, bias=False)).eval()
torch.nn.init.constant_(model[0].weight, 1.0)
model[0].qconfig = quantization.QConfig(quantization.default_observer, quantization.default_per_channel_weight_observer)
observed = quantization.prepare(quantization.add_quant_dequant(model))
inputs = torch.tensor([[0.4]])
try:
    result = quantization.convert(observed)(inputs).item()
    seen = f"the weight 1 times {inputs.item():.1f} is {result}"
    wrong = abs(result - inputs.item()) > 0.01
except Exception as error:  # any refusal is right
    seen, wrong = f"refused ({type(error).__name__})", False
print("expected: refused, or the weight 1 times 0.4 is 0.4")
print(f"seen: {seen}")
sys.exit(wrong)
