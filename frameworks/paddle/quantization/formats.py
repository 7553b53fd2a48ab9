"""Casts to 8-bit formats and quantizers of Paddle's dynamic graph, with their declared rules."""

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

import numpy as np
import paddle
from paddle.quantization import PTQ, QAT, QuantConfig
from paddle.quantization.observers import AbsmaxObserver
from paddle.quantization.quanters import FakeQuanterWithAbsMaxObserver

from fixtures.arrays import Array
from frameworks.base import BaseFormats
from frameworks.contract import CastRule, FakeRule, Quantized, QuantRule, Unsupported
from frameworks.contract import Capability
from frameworks.paddle.core.arrays import to_numpy, to_tensor

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


_INT8_RULES: Mapping[str, QuantRule] = MappingProxyType({"int8-tensor": QuantRule(-127, 127, 127.0)})
_FAKE_RULES: Mapping[str, FakeRule] = MappingProxyType(
    {
        "fake-int8-tensor": FakeRule(-127, 127, ties="away", gradient="everywhere"),
        "fake-int4-tensor": FakeRule(-7, 7, ties="away", gradient="everywhere"),
    }
)


@contextmanager
def quiet_conversion() -> Iterator[None]:
    """Without the warning of a call of Paddle's own in `convert`."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "To copy construct from a tensor", UserWarning)
        yield


def stored_codes(layer: Any, step: Any) -> Quantized:
    """The weight of a converted layer, whose codes Paddle stores as float32, with the step between them."""
    restored = to_numpy(layer.weight_quanter(layer.weight))
    zero_point = np.zeros((1, 1), np.int32)
    return Quantized(to_numpy(layer.weight).astype(np.int32), np.full((1, 1), step), zero_point, restored)


class PaddleQuantizers:
    """The weight of a layer that `PTQ` has converted, and a `Stub` that `QAT` has given a fake quantizer."""

    def rules(self) -> Mapping[str, QuantRule]:
        return _INT8_RULES

    def fake_rules(self) -> Mapping[str, FakeRule]:
        return _FAKE_RULES

    def quantize(self, name: str, values: Array) -> Quantized:
        rows, columns = values.shape
        layer = paddle.nn.Linear(rows, columns, bias_attr=False)
        layer.weight.set_value(values)
        model = paddle.nn.Sequential(layer)
        model.eval()
        technique = PTQ(QuantConfig(activation=None, weight=AbsmaxObserver()))
        with quiet_conversion():
            warnings.filterwarnings("ignore", r"\s*Non compatible API", Warning)
            observed = technique.quantize(model)
            observed(paddle.zeros([1, rows]))
            (converted,) = technique.convert(observed)
        largest = to_numpy(observed[0].weight_quanter.scales()).astype(np.float64)
        with np.errstate(invalid="ignore"):
            return stored_codes(converted, largest / _INT8_RULES[name].divisor)

    def fake_quantize(self, name: str, values: Array, scale: Array, zero_point: Array) -> tuple[Array, Array]:
        rule = _FAKE_RULES[name]
        quanter = FakeQuanterWithAbsMaxObserver(bit_length=(rule.high + 1).bit_length())
        model = paddle.nn.Sequential(paddle.nn.quant.Stub())
        model.train()
        qat = QAT(QuantConfig(activation=quanter, weight=None)).quantize(model)
        qat.eval()
        largest = paddle.to_tensor((scale.astype(np.float64) * rule.high).astype(np.float32))
        state = {key: largest if key.endswith("_scale") else value for key, value in qat.state_dict().items()}
        qat.set_state_dict(state)
        tensor = to_tensor(values)
        tensor.stop_gradient = False
        result = qat(tensor)
        result.sum().backward()
        return to_numpy(result), to_numpy(tensor.grad)
