"""PyTorch's quantization of trained models and QAT: `quantize_dynamic`, `prepare`, `prepare_qat` and `convert`."""

import copy
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.ao import quantization
from torch.ao.nn import quantized as nnq

from fixtures.arrays import Array
from fixtures.model import Activation, Dense, Flatten, LayerNorm, Model
from fixtures.recipe import Qat
from frameworks.contract import (
    Calibrated,
    CalibratedRanges,
    CodeRange,
    LinearRule,
    QatRule,
    Quantized,
    QuantRule,
    Update,
)
from frameworks.torch.core.layers import Slot, build, linear_slots, load, parameter_slots
from frameworks.torch.core.settings import to_array, to_tensor
from frameworks.torch.training.trainer import TorchTrainer

FILE = "quantized.pt"
_ENGINES = ("x86", "fbgemm")
"""Engines with the declared arithmetic; the others quantize inputs to 8 bits, or biases to integers."""

_EPS = float(torch.finfo(torch.float32).eps)
_RULES: Mapping[str, LinearRule] = {
    "dynamic-int8": LinearRule(
        QuantRule(-128, 127, 127.5, smallest_scale=_EPS),
        QuantRule(0, 127, 127.0, symmetric=False, rounds="sum", smallest_scale=6.1e-5),
    ),
    "static-int8": LinearRule(
        QuantRule(-128, 127, 127.5, axis=0, smallest_scale=_EPS),
        QuantRule(0, 255, 127.0, symmetric=False, rounds="sum", smallest_scale=_EPS),
        QuantRule(0, 255, 127.0, symmetric=False, smallest_scale=_EPS),
        ranges="calibration",
    ),
}
"""Ranges are divided into 7 bits; values outside the calibrated range use the codes of the eighth bit."""

_OBSERVED = quantization.QConfig(
    activation=quantization.default_observer, weight=quantization.default_per_channel_weight_observer
)
"""Observers of the smallest and largest value; x86's default, `HistogramObserver`, searches for a range instead."""

_SEVEN_BITS = QuantRule(0, 127, 127.0, symmetric=False, smallest_scale=_EPS)
RULE = QatRule(
    LinearRule(
        QuantRule(-128, 127, 127.5, axis=0, smallest_scale=_EPS), _SEVEN_BITS, _SEVEN_BITS, ranges="calibration"
    ),
    average=0.01,
)
"""The rules of `default_fake_quant` and of a per-channel fake quantizer, which uses the weight's own range."""

_QCONFIG = quantization.QConfig(
    activation=quantization.default_fake_quant,
    weight=quantization.default_per_channel_weight_fake_quant.with_args(averaging_constant=1.0),
)


