"""AveragedModel raises after the first pass of a prepare_qat model, whose scales take the shape (channels,) there."""

import sys
import warnings

import torch
from torch import nn
from torch.ao import quantization
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

warnings.simplefilter("ignore")
model = nn.Sequential(nn.Linear(4, 3))
model.qconfig = quantization.QConfig(
    activation=quantization.default_fake_quant, weight=quantization.default_per_channel_weight_fake_quant
)
quantization.prepare_qat(model.train(), inplace=True)
average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
model(torch.ones(2, 4)).sum().backward()
torch.optim.SGD(model.parameters(), lr=0.1).step()
print("expected: the average takes in the first update")
try:
    average.update_parameters(model)
    seen = "it does"
except RuntimeError as error:
    seen = f"RuntimeError: {error}"
print(f"seen: {seen}")
sys.exit(0 if seen == "it does" else 1)
