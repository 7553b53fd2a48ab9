"""Trained models loaded in 8 bits by transformers and bitsandbytes (LLM.int8()), if both are installed."""

import logging
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from fixtures.arrays import Array
from fixtures.model import Model
from frameworks.contract import Attempt, Capability, LinearRule, Quantized, QuantRule
from frameworks.torch.core.settings import to_array
from frameworks.torch.quantization.post_training import Network, TorchPostTraining, TorchQuantized

MODE = "transformers"
_NEEDED = ("transformers", "accelerate", "bitsandbytes")
_TECHNIQUE = "load-int8"
THRESHOLD = 6.0
"""The default outlier threshold of `BitsAndBytesConfig`."""

_RULES: Mapping[str, LinearRule] = {
    _TECHNIQUE: LinearRule(
        QuantRule(-127, 127, 127.0, axis=0),
        QuantRule(-127, 127, 127.0, axis=1),
        operands="float16",
        outliers=THRESHOLD,
        without="values",
    )
}
"""The rule in evaluation on a CPU; in training a layer multiplies float32 inputs by its dequantized weight."""


def not_installed() -> str:
    """The reason why the technique is not available, "" if it is available."""
    missing = [name for name in _NEEDED if find_spec(name) is None]
    return f"{', '.join(missing)}: not installed: pip install {' '.join(missing)}" if missing else ""


@cache
def transformers() -> Any:
    """`transformers` without progress bars, and bitsandbytes without a warning for each call."""
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
    library = import_module("transformers")
    library.utils.logging.disable_progress_bar()
    library.utils.logging.set_verbosity(library.utils.logging.CRITICAL)
    return library


def find_refusals() -> dict[Capability, str]:
    """The technique with the reason why it is missing; empty if it is available."""
    return {Capability.LOAD_INT8: reason} if (reason := not_installed()) else {}


def refused_attempts() -> dict[Capability, Attempt]:
    """An attempt for the technique; empty if it is available."""
    return {capability: lambda: all(map(import_module, _NEEDED)) for capability in find_refusals()}


def _class_of(model: Model) -> Any:
    """The fixture model as a `PreTrainedModel`; its configuration has the entries that transformers writes itself."""
    config_kind, kind = transformers().PretrainedConfig, transformers().PreTrainedModel

    class FixtureConfig(config_kind):  # type: ignore[misc, valid-type]
        model_type = "fixture"

    class FixtureModel(kind):  # type: ignore[misc, valid-type]
        config_class = FixtureConfig

        def __init__(self, config: Any) -> None:
            super().__init__(config)
            network = Network(model)
            self.layers, self.heads = network.layers, network.heads
            self.post_init()

        forward = Network.forward

    return FixtureModel


class LoadedModel(TorchQuantized):
    """A `PreTrainedModel` whose linear layers are `Linear8bitLt`; a quantized layer has its scales in `SCB`."""

    def weights(self) -> Mapping[str, Quantized | None]:
        state = self._network.state_dict()
        return {name: _codes(state, path) for name, path in self._paths.items()}

    def unquantized_parameters(self) -> Mapping[str, Array]:
        arrays, coded = self._floats(), {name for name, weight in self.weights().items() if weight is not None}
        return {name: arrays[name] for name in self._model.parameter_shapes() if name in arrays and name not in coded}

    def save(self, path: Path) -> None:
        self._network.save_pretrained(path)

    def restore(self, path: Path) -> None:
        self._network = type(self._network).from_pretrained(path, device_map=str(self._network.device))


class TransformersPostTraining(TorchPostTraining):
    """Quantization of trained models on a CPU; it has no technique where a library is not installed."""

    def rules(self) -> Mapping[str, LinearRule]:
        return _RULES if self.device == "cpu" and not not_installed() else {}

    def quantize_network(
        self, technique: str, model: Model, network: Network, skipped: Sequence[str], calibration: Sequence[Array]
    ) -> LoadedModel:
        """The network, saved in float32 and loaded in 8 bits."""
        kind = _class_of(model)
        whole = kind(kind.config_class())
        whole.load_state_dict(network.state_dict())
        config = transformers().BitsAndBytesConfig(
            load_in_8bit=True, llm_int8_threshold=THRESHOLD, llm_int8_skip_modules=list(skipped)
        )
        with TemporaryDirectory() as folder:
            whole.save_pretrained(folder)
            loaded = kind.from_pretrained(folder, quantization_config=config, device_map=self.device)
        return LoadedModel(model, loaded)


def _codes(state: Mapping[str, torch.Tensor], path: str) -> Quantized | None:
    """The weight (inputs, outputs) of a layer that has codes, which PyTorch stores as (outputs, inputs)."""
    largest = state.get(f"{path}.SCB")
    if largest is None:
        return None
    codes = state[f"{path}.weight"]
    values = import_module("bitsandbytes.functional").int8_vectorwise_dequant(codes, largest)
    scale = to_array(largest).astype(np.float64).reshape(1, -1) / 127.0
    return Quantized(to_array(codes.t()).astype(np.int32), scale, np.zeros((1, 1), np.int32), to_array(values.t()))
