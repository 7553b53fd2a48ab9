"""PyTorch's own quantizers: the range of an observer, the codes of `quantize_per_tensor` and `quantize_per_channel`."""

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch.ao.quantization import observer

from fixtures.arrays import Array
from frameworks.contract import FakeRule, Quantized, QuantRule
from frameworks.torch.core.arrays import to_array, to_tensor

_EPS = float(torch.finfo(torch.float32).eps)
_RULES: Mapping[str, QuantRule] = {
    "int8-tensor": QuantRule(-128, 127, 127.5, smallest_scale=_EPS),
    "int8-row": QuantRule(-128, 127, 127.5, axis=1, smallest_scale=_EPS),
    "int8-column": QuantRule(-128, 127, 127.5, axis=0, smallest_scale=_EPS),
    "uint8-tensor": QuantRule(0, 255, 255.0, symmetric=False, rounds="sum", smallest_scale=_EPS),
}
_FAKE_RULES: Mapping[str, FakeRule] = {
    "fake-int8-tensor": FakeRule(-128, 127, nan="clamped"),
    "fake-int8-column": FakeRule(-128, 127, axis=0, nan="clamped"),
    "fake-uint8-tensor": FakeRule(0, 255, nan="clamped"),
    "fake-int4-tensor": FakeRule(-8, 7, nan="clamped"),
}


class TorchQuantizers:
    """`MinMaxObserver` and `PerChannelMinMaxObserver` with PyTorch's quantized tensors, and its fake quantization."""

    def __init__(self, device: str) -> None:
        self._device = device

    def rules(self) -> Mapping[str, QuantRule]:
        return _RULES

    def fake_rules(self) -> Mapping[str, FakeRule]:
        return _FAKE_RULES

    def quantize(self, name: str, values: Array) -> Quantized:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*quantized tensor creation functions.*deprecated")
            return self._quantize(_RULES[name], values)

    def _quantize(self, rule: QuantRule, values: Array) -> Quantized:
        tensor = to_tensor(values, self._device)
        dtype = torch.qint8 if rule.low < 0 else torch.quint8
        if rule.axis is None:
            scheme = torch.per_tensor_symmetric if rule.symmetric else torch.per_tensor_affine
            scale, zero_point = _observed(observer.MinMaxObserver(dtype=dtype, qscheme=scheme), tensor)
            quantized = torch.quantize_per_tensor(tensor, scale, zero_point, dtype)
            shape = (1, 1)
        else:
            place = 1 - rule.axis
            watching = observer.PerChannelMinMaxObserver(place, dtype, torch.per_channel_symmetric)
            scale, zero_point = _observed(watching, tensor)
            quantized = torch.quantize_per_channel(tensor, scale, zero_point, place, dtype)
            shape = (-1, 1) if place == 0 else (1, -1)
        return Quantized(
            to_array(quantized.int_repr()).astype(np.int32),
            to_array(scale).astype(np.float64).reshape(shape),
            to_array(zero_point).astype(np.int32).reshape(shape),
            to_array(quantized.dequantize()),
        )

    def fake_quantize(self, name: str, values: Array, scale: Array, zero_point: Array) -> tuple[Array, Array]:
        rule = _FAKE_RULES[name]
        tensor = to_tensor(values, self._device).requires_grad_()
        step, zero = to_tensor(scale, self._device), to_tensor(zero_point, self._device)
        if rule.axis is None:
            result = torch.fake_quantize_per_tensor_affine(tensor, step, zero, rule.low, rule.high)
        else:
            result = torch.fake_quantize_per_channel_affine(tensor, step, zero, 1 - rule.axis, rule.low, rule.high)
        (gradient,) = torch.autograd.grad(result.sum(), tensor)
        return to_array(result), to_array(gradient)


def _observed(watching: Any, tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Scale and zero point that an observer computes from a tensor."""
    watching.to(tensor.device)(tensor)
    scale, zero_point = watching.calculate_qparams()
    return scale, zero_point
