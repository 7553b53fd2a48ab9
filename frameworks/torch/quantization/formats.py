"""Casts to 8-bit formats, integer matmul, quantizers and low-rank adapters by PyTorch, torchao, peft, with rules."""

import logging
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Literal

import numpy as np
import torch
from torch import nn
from torch.ao.quantization import observer
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.checkpoint import checkpoint

from fixtures.arrays import Array
from fixtures.recipe import Recipe
from frameworks.base import BaseFormats
from frameworks.contract import (
    Attempt,
    BlockScaleRule,
    BlockScales,
    Capability,
    CastRule,
    DynamicProducts,
    DynamicScaleRule,
    FakeRule,
    LowRank,
    PassResult,
    Quantized,
    QuantRule,
    StochasticRounding,
)
from frameworks.torch.core.operations import VARIANTS
from frameworks.torch.core.settings import DTYPES, random_apart, to_array, to_tensor
from frameworks.torch.quantization.torchao_models import import_torchao
from frameworks.torch.training.optimizers import grad_scaler, optimizer_kind

_SATURATES_FROM = (2, 12)
"""The first version whose casts to float8_e4m3fn saturate on overflow; earlier ones return NaN."""
FEWEST_ROWS = 17
"""Least number of rows of the first factor of an integer matmul on a GPU."""

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


def _list_cast_rules() -> dict[str, CastRule]:
    version = tuple(int(part) for part in torch.__version__.split(".")[:2])
    overflow = CastRule("saturate", "saturate") if version >= _SATURATES_FROM else CastRule("nan", "nan")
    return {
        "float8_e4m3fn": overflow,
        "float8_e5m2": CastRule("inf", "inf"),
        "float8_e4m3fnuz": CastRule("nan", "nan"),
        "float8_e5m2fnuz": CastRule("nan", "nan"),
        "float8_e8m0fnu": CastRule("nan", "nan"),
    }


class TorchFormats(BaseFormats):
    """Casts by `Tensor.to`; codes are the bytes of the result."""

    def __init__(self, device: str) -> None:
        self._device = device

    def casts(self) -> Mapping[str, CastRule]:
        return {name: rule for name, rule in _list_cast_rules().items() if hasattr(torch, name)}

    def encode(self, values: Array, format_name: str) -> Array:
        narrow = to_tensor(values, self._device).to(getattr(torch, format_name))
        return narrow.view(torch.uint8).cpu().numpy()

    def decode(self, codes: Array, format_name: str) -> Array:
        narrow = to_tensor(codes, self._device).view(getattr(torch, format_name))
        return narrow.to(torch.float32).cpu().numpy()

    def integer_product(self, a: Array, b: Array) -> Array:
        """The integer matmul; on a GPU the matrices are zero-padded to multiples of 8."""
        left, right = (a, b) if self._device == "cpu" else (pad_codes(a, 8, FEWEST_ROWS), pad_codes(b, 8))
        product: Array = torch._int_mm(to_tensor(left, self._device), to_tensor(right, self._device)).cpu().numpy()
        return product[: a.shape[0], : b.shape[1]]

    def float8_product(self, a: Array, b: Array, formats: tuple[str, str]) -> Array:
        """The float8 matmul; on a GPU both matrices are zero-padded to multiples of 16."""
        whole = (a, b.T.copy()) if self._device == "cpu" else (pad_codes(a, 16), pad_codes(b.T, 16))
        left, right = (
            to_tensor(codes, self._device).view(getattr(torch, name))
            for codes, name in zip(whole, formats, strict=True)
        )
        one = torch.ones((), device=self._device)
        product: Array = torch._scaled_mm(left, right.t(), one, one, out_dtype=torch.float32).cpu().numpy()
        return product[: a.shape[0], : b.shape[1]]


def pad_codes(codes: Array, unit: int, fewest: int = 1) -> Array:
    """The matrix zero-padded below and to the right: at least the fewest rows, and both sizes multiples of the unit."""
    rows, columns = codes.shape
    below = max(fewest - rows, 0)
    return np.pad(codes, [(0, below + -(rows + below) % unit), (0, -columns % unit)])


def products(device: str) -> tuple[Capability, ...]:
    """Quantized matmuls of this version; its quantized layers and torchao's are based on them."""
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
            scale, zero_point = _compute_qparams(observer.MinMaxObserver(dtype=dtype, qscheme=scheme), tensor)
            quantized = torch.quantize_per_tensor(tensor, scale, zero_point, dtype)
            shape = (1, 1)
        else:
            axis = 1 - rule.axis
            range_observer = observer.PerChannelMinMaxObserver(axis, dtype, torch.per_channel_symmetric)
            scale, zero_point = _compute_qparams(range_observer, tensor)
            quantized = torch.quantize_per_channel(tensor, scale, zero_point, axis, dtype)
            shape = (-1, 1) if axis == 0 else (1, -1)
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


