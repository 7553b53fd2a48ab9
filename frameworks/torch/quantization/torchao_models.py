"""Post-training quantization by torchao's `quantize_`, if torchao is installed."""

import logging
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch

from fixtures.arrays import Array
from fixtures.model import Model
from frameworks.contract import Attempt, Capability, LinearRule, Quantized, QuantRule
from frameworks.torch.core.settings import to_array
from frameworks.torch.quantization.post_training import Network, TorchPostTraining, TorchQuantized, paths_of

MODE = "torchao"
NOT_INSTALLED = "torchao is not installed: pip install torchao"

LOW_PRECISION = (Capability.DYNAMIC_SCALES, Capability.BLOCK_SCALES, Capability.STOCHASTIC_ROUNDING)
"""Capabilities that are not of trained models."""

_EPS = float(torch.finfo(torch.float32).eps)


def _symmetric(low: int, axis: Any) -> QuantRule:
    """A symmetric rule of integers from `low` on; the range ends half a code beyond the highest one."""
    return QuantRule(low, -low - 1, -low - 0.5, axis=axis, smallest_scale=_EPS)


_RULES: Mapping[str, LinearRule] = {
    "dynamic-int8": LinearRule(_symmetric(-128, 0), _symmetric(-128, 1)),
    "weight-int8": LinearRule(_symmetric(-128, 0)),
    "weight-int4": LinearRule(_symmetric(-8, 0)),
}


def is_installed() -> bool:
    """Returns whether torchao is installed."""
    return find_spec("torchao") is not None


@cache
def import_torchao(name: str) -> Any:
    """A module of torchao, without the warning at import that extensions for GPUs are not loaded."""
    logging.getLogger("torchao").setLevel(logging.ERROR)
    pytree = logging.getLogger("torch.utils._pytree")
    level = pytree.level
    pytree.setLevel(logging.ERROR)
    try:
        return import_module(f"torchao.{name}")
    finally:
        pytree.setLevel(level)


def _config(technique: str) -> Any:
    quantization = import_torchao("quantization")
    match technique:
        case "dynamic-int8":
            return quantization.Int8DynamicActivationInt8WeightConfig()
        case "weight-int8":
            return quantization.Int8WeightOnlyConfig()
        case _:
            rows = quantization.PerAxis(0)
            return quantization.IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=rows)


def find_refusals() -> dict[Capability, str]:
    """Missing techniques, with reasons."""
    names = (*(Capability(f"quantization.{name}") for name in _RULES), *LOW_PRECISION)
    return {} if is_installed() else dict.fromkeys(names, NOT_INSTALLED)


def refused_attempts() -> dict[Capability, Attempt]:
    """Attempts for missing techniques."""
    return {capability: lambda: import_torchao("quantization") is not None for capability in find_refusals()}


class TorchaoQuantized(TorchQuantized):
    """A network whose linear layers have weights that are tensors of torchao's."""

    def weights(self) -> Mapping[str, Quantized | None]:
        return {name: _codes(self._linear(name).weight) for name in self._paths}

    def stored_bytes(self) -> int:
        return sum(part.nbytes for value in self._network.state_dict().values() for part in _parts(value))


class TorchaoPostTraining(TorchPostTraining):
    """Quantization of trained models on a device; it has no technique where torchao is not installed."""

    def rules(self) -> Mapping[str, LinearRule]:
        return _RULES if is_installed() else {}

    def quantize_network(
        self, technique: str, model: Model, network: Network, skipped: Sequence[str], calibration: Sequence[Array]
    ) -> TorchaoQuantized:
        wanted = set(paths_of(model).values()) - set(skipped)
        network.to(self.device)
        import_torchao("quantization").quantize_(network, _config(technique), filter_fn=lambda _, path: path in wanted)
        return TorchaoQuantized(model, network, self.device)


def _is_quantized(weight: torch.Tensor) -> bool:
    return hasattr(weight, "qdata")


def _parts(tensor: torch.Tensor) -> list[torch.Tensor]:
    """The plain tensors inside a tensor; a tensor of torchao's reports the bytes of its float32 original."""
    if not _is_quantized(tensor):
        return [tensor]
    names, _ = tensor.__tensor_flatten__()
    return [getattr(tensor, name) for name in names]


def _codes(weight: Any) -> Quantized | None:
    """The weight (inputs, outputs) of a quantized layer, which PyTorch stores as (outputs, inputs)."""
    if not _is_quantized(weight):
        return None
    return Quantized(
        to_array(weight.qdata.t()).astype(np.int32),
        to_array(weight.scale.t()).astype(np.float64),
        to_array(weight.zero_point.t()).astype(np.int32),
        to_array(weight.dequantize().t()),
    )
