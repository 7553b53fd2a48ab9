"""With the default configuration of prepare_qat a weight's scale in training is not that after conversion."""

import sys
import warnings

import torch
from torch.ao import quantization

warnings.simplefilter("ignore")
model = quantization.QuantWrapper(torch.nn.Linear(2, 1, bias=False))
model.module.weight.data = torch.tensor([[-1.0, 3.0]])
model.qconfig = quantization.get_default_qat_qconfig("x86")
quantization.prepare_qat(model.train(), inplace=True)
model(torch.ones(1, 2))
trained = model.module.weight_fake_quant.scale.item()
converted = quantization.convert(model.eval()).module.weight().q_per_channel_scales().item()
print(f"expected: the scale of training, {trained:.7f}")
print(f"seen: {converted:.7f}")
sys.exit(abs(converted - trained) > 1e-6 * trained)
