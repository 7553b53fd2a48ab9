"""FakeQuantize observes evaluation data too: eval() under no_grad changes the scale of training."""

import sys

import torch
from torch.ao.quantization import FakeQuantize, MovingAverageMinMaxObserver

quantizer = FakeQuantize(MovingAverageMinMaxObserver, dtype=torch.quint8)
quantizer(torch.tensor([-1.0, 1.0]))
trained = quantizer.scale.item()
quantizer.eval()
with torch.no_grad():
    quantizer(torch.tensor([-100.0, 100.0]))
print(f"expected: the scale of training, {trained:.5f}")
print(f"seen: {quantizer.scale.item():.5f}")
sys.exit(quantizer.scale.item() != trained)