class Network(nn.Module):
    """A fixture model as a user writes it: a sequence of layers, and linear heads on its output."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        shapes = {path: shape for path, _, shape in model.shapes()}
        *body, last = range(len(model.layers))
        self.layers = nn.Sequential(*(build(model.layers[index], shapes[str(index)]) for index in body))
        width = shapes[str(last)][-1]
        self.heads = nn.ModuleDict({head.name: nn.Linear(width, head.units) for head in model.heads.heads})

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        features = self.layers(x)
        return {name: head(features) for name, head in self.heads.items()}


class TorchQuantized:
    """A quantized network; its arrays are those of its `state_dict`."""

    def __init__(self, model: Model, network: nn.Module, device: str = "cpu") -> None:
        self._model = model
        self._network = network
        self._device = device
        self._paths = paths_of(model)

    def predict(self, inputs: Array) -> dict[str, Array]:
        with without_deprecations(), torch.no_grad():
            return {name: to_array(value) for name, value in self._network(to_tensor(inputs, self._device)).items()}

    def layer(self, name: str, inputs: Array) -> Array:
        with without_deprecations(), torch.no_grad():
            return to_array(self._network.get_submodule(self._paths[name])(to_tensor(inputs, self._device)))

    def weights(self) -> Mapping[str, Quantized | None]:
        return {name: _codes(self._linear(name)) for name in self._paths}

    def unquantized_parameters(self) -> Mapping[str, Array]:
        arrays = self._floats()
        for name in self._paths:
            linear = self._linear(name)
            if isinstance(linear, nnq.Linear) and (bias := linear.bias()) is not None:
                arrays[name.removesuffix("weight") + "bias"] = to_array(bias)
        return {name: arrays[name] for name in self._model.parameter_shapes() if name in arrays}

    def calibrated_ranges(self) -> Mapping[str, Calibrated]:
        result: dict[str, Calibrated] = {}
        for name, path in self._paths.items():
            module = self._network.get_submodule(path)
            if isinstance(module, quantization.QuantWrapper):
                result[name] = Calibrated(_code_range(module.quant), _code_range(module.module))
        return result

    def stored_bytes(self) -> int:
        return sum(_bytes_of(value) for value in self._network.state_dict().values())

    def save(self, path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)
        with without_deprecations():
            torch.save(self._network.state_dict(), path / FILE)

    def restore(self, path: Path) -> None:
        with without_deprecations():
            resumed = copy.deepcopy(self._network)
            resumed.load_state_dict(torch.load(path / FILE, weights_only=True))
        self._network = resumed

    def _floats(self) -> dict[str, Array]:
        """The unquantized parameters, by canonical name."""
        result = _float_slots(self._model, self._network)
        plain = {name: slot for name, slot in result.items() if type(slot.tensor.data) is torch.Tensor}
        return {name: slot.to_canonical(slot.tensor) for name, slot in plain.items()}

    def _linear(self, name: str) -> nn.Module:
        module = self._network.get_submodule(self._paths[name])
        return module.module if isinstance(module, quantization.QuantWrapper) else module


class TorchPostTraining:
    """Eager mode's two techniques, on a CPU.

    "static-int8" wraps each dense layer in stubs that quantize its inputs and dequantize its outputs.
    """

    def __init__(self, device: str) -> None:
        self.device = device

    def rules(self) -> Mapping[str, LinearRule]:
        return _RULES if self.device == "cpu" and converts() else {}

    def quantize(
        self,
        technique: str,
        model: Model,
        weights: Mapping[str, Array],
        calibration: Sequence[Array] = (),
        skip: Sequence[str] = (),
    ) -> TorchQuantized:
        paths = paths_of(model)
        if unknown := sorted(set(skip) - paths.keys()):
            raise ValueError(f"{model.name} has no dense layer {', '.join(unknown)}")
        network = Network(model).eval()
        load(_float_slots(model, network), weights)
        skipped = [paths[name] for name in skip]
        with without_deprecations():
            return self.quantize_network(technique, model, network, skipped, calibration)

    def quantize_network(
        self, technique: str, model: Model, network: Network, skipped: Sequence[str], calibration: Sequence[Array]
    ) -> TorchQuantized:
        """The network with all dense layers but these quantized."""
        with torch.no_grad():
            if technique == "dynamic-int8":
                return TorchQuantized(model, _dynamic(network, skipped))
            wanted = [path for path in paths_of(model).values() if path not in skipped]
            return TorchQuantized(model, _static(network, wanted, calibration))


def converts() -> bool:
    """Returns whether the selected engine has the declared arithmetic."""
    return torch.backends.quantized.engine in _ENGINES


def _dynamic(network: nn.Module, skipped: Sequence[str]) -> nn.Module:
    which: dict[Any, Any] = {nn.Linear: quantization.default_dynamic_qconfig, **dict.fromkeys(skipped)}
    return quantization.quantize_dynamic(network, which, dtype=torch.qint8)


def _static(network: nn.Module, wanted: Sequence[str], calibration: Sequence[Array]) -> nn.Module:
    for path in wanted:
        network.get_submodule(path).qconfig = _OBSERVED
    observed = quantization.prepare(quantization.add_quant_dequant(network))
    for batch in calibration:
        observed(to_tensor(batch, "cpu"))
    return quantization.convert(observed)


@contextmanager
def without_deprecations() -> Iterator[None]:
    """A context without the warnings that these calls, and tensors of such codes, are deprecated."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"torch\.ao\.quantization is deprecated", DeprecationWarning)
        warnings.filterwarnings("ignore", ".*quantized tensor creation functions.*deprecated", UserWarning)
        warnings.filterwarnings("ignore", ".*reduce_range will be deprecated", UserWarning)
        warnings.filterwarnings("ignore", "TypedStorage is deprecated", UserWarning)
        yield


def paths_of(model: Model) -> dict[str, str]:
    """The path of each dense layer in the network, by the name of its weight.

    Raises:
        ValueError: the model has an unknown kind of layer.
    """
    *body, _ = model.layers
    if not all(isinstance(layer, Dense | Activation | LayerNorm | Flatten) for layer in body):
        raise ValueError(f"{model.name} has other layers than dense ones, activations, layer norms and flattening")
    paths = {f"{i}.weight": f"layers.{i}" for i, layer in enumerate(body) if isinstance(layer, Dense)}
    return paths | {f"{len(body)}.{head.name}.weight": f"heads.{head.name}" for head in model.heads.heads}


