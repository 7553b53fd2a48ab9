"""PyTorch's casts to 8-bit formats, and its integer matmul."""

from collections.abc import Mapping
from functools import cache

import numpy as np
import torch

from fixtures.arrays import Array
from frameworks.base import BaseFormats
from frameworks.contract import Capability, CastRule
from frameworks.torch.core.arrays import to_tensor

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


FEWEST_ROWS = 17
"""Of the first factor of a product of integers on a GPU."""


class TorchFormats(BaseFormats):
    """Casts by `Tensor.to`; codes are the bytes of the result."""

    def __init__(self, device: str) -> None:
        self._device = device

    def casts(self) -> Mapping[str, CastRule]:
        return {name: rule for name, rule in _documented().items() if hasattr(torch, name)}

    def encode(self, values: Array, format_name: str) -> Array:
        narrow = to_tensor(values, self._device).to(getattr(torch, format_name))
        return narrow.view(torch.uint8).cpu().numpy()

    def decode(self, codes: Array, format_name: str) -> Array:
        narrow = to_tensor(codes, self._device).view(getattr(torch, format_name))
        return narrow.to(torch.float32).cpu().numpy()

    def integer_product(self, a: Array, b: Array) -> Array:
        """The integer matmul; on a GPU the matrices are zero-padded to multiples of 8."""
        left, right = (a, b) if self._device == "cpu" else (padded(a, 8, FEWEST_ROWS), padded(b, 8))
        product: Array = torch._int_mm(to_tensor(left, self._device), to_tensor(right, self._device)).cpu().numpy()
        return product[: a.shape[0], : b.shape[1]]

    def float8_product(self, a: Array, b: Array, formats: tuple[str, str]) -> Array:
        """The float8 matmul; on a GPU both matrices are zero-padded to multiples of 16."""
        whole = (a, b.T.copy()) if self._device == "cpu" else (padded(a, 16), padded(b.T, 16))
        left, right = (
            to_tensor(codes, self._device).view(getattr(torch, name))
            for codes, name in zip(whole, formats, strict=True)
        )
        one = torch.ones((), device=self._device)
        product: Array = torch._scaled_mm(left, right.t(), one, one, out_dtype=torch.float32).cpu().numpy()
        return product[: a.shape[0], : b.shape[1]]


def padded(codes: Array, unit: int, fewest: int = 1) -> Array:
    """The matrix with zeros below, up to the fewest rows, and to its right, so that the unit divides both sizes."""
    rows, columns = codes.shape
    below = max(fewest - rows, 0)
    return np.pad(codes, [(0, below + -(rows + below) % unit), (0, -columns % unit)])


def products(device: str) -> tuple[Capability, ...]:
    """The products that this version has, on which its quantized layers and torchao's are based."""
    offered = [Capability.INTEGER_PRODUCTS] if hasattr(torch, "_int_mm") else []
    return (*offered, Capability.FLOAT8_PRODUCTS) if _multiplies_float8(device) else tuple(offered)


@cache
def _multiplies_float8(device: str) -> bool:
    codes = torch.zeros(16, 16, device=device).to(torch.float8_e4m3fn)
    one = torch.ones((), device=device)
    try:
        torch._scaled_mm(codes, codes.t(), one, one, out_dtype=torch.float32)
    except (AttributeError, RuntimeError, TypeError):
        return False
    return True
