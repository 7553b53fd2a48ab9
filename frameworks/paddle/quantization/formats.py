"""Casts to 8-bit formats in Paddle's dynamic graph."""

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np
import paddle

from fixtures.arrays import Array
from frameworks.base import BaseFormats
from frameworks.contract import CastRule, Unsupported
from frameworks.contract.capabilities import Capability
from frameworks.paddle.core.arrays import to_tensor

_CASTS: Mapping[str, CastRule] = MappingProxyType(
    {"float8_e4m3fn": CastRule("saturate", "saturate"), "float8_e5m2": CastRule("saturate", "saturate")}
)
NO_PRODUCTS = "paddle.matmul has no kernel for int8, and no option names another format for its result"


class PaddleFormats(BaseFormats):
    """`paddle.cast`; codes are a view of the tensor in uint8, and float8 a view of codes."""

    def casts(self) -> Mapping[str, CastRule]:
        return _CASTS

    def encode(self, values: Array, format_name: str) -> Array:
        return np.array(paddle.cast(to_tensor(values), format_name).view("uint8").numpy())

    def decode(self, codes: Array, format_name: str) -> Array:
        return np.array(paddle.cast(paddle.to_tensor(codes).view(format_name), "float32").numpy())

    def integer_product(self, a: Array, b: Array) -> Array:
        raise Unsupported(Capability.INTEGER_PRODUCTS, NO_PRODUCTS)


def integer_products() -> bool:
    """Whether a product of int8 tensors can exceed the range of int8."""
    product = paddle.matmul(paddle.full([2, 16], 127, "int8"), paddle.full([16, 2], 127, "int8"))
    return bool((product.astype("int32") == 16 * 127 * 127).all())
