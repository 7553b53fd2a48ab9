"""Casts to 8-bit formats and quantizers of Paddle's dynamic graph, with their declared rules."""

import copy
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import paddle
from paddle.nn.quant import llm_int8_linear, weight_only_linear, weight_quantize
from paddle.nn.quant.qat import QuantedLinear
from paddle.quantization import PTQ, QAT, QuantConfig
from paddle.quantization.observers import AbsmaxObserver, GroupWiseWeightObserver
from paddle.quantization.quanters import FakeQuanterWithAbsMaxObserver

from fixtures.arrays import Array
from fixtures.model import Activation, Dense, Flatten, LayerNorm, Model
from frameworks.base import BaseFormats
from frameworks.contract import (
    Attempt,
    Calibrated,
    Capability,
    CastRule,
    CodeRange,
    FakeRule,
    LinearRule,
    Quantized,
    QuantRule,
    Unsupported,
)
from frameworks.paddle.core.layers import build_layers, name_parameters
from frameworks.paddle.core.settings import in_dynamic_mode, to_numpy, to_tensor

_CASTS: Mapping[str, CastRule] = MappingProxyType(
    {"float8_e4m3fn": CastRule("saturate", "saturate"), "float8_e5m2": CastRule("saturate", "saturate")}
)
NO_PRODUCTS = "paddle.matmul has no kernel for int8, and no option names another format for its result"

_INT8_RULES: Mapping[str, QuantRule] = MappingProxyType({"int8-tensor": QuantRule(-127, 127, 127.0)})
_FAKE_RULES: Mapping[str, FakeRule] = MappingProxyType(
    {
        "fake-int8-tensor": FakeRule(-127, 127, ties="away", gradient="everywhere"),
        "fake-int4-tensor": FakeRule(-7, 7, ties="away", gradient="everywhere"),
    }
)
FILE = "quantized.pdparams"
_RULES: Mapping[str, LinearRule] = MappingProxyType(
    {"static-int8": LinearRule(QuantRule(-127, 127, 127.0), QuantRule(-128, 127, 127.0), ranges="calibration")}
)
_GROUP = 64


class PaddleFormats(BaseFormats):
    """`paddle.cast`; codes are the tensor viewed as uint8, and float8 is a view of codes."""

    def casts(self) -> Mapping[str, CastRule]:
        return _CASTS

    def encode(self, values: Array, format_name: str) -> Array:
        return np.array(paddle.cast(to_tensor(values), format_name).view("uint8").numpy())

    def decode(self, codes: Array, format_name: str) -> Array:
        return np.array(paddle.cast(paddle.to_tensor(codes).view(format_name), "float32").numpy())

    def integer_product(self, a: Array, b: Array) -> Array:
        raise Unsupported(Capability.INTEGER_PRODUCTS, NO_PRODUCTS)


def integer_products() -> bool:
    """Returns whether a product of int8 tensors can exceed the range of int8."""
    product = paddle.matmul(paddle.full([2, 16], 127, "int8"), paddle.full([16, 2], 127, "int8"))
    return bool((product.astype("int32") == 16 * 127 * 127).all())


@contextmanager
def quiet_conversion() -> Iterator[None]:
    """A context without the warning that `convert` causes inside Paddle."""
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


