"""PyTorch's casts to formats of eight bits, and its product of integers."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from fixtures.arrays import Array
from frameworks.contract import CastRule
from frameworks.torch.arrays import to_tensor

_SATURATES_FROM = (2, 12)
"""The version from which what overflows float8_e4m3fn is its largest value; it was NaN before."""


def _documented() -> dict[str, CastRule]:
    version = tuple(int(part) for part in torch.__version__.split(".")[:2])
    overflow = CastRule("saturate", "saturate") if version >= _SATURATES_FROM else CastRule("nan", "nan")
    return {
        "float8_e4m3fn": overflow,
        "float8_e5m2": CastRule("inf", "inf"),
        "float8_e4m3fnuz": CastRule("nan", "nan"),
        "float8_e5m2fnuz": CastRule("nan", "nan"),
        "float8_e8m0fnu": CastRule("nan", "nan"),
    }


class TorchFormats:
    """Casts by `Tensor.to`; codes are the bytes of the result."""

    def __init__(self, device: str) -> None:
        self._device = device

    def casts(self) -> Mapping[str, CastRule]:
        return {name: rule for name, rule in _documented().items() if hasattr(torch, name)}

    def encode(self, values: Array, format_name: str) -> Array:
        narrow = to_tensor(values, self._device).to(getattr(torch, format_name))
        codes: Array = narrow.view(torch.uint8).cpu().numpy()
        return codes

    def decode(self, codes: Array, format_name: str) -> Array:
        narrow = to_tensor(codes, self._device).view(getattr(torch, format_name))
        values: Array = narrow.to(torch.float32).cpu().numpy()
        return values

    def integer_product(self, a: Array, b: Array) -> Array:
        product: Array = torch._int_mm(to_tensor(a, self._device), to_tensor(b, self._device)).cpu().numpy()
        return product


def has_integer_product() -> bool:
    """Whether this version has the product of int8 that its quantized layers, and torchao's, are made of."""
    return hasattr(torch, "_int_mm")
