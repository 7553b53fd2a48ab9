"""Paddle's post-training quantization in the dynamic graph (`PTQ` with absmax observers), and attempts."""

import copy
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import paddle
from paddle.nn.quant import llm_int8_linear, weight_only_linear, weight_quantize
from paddle.nn.quant.qat import QuantedLinear
from paddle.quantization import PTQ, QuantConfig
from paddle.quantization.observers import AbsmaxObserver, GroupWiseWeightObserver

from fixtures.arrays import Array
from fixtures.model import Activation, Dense, Flatten, LayerNorm, Model
from frameworks.contract import Attempt, Calibrated, Capability, CodeRange, LinearRule, Quantized, QuantRule
from frameworks.paddle.core.arrays import to_numpy, to_tensor
from frameworks.paddle.core.layers import build_layers, own_parameters
from frameworks.paddle.core.settings import in_dynamic_mode
from frameworks.paddle.quantization.formats import quiet_conversion, stored_codes

FILE = "quantized.pdparams"
_RULES: Mapping[str, LinearRule] = MappingProxyType(
    {"static-int8": LinearRule(QuantRule(-127, 127, 127.0), QuantRule(-128, 127, 127.0), ranges="calibration")}
)


class _Network(paddle.nn.Layer):
    """A fixture model as a user writes it: a sequence of layers, and linear heads of its result."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        *body, heads = build_layers(model.layers, model.sample)
        self.layers = paddle.nn.Sequential(*body)
        self.heads = heads

    def forward(self, x: Any) -> dict[str, Any]:
        features = self.layers(x)
        return {name: head(features) for name, head in self.heads.items()}


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
            return to_numpy(_dense(self._model, self._network)[name](to_tensor(inputs)))

    def weights(self) -> Mapping[str, Quantized | None]:
        return {name: _codes(layer) for name, layer in _dense(self._model, self._network).items()}

    def unquantized_parameters(self) -> Mapping[str, Array]:
        coded = {name for name, layer in _dense(self._model, self._network).items() if _is_quantized(layer)}
        named = _name_parameters(self._model, self._network)
        return {name: to_numpy(parameter) for name, parameter in named.items() if name not in coded}

    def calibrated_ranges(self) -> Mapping[str, Calibrated]:
        dense = _dense(self._model, self._network)
        return {name: Calibrated(_range(layer), None) for name, layer in dense.items() if _is_quantized(layer)}

    def stored_bytes(self) -> int:
        return sum(to_numpy(value).nbytes for value in self._network.state_dict().values())

    def save(self, path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)
        paddle.save(self._network.state_dict(), str(path / FILE))

    def restore(self, path: Path) -> None:
        saved = paddle.load(str(path / FILE))
        resumed = copy.deepcopy(self._network)
        load = getattr(resumed, "load_state_dict", resumed.set_state_dict)  # the first came with Paddle 3.3
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
        _admit(model)
        network = _Network(model)
        network.eval()
        for name, parameter in _name_parameters(model, network).items():
            parameter.set_value(weights[name])
        dense = _dense(model, network)
        if strange := sorted(set(skip) - set(dense)):
            raise ValueError(f"{model.name} has no dense layer {', '.join(strange)}")
        config = QuantConfig(activation=None, weight=None)
        wanted = [layer for name, layer in dense.items() if name not in skip]
        config.add_layer_config(wanted, activation=AbsmaxObserver(), weight=AbsmaxObserver())
        quantization = PTQ(config)
        with quiet_conversion(), paddle.no_grad():
            observed = quantization.quantize(network)
            for batch in calibration:
                observed(to_tensor(batch))
            return PaddleQuantized(model, quantization.convert(observed))


def _admit(model: Model) -> None:
    """Refuses unsupported models.

    Raises:
        ValueError: a layer is none that is quantized or stays as it is, or a head is float64.
    """
    *body, _ = model.layers
    known = all(isinstance(layer, Dense | Activation | LayerNorm | Flatten) for layer in body)
    if not known or any(head.format == "float64" for head in model.heads.heads):
        raise ValueError(f"{model.name} has more than dense layers, activations, layer norms and flattening in float32")


def _name_parameters(model: Model, network: Any) -> dict[str, Any]:
    """The parameters by canonical name; those of quantized layers have codes for their weights."""
    parts = [*network.layers, network.heads]
    result = {
        f"{index}.{name}": parameter
        for index, (layer, part) in enumerate(zip(model.layers, parts, strict=True))
        for name, parameter in own_parameters(layer, part).items()
    }
    return {name: result[name] for name in model.parameter_shapes()}


def _dense(model: Model, network: Any) -> dict[str, Any]:
    """The dense layers, quantized or not, by the names of their weights."""
    *body, _ = model.layers
    result = {f"{index}.weight": network.layers[index] for index, part in enumerate(body) if isinstance(part, Dense)}
    return result | {f"{len(body)}.{head.name}.weight": network.heads[head.name] for head in model.heads.heads}


def _is_quantized(layer: Any) -> bool:
    return isinstance(layer, QuantedLinear)


def _step(quanter: Any) -> float:
    """The step between codes: Paddle stores the absmax."""
    return float(to_numpy(quanter._dequanter._scales)) / 127.0


def _codes(layer: Any) -> Quantized | None:
    """The weight of a quantized layer, whose codes Paddle stores as float32."""
    if not _is_quantized(layer):
        return None
    return stored_codes(layer, _step(layer.weight_quanter))


def _range(layer: Any) -> CodeRange:
    return CodeRange(_step(layer.activation_quanter), int(to_numpy(layer.activation_quanter._dequanter._zero_point)))


_GROUP = 64


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
    """The calls, in dynamic mode, which their kernels share with the static graph."""
    kernels: dict[Capability, Attempt] = {
        Capability.LOAD_INT8: _loads_int8,
        Capability.WEIGHT_INT8: partial(_multiplies_weights, "int8"),
        Capability.WEIGHT_INT4: partial(_multiplies_weights, "int4"),
        Capability.FLOAT8_PRODUCTS: _multiplies_float8,
    }
    calls = {Capability.INT4_GROUP: _groups_by_64, **(kernels if device == "cpu" else {})}
    return {capability: partial(in_dynamic_mode, call) for capability, call in calls.items()}
