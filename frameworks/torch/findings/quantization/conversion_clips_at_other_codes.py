"""Quantization-aware training clips inputs at code 127, and the converted model at 255."""

import sys
import warnings

import torch
from torch.ao import quantization

warnings.simplefilter("ignore")
model = quantization.QuantWrapper(torch.nn.Linear(1, 1, bias=False))
torch.nn.init.ones_(model.module.weight)
model.qconfig = quantization.get_default_qat_qconfig("x86")
quantization.prepare_qat(model.train(), inplace=True)
model(torch.tensor([[0.0], [1.0]]))
model.apply(quantization.disable_observer)
outside = torch.tensor([[1.5]])
trained = model(outside).item()
converted = quantization.convert(model.eval())(outside).item()
print(f"expected: 1.5 comes out as in training, {trained:.3f}")
print(f"seen: {converted:.3f}")
sys.exit(abs(converted - trained) > 0.1)
