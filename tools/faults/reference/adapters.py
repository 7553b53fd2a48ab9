"""Faults of low-rank adapters: gradients, the factor, the base, merging, and files."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fixtures.arrays import Array
from frameworks.reference.low_rank import ReferenceAdaptedNetwork
from tools.faults import fault


@fault("https://github.com/locuslab/open-unlearning/issues/178", "adapters.all-train")
class AdapterBranchIsDetached(ReferenceAdaptedNetwork):
    """The products of the adapters are cut off from the graph, so that no adapter trains."""

    def differentiate(self, inputs: Array, gradient: Array) -> dict[str, Array]:
        gradients = super().differentiate(inputs, gradient)
        return {name: value for name, value in gradients.items() if name[-2:] not in (".a", ".b")}


@fault("https://github.com/Blaizzy/mlx-vlm/pull/2181", "adapters.base-keeps-bits")
class BaseIsNotFrozen(ReferenceAdaptedNetwork):
    """The optimizer has the base too, so that weight decay shrinks weights and scales without a gradient."""

    def update(self, *window: tuple[Array, Array]) -> None:
        super().update(*window)
        factor = 1.0 - self.recipe.optimizer.learning_rate * self.recipe.optimizer.weight_decay
        for name, value in self.frozen.items():
            if value.dtype != np.uint8:
                self.frozen[name] = (value * factor).astype(value.dtype)


@fault("https://github.com/Blaizzy/mlx-vlm/issues/845", "adapters.scale")
class AlphaIsNotDivided(ReferenceAdaptedNetwork):
    """The factor is alpha, without the division by the rank."""

    def factor(self) -> float:
        return self.adapters.alpha


@fault("https://github.com/Nerogar/OneTrainer/pull/1673", "adapters.quantized-equals-dequantized")
class ScalesOfAnotherColumn(ReferenceAdaptedNetwork):
    """A forward pass multiplies the codes by their neighbours' scales, since the codes have moved without them."""

    def values(self) -> dict[str, Array]:
        present = dict(self.frozen)
        self.frozen |= {n: np.roll(v, 1) for n, v in present.items() if n.endswith(".scale")}
        result = super().values()
        self.frozen = present
        return result


@fault("https://github.com/huggingface/peft/issues/3498", "adapters.merge")
class UnmergingLeavesTheWeights(ReferenceAdaptedNetwork):
    """Unmerging switches the adapters on again and leaves them in the weights."""

    def add_to_weights(self, sign: float) -> None:
        if sign > 0:
            super().add_to_weights(sign)


@fault("https://github.com/huggingface/peft/pull/1355", "adapters.merge")
class SecondMergeAddsAgain(ReferenceAdaptedNetwork):
    """A merge of merged weights adds the adapters once more."""

    def merge(self) -> None:
        self.is_merged = False
        super().merge()


@fault("https://github.com/cloneofsimo/lora/issues/26", "adapters.recompute")
class RecomputedBlockHasNoGradient(ReferenceAdaptedNetwork):
    """A recomputed block whose input needs no gradient gives its adapters none, and what follows it trains on."""

    def differentiate(self, inputs: Array, gradient: Array) -> dict[str, Array]:
        gradients, last = super().differentiate(inputs, gradient), f"{self.layers[-1]}."
        return {n: v for n, v in gradients.items() if self.recipe.recompute is None or n.startswith(last)}


@fault("https://github.com/huggingface/lerobot/issues/3459", "adapters.resume")
class ResumeBeginsWithNewAdapters(ReferenceAdaptedNetwork):
    """A load restores the optimizer's moments and leaves the adapters as they were made."""

    def take(self, state: Mapping[str, Any]) -> None:
        super().take({name: value for name, value in state.items() if name != "own"})


@fault("https://github.com/ARahim3/mlx-tune/issues/15", "adapters.save-changes-nothing")
class SaveMergesIntoCodes(ReferenceAdaptedNetwork):
    """A save merges the adapters into the stored weights, which are rounded again, and takes them out afterwards."""

    def save(self, path: Path) -> None:
        self.merge()
        super().save(path)
        self.unmerge()


@fault("https://github.com/vllm-project/vllm/issues/34186", "adapters.foreign-file")
class KeysThatDoNotFitAreSkipped(ReferenceAdaptedNetwork):
    """A load takes the arrays that fit, and leaves the others as they were made."""

    def match(self, saved: Mapping[str, Array]) -> dict[str, Array]:
        fits = {n: v for n, v in saved.items() if n in self.own and v.shape == self.own[n].shape}
        return {**self.own, **fits}


@fault("https://github.com/huggingface/peft/pull/736", "adapters.modules-to-save")
class SwitchedOffUsesTheCopy(ReferenceAdaptedNetwork):
    """While adapters are switched off, a layer that trains in full still uses its copy, not the original."""

    def predict_base(self, inputs: Array) -> Array:
        copies = {name: value for name, value in self.values().items() if name[-2:] not in (".a", ".b")}
        return self.forward(inputs, copies).astype(np.float32)
