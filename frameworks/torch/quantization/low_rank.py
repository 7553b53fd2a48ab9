"""Low-rank adapters by peft, over layers of PyTorch or of bitsandbytes, if they are installed."""

import logging
import warnings
from collections.abc import Collection, Iterator, Mapping
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.checkpoint import checkpoint

from fixtures.arrays import Array
from fixtures.recipe import Recipe
from frameworks.contract import Attempt, Capability, LowRank
from frameworks.torch.core.operations import VARIANTS
from frameworks.torch.core.settings import DTYPES, random_apart, to_array, to_tensor
from frameworks.torch.training.optimizers import grad_scaler, optimizer_kind

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