class _Network(paddle.nn.Layer):
    """A fixture model as a user writes it: a sequence of layers, and linear heads on its output."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        *body, heads = build_layers(model.layers, model.sample)
        self._model = model
        self.layers = paddle.nn.Sequential(*body)
        self.heads = heads

    def forward(self, x: Any) -> dict[str, Any]:
        features = self.layers(x)
        return {name: head(features) for name, head in self.heads.items()}

    def name_parameters(self) -> dict[str, Any]:
        """The parameters by canonical name."""
        return name_parameters(self._model, list(self.layers), self.heads)


class PaddleQuantized:
    """A quantized network; its arrays are those of its `state_dict`."""

    def __init__(self, model: Model, network: Any) -> None:
        self._model = model
        self._network = network

    def predict(self, inputs: Array) -> dict[str, Array]:
        with paddle.no_grad():
            return {name: to_numpy(value) for name, value in self._network(to_tensor(inputs)).items()}

    def layer(self, name: str, inputs: Array) -> Array:
        with paddle.no_grad():
            return to_numpy(_dense_layers(self._model, self._network)[name](to_tensor(inputs)))

    def _quantized_layers(self) -> dict[str, Any]:
        dense = _dense_layers(self._model, self._network)
        return {name: layer for name, layer in dense.items() if isinstance(layer, QuantedLinear)}

    def weights(self) -> Mapping[str, Quantized | None]:
        quantized = self._quantized_layers()
        codes = {name: stored_codes(layer, _code_step(layer.weight_quanter)) for name, layer in quantized.items()}
        return {name: codes.get(name) for name in _dense_layers(self._model, self._network)}

    def unquantized_parameters(self) -> Mapping[str, Array]:
        coded, named = self._quantized_layers(), self._network.name_parameters()
        return {name: to_numpy(parameter) for name, parameter in named.items() if name not in coded}

    def calibrated_ranges(self) -> Mapping[str, Calibrated]:
        quanters = {name: layer.activation_quanter for name, layer in self._quantized_layers().items()}
        return {
            name: Calibrated(CodeRange(_code_step(quanter), int(to_numpy(quanter._dequanter._zero_point))), None)
            for name, quanter in quanters.items()
        }

    def stored_bytes(self) -> int:
        return sum(to_numpy(value).nbytes for value in self._network.state_dict().values())

    def save(self, path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)
        paddle.save(self._network.state_dict(), str(path / FILE))

    def restore(self, path: Path) -> None:
        saved = paddle.load(str(path / FILE))
        resumed = copy.deepcopy(self._network)
        load = getattr(resumed, "load_state_dict", resumed.set_state_dict)  # the former is new in Paddle 3.3
        load(saved)
        self._network = resumed


class PaddlePostTraining:
    """Dense layers by `PTQ`, with the technique's observers for their inputs and weights."""

    def rules(self) -> Mapping[str, LinearRule]:
        return _RULES

    def quantize(
        self,
        technique: str,
        model: Model,
        weights: Mapping[str, Array],
        calibration: Sequence[Array] = (),
        skip: Sequence[str] = (),
    ) -> PaddleQuantized:
        *body, _ = model.layers
        known = all(isinstance(layer, Dense | Activation | LayerNorm | Flatten) for layer in body)
        if not known or any(head.format == "float64" for head in model.heads.heads):
            raise ValueError(
                f"{model.name} has more than dense layers, activations, layer norms and flattening in float32"
            )
        network = _Network(model)
        network.eval()
        for name, parameter in network.name_parameters().items():
            parameter.set_value(weights[name])
        dense = _dense_layers(model, network)
        if unknown := sorted(set(skip) - set(dense)):
            raise ValueError(f"{model.name} has no dense layer {', '.join(unknown)}")
        config = QuantConfig(activation=None, weight=None)
        quantized = [layer for name, layer in dense.items() if name not in skip]
        config.add_layer_config(quantized, activation=AbsmaxObserver(), weight=AbsmaxObserver())
        quantization = PTQ(config)
        with quiet_conversion(), paddle.no_grad():
            observed = quantization.quantize(network)
            for batch in calibration:
                observed(to_tensor(batch))
            return PaddleQuantized(model, quantization.convert(observed))


def _dense_layers(model: Model, network: Any) -> dict[str, Any]:
    """The dense layers, quantized or not, by the names of their weights."""
    *body, _ = model.layers
    result = {f"{index}.weight": network.layers[index] for index, part in enumerate(body) if isinstance(part, Dense)}
    return result | {f"{len(body)}.{head.name}.weight": network.heads[head.name] for head in model.heads.heads}


def _code_step(quanter: Any) -> float:
    """The step between codes, from the absmax that Paddle stores."""
    return float(to_numpy(quanter._dequanter._scales)) / 127.0


def _operands(format_name: str) -> tuple[Any, Any]:
    return paddle.ones([1, 64]).astype(format_name), paddle.ones([64, 32]).astype(format_name)


def _loads_int8() -> bool:
    x, weight = _operands("float16")
    codes, scale = weight_quantize(weight, algo="llm.int8", arch=80)
    return bool((llm_int8_linear(x, codes, weight_scale=scale) == 64).all())


def _multiplies_weights(algorithm: str) -> bool:
    x, weight = _operands("float16")
    codes, scale = weight_quantize(weight, algo=f"weight_only_{algorithm}", arch=80)
    return bool((weight_only_linear(x, codes, weight_scale=scale, weight_dtype=algorithm, arch=80) == 64).all())


def _multiplies_float8() -> bool:
    x, weight = _operands("float8_e4m3fn")
    try:
        product = paddle.linalg.fp8_fp8_half_gemm_fused(x, weight.t(), transpose_y=True, output_dtype="float16")
    except RuntimeError:
        product = paddle.matmul(x, weight)
    return bool((product.astype("float32") == 64).all())


def _groups_by_64() -> bool:
    model = paddle.nn.Sequential(paddle.nn.Linear(_GROUP, 2))
    model.eval()
    weight = GroupWiseWeightObserver(quant_bits=4, group_size=_GROUP)
    observed = PTQ(QuantConfig(activation=None, weight=weight)).quantize(model)
    observed(paddle.zeros([1, _GROUP]))
    return bool(observed[0].weight_quanter.scales().shape[0] == 1)


def gpu_kernel_attempts(device: str) -> dict[Capability, Attempt]:
    """Attempts in dynamic mode, whose kernels the static graph shares."""
    kernels: dict[Capability, Attempt] = {
        Capability.LOAD_INT8: _loads_int8,
        Capability.WEIGHT_INT8: partial(_multiplies_weights, "int8"),
        Capability.WEIGHT_INT4: partial(_multiplies_weights, "int4"),
        Capability.FLOAT8_PRODUCTS: _multiplies_float8,
    }
    calls = {Capability.INT4_GROUP: _groups_by_64, **(kernels if device == "cpu" else {})}
    return {capability: partial(in_dynamic_mode, call) for capability, call in calls.items()}