def _compute_qparams(range_observer: Any, tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Scale and zero point that an observer computes from a tensor."""
    range_observer.to(tensor.device)(tensor)
    scale, zero_point = range_observer.calculate_qparams()
    return scale, zero_point


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


_STATE = "optimizer.pt"
_CODED: Mapping[str, Capability] = MappingProxyType(
    {
        "int8": Capability.ADAPTER_INT8,
        "nf4": Capability.ADAPTER_NF4,
        "fp4": Capability.ADAPTER_FP4,
        "nested": Capability.ADAPTER_NESTED,
    }
)
_OF_CODES = frozenset({*_CODED.values(), Capability.ADAPTER_FLOAT_INPUTS})
CAPABILITIES = _OF_CODES | {
    Capability.ADAPTERS,
    Capability.ADAPTER_ROOT,
    Capability.ADAPTER_LOW_BASE,
    Capability.ADAPTER_MERGE,
    Capability.ADAPTER_COPIES,
    Capability.LATE_ADAPTERS,
}
_NAMES = MappingProxyType({"lora_A": "a", "lora_B": "b"})


def find_refusals() -> dict[Capability, str]:
    """The capabilities of adapters whose libraries are not installed, with the reason."""
    missing = [name for name in ("peft", "bitsandbytes") if find_spec(name) is None]
    lacking = CAPABILITIES if "peft" in missing else _OF_CODES if missing else ()
    return dict.fromkeys(lacking, f"not installed: pip install {' '.join(missing)}")


def refused_attempts() -> dict[Capability, Attempt]:
    """An attempt for each capability of `find_refusals`."""
    return {capability: lambda: all(map(import_module, ("peft", "bitsandbytes"))) for capability in find_refusals()}


@cache
def _library(name: str) -> Any:
    """A library, without the warnings of its import and of each of its calls."""
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
    with warnings.catch_warnings(action="ignore"):
        return import_module(name)


class _Stack(nn.Module):
    """Dense layers by name, with a ReLU between two; all but the last are one recomputed segment, if any."""

    def __init__(self, layers: Mapping[str, nn.Module], reentrant: bool | None) -> None:
        super().__init__()
        self.layers = nn.ModuleDict(layers)
        self._reentrant = reentrant

    def _segment(self, x: torch.Tensor) -> torch.Tensor:
        for layer in list(self.layers.values())[:-1]:
            x = torch.relu(layer(x))
        return x

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The outputs of the last layer."""
        last = list(self.layers.values())[-1]
        if self._reentrant is None:
            return last(self._segment(x))
        return last(checkpoint(self._segment, x, use_reentrant=self._reentrant))


class PeftNetwork:
    """A network with adapters of `peft.get_peft_model`, trained as PyTorch's examples do."""

    def __init__(
        self, weights: Mapping[str, Array], adapters: LowRank, recipe: Recipe, *, late: bool = False, device: str
    ) -> None:
        self._adapters, self._recipe, self._device = adapters, recipe, device
        names = sorted({name.partition(".")[0] for name in weights})
        variant = None if recipe.recompute is None else VARIANTS[recipe.recompute.variant or next(iter(VARIANTS))]
        stack = _Stack({name: self._layer(name, weights) for name in names}, variant)
        self._dtype = DTYPES.get(adapters.base, torch.float32)
        self._model: Any = stack.to(device=device, dtype=None if adapters.base in _CODED else self._dtype)
        if not late:
            self._adapt()
        self._scaler = grad_scaler(device, recipe)
        self._make_optimizer()

    def _layer(self, name: str, weights: Mapping[str, Array]) -> nn.Module:
        weight, bias = weights[f"{name}.weight"].T, weights[f"{name}.bias"]
        outputs, inputs = weight.shape
        base = self._adapters.base if name in self._adapters.targets else "float32"
        layer: nn.Module
        if base == "int8":
            layer = _library("bitsandbytes").nn.Linear8bitLt(inputs, outputs, has_fp16_weights=False)
        elif base in _CODED:
            kind = "nf4" if base == "nested" else base
            layer = _library("bitsandbytes").nn.Linear4bit(
                inputs, outputs, compute_dtype=torch.float32, compress_statistics=base == "nested", quant_type=kind
            )
        else:
            layer = nn.Linear(inputs, outputs)
        layer.load_state_dict({"weight": to_tensor(weight, "cpu"), "bias": to_tensor(bias, "cpu")}, strict=False)
        return layer

    def _adapt(self) -> None:
        own = self._adapters
        if own.base in _CODED:  # peft chooses the class of its layers by the model's flag
            setattr(self._model, f"is_loaded_in_{8 if own.base == 'int8' else 4}bit", True)
        config = _library("peft").LoraConfig(
            r=own.rank,
            lora_alpha=own.alpha,
            use_rslora=own.root,
            target_modules=list(own.targets),
            modules_to_save=list(own.copied) or None,
        )
        with random_apart(self._device):
            torch.manual_seed(self._recipe.seed)
            self._model = _library("peft").get_peft_model(self._model, config)

    def _make_optimizer(self) -> None:
        kind, arguments = optimizer_kind(self._recipe)
        self._optimizer = kind(self._model.parameters(), **arguments)
        self._average: Any = None
        if self._recipe.average is not None:
            trained = nn.ParameterList(p for p in self._model.parameters() if p.requires_grad)
            self._average = AveragedModel(trained, multi_avg_fn=get_ema_multi_avg_fn(self._recipe.average))

    def _slots(self) -> Iterator[tuple[str, nn.Parameter]]:
        """What trains, by canonical name."""
        for name, parameter in self._model.named_parameters():
            if parameter.requires_grad:
                layer, part, *_ = name.rpartition("layers.")[2].split(".")
                yield f"{layer}.{_NAMES.get(part, name.rpartition('.')[2])}", parameter

    def predict(self, inputs: Array) -> Array:
        with torch.no_grad():
            return to_array(self._model(to_tensor(inputs, self._device, self._dtype)))

    def predict_base(self, inputs: Array) -> Array:
        with self._model.disable_adapter():
            return self.predict(inputs)

    def _backward(self, window: Collection[tuple[Array, Array]]) -> None:
        for inputs, gradient in window:
            outputs = self._model(to_tensor(inputs, self._device, self._dtype))
            loss = (outputs * to_tensor(gradient, self._device, self._dtype)).sum()
            (loss if self._scaler is None else self._scaler.scale(loss)).backward()

    def gradients(self, *window: tuple[Array, Array]) -> dict[str, Array]:
        scaler, self._scaler = self._scaler, None
        self._optimizer.zero_grad()
        self._backward(window)
        self._scaler = scaler
        found = {name: own.grad for name, own in self._slots()}
        self._optimizer.zero_grad()
        return {name: to_array(g if g.ndim == 1 else g.T) for name, g in found.items() if g is not None}

    def update(self, *window: tuple[Array, Array]) -> None:
        self._backward(window)
        if self._scaler is not None:
            self._scaler.unscale_(self._optimizer)
        if self._recipe.clip is not None:
            nn.utils.clip_grad_norm_(self._model.parameters(), self._recipe.clip)
        if self._scaler is None:
            self._optimizer.step()
        else:
            self._scaler.step(self._optimizer)
            self._scaler.update()
        self._optimizer.zero_grad()
        if self._average is not None:
            self._average.update_parameters(nn.ParameterList(own for _, own in self._slots()))

    def trainables(self) -> dict[str, Array]:
        return {name: to_array(own if own.ndim == 1 else own.T) for name, own in self._slots()}

    def assign(self, values: Mapping[str, Array]) -> None:
        slots = dict(self._slots())
        with torch.no_grad():
            for name, value in values.items():
                slots[name].copy_(to_tensor(value.T, self._device))

    def base(self) -> dict[str, Array]:
        others = ("lora_", "modules_to_save")
        state = {name: value for name, value in self._model.state_dict().items() if isinstance(value, torch.Tensor)}
        return {name: to_array(value) for name, value in state.items() if not any(part in name for part in others)}

    def weight(self, layer: str) -> Array:
        inner = self._model.get_submodule(f"base_model.model.layers.{layer}.base_layer")
        value = inner.weight
        if self._adapters.base in _CODED:
            value = import_module("peft.utils.integrations").dequantize_module_weight(inner)
        return to_array(value.detach().float().T)

    def merge(self) -> None:
        with warnings.catch_warnings(action="ignore"):  # merged codes are rounded, and a second merge does nothing
            self._model.merge_adapter()

    def unmerge(self) -> None:
        self._model.unmerge_adapter()

    def switch_on(self) -> None:
        self._adapt()
        self._make_optimizer()

    def save(self, path: Path) -> None:
        self._model.save_pretrained(path)
        torch.save(self._optimizer.state_dict(), path / _STATE)

    def load(self, path: Path) -> None:
        self._model.load_adapter(path, "default", is_trainable=True)
        self._optimizer.load_state_dict(torch.load(path / _STATE))
