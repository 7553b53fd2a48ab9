"""Casts in blocks, float8 products with dynamic scales and stochastic rounding by torchao, emulated on a CPU."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, Literal

import numpy as np
import torch

from fixtures.arrays import Array
from frameworks.contract import (
    Attempt,
    BlockScaleRule,
    BlockScales,
    Capability,
    DynamicProducts,
    DynamicScaleRule,
    PassResult,
    StochasticRounding,
)
from frameworks.torch.core.devices import to_array, to_tensor
from frameworks.torch.quantization.torchao_models import import_torchao

_POWERS: tuple[Literal["floor", "ceil", "even", "rceil"], ...] = ("floor", "ceil", "even", "rceil")
_BLOCK_RULES: Mapping[str, BlockScaleRule] = {
    **{f"mxfp8-{name}": BlockScaleRule("float8_e4m3fn", 32, "float8_e8m0fnu", name, "infinity") for name in _POWERS},
    "nvfp4": BlockScaleRule("float4_e2m1fn", 16, "float8_e4m3fn", "exact", "largest"),
    "nvfp4-tensor": BlockScaleRule("float4_e2m1fn", 16, "float8_e4m3fn", "exact", "nan", levels=2),
}
_E4M3: Final = "float8_e4m3fn"
_DOWN: Final = "power-of-two-down"
_DYNAMIC_RULES: Mapping[str, DynamicScaleRule] = {
    "tensorwise": DynamicScaleRule(_E4M3, "float8_e5m2", "tensor", "tensor", "exact", smallest=1e-12),
    "rowwise": DynamicScaleRule(_E4M3, _E4M3, "row", "row", _DOWN, smallest=1e-12),
    "rowwise_with_gw_hp": DynamicScaleRule(_E4M3, _E4M3, "row", "tensor", _DOWN, "float32", 1e-12),
}


@dataclass(frozen=True)
class TorchaoBlockScales:
    """Casts by `MXTensor.to_mx` and `NVFP4Tensor.to_nvfp4`, and their `dequantize`."""

    device: str

    def rules(self) -> Mapping[str, BlockScaleRule]:
        return _BLOCK_RULES

    def cast(self, name: str, values: Array) -> tuple[Array, Array]:
        tensor = self._quantize(_BLOCK_RULES[name], to_tensor(values, self.device))
        return to_array(tensor.scale.float()).astype(np.float64), to_array(tensor.dequantize(torch.float32))

    def _quantize(self, rule: BlockScaleRule, values: torch.Tensor) -> Any:
        formats = "prototype.mx_formats"
        if rule.element == _E4M3:
            mode = import_torchao(f"{formats}.config").ScaleCalculationMode(rule.scale_rule)
            cast = import_torchao(f"{formats}.mx_tensor").MXTensor.to_mx
            return cast(values, torch.float8_e4m3fn, rule.block, mode)
        module = import_torchao(f"{formats}.nvfp4_tensor")
        scale = module.per_tensor_amax_to_scale(values.abs().max()) if rule.levels == 2 else None
        return module.NVFP4Tensor.to_nvfp4(values, per_tensor_scale=scale)


@dataclass(frozen=True)
class TorchaoDynamicProducts:
    """Linear layers after `convert_to_float8_training`."""

    device: str

    def rules(self) -> Mapping[str, DynamicScaleRule]:
        return _DYNAMIC_RULES

    def multiply(self, name: str, inputs: Array, kernel: Array, gradient: Array) -> PassResult:
        float8 = import_torchao("float8")
        config = replace(float8.Float8LinearConfig.from_recipe_name(name), emulate=self.device == "cpu")
        linear = torch.nn.Linear(*kernel.shape, bias=False, device=self.device)
        linear.weight.data = to_tensor(np.ascontiguousarray(kernel.T), self.device)
        (layer,) = float8.convert_to_float8_training(torch.nn.Sequential(linear), config=config)
        samples = to_tensor(inputs, self.device).requires_grad_()
        output = layer(samples)
        output.backward(to_tensor(gradient, self.device))
        return PassResult(to_array(output), to_array(samples.grad), to_array(layer.weight.grad.t()))


def round_stochastically(device: str, values: Array) -> Array:
    """The rounding of torchao's optimizers with `bf16_stochastic_round=True`, by the device's default generator."""
    return to_array(import_torchao("optim.quant_utils")._fp32_to_bf16_sr(to_tensor(values, device)).float())


def attempts(device: str) -> dict[Capability, Attempt]:
    """An attempt for each capability of this module."""
    casts, ramp = TorchaoBlockScales(device), np.linspace(1, 2, 1024, dtype=np.float32).reshape(32, 32)
    ones, near = (np.full((32, 32), value, np.float32) for value in (1, 1.01))

    def multiplies() -> bool:
        output = TorchaoDynamicProducts(device).multiply("tensorwise", ramp, ones, ones).output
        return bool(np.allclose(output, ramp @ ones, rtol=0.1) and not np.allclose(output, ramp @ ones, rtol=1e-4))

    return {
        Capability.BLOCK_SCALES: lambda: bool((casts.cast("mxfp8-floor", 480 * ones)[1] == 448).all()),
        Capability.DYNAMIC_SCALES: multiplies,
        Capability.STOCHASTIC_ROUNDING: lambda: len(np.unique(round_stochastically(device, near))) == 2,
    }


def rules(device: str) -> dict[type, Callable[[], Any]]:
    """A factory for each interface of this module."""
    return {
        BlockScales: lambda: TorchaoBlockScales(device),
        DynamicProducts: lambda: TorchaoDynamicProducts(device),
        StochasticRounding: lambda: partial(round_stochastically, device),
    }