def _float_slots(model: Model, network: nn.Module) -> dict[str, Slot]:
    """The parameters that are float32 tensors, by canonical name."""
    result: dict[str, Slot] = {}
    *body, _ = model.layers
    for index, layer in enumerate(body):
        module = network.get_submodule(f"layers.{index}")
        if not isinstance(layer, Dense) or isinstance(module, nn.Linear):
            result |= parameter_slots(layer, module, str(index))
    for head in model.heads.heads:
        module = network.get_submodule(f"heads.{head.name}")
        if isinstance(module, nn.Linear):
            result |= linear_slots(module, f"{len(body)}.{head.name}.")
    return result


def _codes(linear: nn.Module) -> Quantized | None:
    """The weight (inputs, outputs) of a quantized layer, which PyTorch stores as (outputs, inputs)."""
    if not isinstance(linear, nnq.Linear):
        return None
    weight = linear.weight()
    scales, zeros = _scales(weight)
    return Quantized(
        to_array(weight.int_repr().t()).astype(np.int32),
        to_array(scales).astype(np.float64).reshape(1, -1),
        to_array(zeros).astype(np.int32).reshape(1, -1),
        to_array(weight.dequantize().t()),
    )


def _scales(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Scales and zero points of a quantized tensor, in their stored formats."""
    if weight.qscheme() == torch.per_channel_affine:
        return weight.q_per_channel_scales(), weight.q_per_channel_zero_points()
    return torch.tensor(weight.q_scale(), dtype=torch.float64), torch.tensor(weight.q_zero_point())


def _code_range(module: Any) -> CodeRange:
    return CodeRange(float(module.scale), int(module.zero_point))


def _bytes_of(stored: object) -> int:
    """Bytes of an entry of a `state_dict`: a tensor, or a layer's weight and bias."""
    if isinstance(stored, tuple):
        return sum(_bytes_of(part) for part in stored)
    if not isinstance(stored, torch.Tensor):
        return 0
    parts = _scales(stored) if stored.is_quantized else ()
    return stored.nbytes + sum(part.nbytes for part in parts)


class QatTrainer(TorchTrainer):
    """A run whose dense layers are wrapped in stubs and have fake quantizers; observers stop as the recipe says."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._freeze()

    def prepare(self) -> None:
        self._paths = paths_of(self.model)
        for path in self._paths.values():
            self.network.get_submodule(path).qconfig = _QCONFIG
        with without_deprecations():
            quantization.add_quant_dequant(self.network)
            quantization.prepare_qat(self.network.train(), inplace=True).to(self.device)
        wrapped = dict(self.network.heads.items())
        self.network.built = tuple(self.network.layers)
        self.network.heads_built = wrapped
        self.network.call_in_place()

    def apply(self) -> Update:
        update = super().apply()
        self._freeze()
        return update

    def _freeze(self) -> None:
        """Disables or enables the observers of inputs and outputs, by the number of applied updates."""
        limit = self.recipe.quantization.freeze if isinstance(self.recipe.quantization, Qat) else None
        stops = limit is not None and self.steppers[0].applied >= limit
        for path in self._paths.values():
            for quantizer in self._quantizers(path):
                quantizer.enable_observer(not stops)

    def _quantizers(self, path: str) -> tuple[quantization.FakeQuantize, quantization.FakeQuantize]:
        """The fake quantizers of a dense layer's inputs and outputs."""
        wrapper = self.network.get_submodule(path)
        inputs, outputs = wrapper.quant.activation_post_process, wrapper.module.activation_post_process
        return inputs, outputs

    def buffers(self) -> dict[str, Array]:
        return super().buffers() | {name: to_array(value) for name, value in self.network.named_buffers()}

    def views(self) -> Mapping[type, Callable[[], Any]]:
        return {**super().views(), CalibratedRanges: self.observe_ranges}

    def observe_ranges(self) -> dict[str, Calibrated]:
        result: dict[str, Calibrated] = {}
        for name, path in self._paths.items():
            observers = self._quantizers(path)
            if bool(torch.isfinite(observers[0].activation_post_process.min_val).all()):
                result[name] = Calibrated(*map(_code_range, observers))
        return result

    def convert(self) -> TorchQuantized:
        """The model in integer codes, on the CPU: PyTorch has kernels for it there only."""
        with without_deprecations():
            network = copy.deepcopy(self.network).to("cpu").eval()
            return TorchQuantized(self.model, quantization.convert(network))
