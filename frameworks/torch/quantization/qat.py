"""PyTorch's QAT: `prepare_qat` and `convert` of eager mode."""

import copy
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.ao import quantization

from fixtures.arrays import Array
from fixtures.recipe import Qat
from frameworks.contract import Calibrated, CalibratedRanges, CodeRange, LinearRule, QatRule, QuantRule, Update
from frameworks.torch.core.arrays import to_array
from frameworks.torch.quantization.post_training import TorchQuantized, places_of, quiet
from frameworks.torch.training.trainer import TorchTrainer

_EPS = float(torch.finfo(torch.float32).eps)
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


class QatTrainer(TorchTrainer):
    """A run whose dense layers are wrapped in stubs and have fake quantizers; observers stop as the recipe says."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._freeze()

    def prepare(self) -> None:
        self._places = places_of(self.model)
        for place in self._places.values():
            self.network.get_submodule(place).qconfig = _QCONFIG
        with quiet():
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
        for place in self._places.values():
            for quantizer in self._quantizers(place):
                quantizer.enable_observer(not stops)

    def _quantizers(self, place: str) -> tuple[quantization.FakeQuantize, quantization.FakeQuantize]:
        """Those of a dense layer's inputs and outputs."""
        wrapper = self.network.get_submodule(place)
        inputs, outputs = wrapper.quant.activation_post_process, wrapper.module.activation_post_process
        return inputs, outputs

    def buffers(self) -> dict[str, Array]:
        return super().buffers() | {name: to_array(value) for name, value in self.network.named_buffers()}

    def views(self) -> Mapping[type, Callable[[], Any]]:
        return {**super().views(), CalibratedRanges: self.observed}

    def observed(self) -> dict[str, Calibrated]:
        result: dict[str, Calibrated] = {}
        for name, place in self._places.items():
            observers = self._quantizers(place)
            if bool(torch.isfinite(observers[0].activation_post_process.min_val).all()):
                inputs, outputs = (CodeRange(float(each.scale), int(each.zero_point)) for each in observers)
                result[name] = Calibrated(inputs, outputs)
        return result

    def convert(self) -> TorchQuantized:
        """The model in integer codes, on a CPU wherever it was trained: PyTorch has no other kernels for it."""
        with quiet():
            network = copy.deepcopy(self.network).to("cpu").eval()
            return TorchQuantized(self.model, quantization.convert(network))
