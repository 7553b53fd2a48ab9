"""Faults of moments in codes of eight bits."""

from __future__ import annotations

import numpy as np

from fixtures.arrays import Array
from frameworks.reference.quantization.eight_bit_state import EightBitMoments, EightBitState
from frameworks.reference.training.decisions import Arrays
from frameworks.reference.training.scaler import LossScale
from frameworks.reference.training.trainer import ReferenceTrainer
from tools.faults import fault


@fault("https://github.com/bitsandbytes-foundation/bitsandbytes/issues/565", "quantization.adam8-encoding")
class BlocksOfTwiceTheLength(EightBitState):
    """Two blocks share the larger of their largest magnitudes."""

    def largest(self, blocks: Array) -> Array:
        largest = super().largest(blocks)
        first, second = largest[: len(largest) // 2 * 2 : 2], largest[1::2]
        both = np.repeat(np.maximum(first, second), 2)
        return np.append(both, largest[len(both) :]).astype(np.float32)


@fault("https://github.com/unslothai/unsloth-zoo/pull/962", "quantization.adam8-encoding")
class SecondMomentHasASign(EightBitState):
    """The second moment, which is never negative, has the codes of the first one."""

    def signed(self, slot: str) -> bool:
        return True


@fault("https://github.com/unslothai/unsloth-zoo/pull/962", "quantization.adam8-trajectory")
class MomentsAreEncodedBeforeTheyAreUsed(ReferenceTrainer):
    """The update uses the moments as their codes have them."""

    def apply_update(self, gradients: Arrays, rate: float) -> None:
        before = dict(self.masters)
        super().apply_update(gradients, rate)
        for name in gradients:
            first, second = (moments for moments in self.slots.values())
            if not isinstance(first, EightBitMoments) or name not in first.codes:
                continue
            adam = first.state.optimizer
            shares = 1 - adam.beta1 ** self.counts[name], 1 - adam.beta2 ** self.counts[name]
            root = np.sqrt(second[name] / shares[1]) + (adam.epsilon or 0.0)
            moved = rate / shares[0] * first[name] / np.maximum(root, 1e-30)
            self.masters[name] = self.rounding.round(before[name] - moved, self.master_formats[name])


@fault("https://github.com/unslothai/unsloth-zoo/pull/962", "quantization.adam8-trajectory")
class DecodedByAnotherMap(EightBitState):
    """Codes of the second moment are decoded as those of the first one."""

    def decode(self, slot: str, codes: Array, largest: Array) -> Array:
        return np.abs(super().decode("first_moment", codes, largest))


@fault("https://github.com/unslothai/unsloth-zoo/pull/962", "quantization.adam8-bytes")
class LargeMeansMillions(EightBitState):
    """Parameters of less than 2^20 entries keep float32 moments, whatever the recipe says."""

    def encodes(self, size: int) -> bool:
        return size >= 2**20


@fault("https://github.com/unslothai/unsloth-zoo/pull/962", "quantization.adam8-bytes")
class OnlyWholeBlocks(EightBitState):
    """A parameter that is not made of whole blocks keeps float32 moments."""

    def encodes(self, size: int) -> bool:
        return super().encodes(size) and size % self.optimizer.block == 0


@fault("https://github.com/pytorch/ao/issues/3314", "quantization.adam8-survives-saving")
class EncodedAnewOnLoad(ReferenceTrainer):
    """Moments are decoded for a save and encoded when it is loaded."""

    def load_state(self, arrays: Arrays) -> None:
        super().load_state(arrays)
        _encode_anew(self)


@fault("https://github.com/bitsandbytes-foundation/bitsandbytes/pull/1647", "quantization.adam8-survives-saving")
class SavesDoNotNameTheirBlocks(ReferenceTrainer):
    """Codes are read by the blocks of the run that loads them."""

    def _identity(self) -> str:
        return self.model.name


@fault("https://github.com/unslothai/unsloth-zoo/pull/962", "quantization.adam8-skips")
class SkippedUpdateEncodesAnew(ReferenceTrainer):
    """Whenever the scale is adjusted, moments are decoded and encoded, in skipped updates too."""

    def next_scale(self, scaler: LossScale, finite: bool) -> LossScale:
        _encode_anew(self)
        return super().next_scale(scaler, finite)


def _encode_anew(trainer: ReferenceTrainer) -> None:
    for moments in trainer.slots.values():
        for name in list(moments):
            moments[name] = moments[name]
