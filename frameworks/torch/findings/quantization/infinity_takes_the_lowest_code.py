"""Fake quantization of infinity and of 1e30 gives the lowest code with a scale for each channel, not the highest."""

import sys

import torch

values = torch.tensor([[torch.inf], [1e30]])
scale, zero_point = torch.tensor([0.5]), torch.tensor([0], dtype=torch.int32)
whole = torch.fake_quantize_per_tensor_affine(values, scale, zero_point, -128, 127).flatten().tolist()
channels = torch.fake_quantize_per_channel_affine(values, scale, zero_point, 1, -128, 127).flatten().tolist()
print("expected:", whole)
print("seen:", channels)
sys.exit(0 if channels == whole else 1)
