"""Faults of models that are loaded in eight bits."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fixtures.arrays import Array
from frameworks.reference.quantization.post_training import ReferenceQuantizedModel
from tools.faults import fault


@fault("https://github.com/rajveer43/VeloxQuant-MLX/pull/167", "quantization.int8-load")
class OutliersExceedTheThreshold(ReferenceQuantizedModel):
    """A value at the threshold is no outlier, where it is declared to be one."""

    def outliers(self, cast: Array) -> Array:
        return np.asarray((np.abs(cast) > self._rule.outliers).any(axis=0))


@fault("https://github.com/mne-tools/mne-python/pull/1768", "quantization.int8-load")
class NegativeOutliersAreMissed(ReferenceQuantizedModel):
    """Values, not magnitudes, are compared with the threshold."""

    def outliers(self, cast: Array) -> Array:
        return np.asarray((cast >= self._rule.outliers).any(axis=0))


@fault("https://github.com/bitsandbytes-foundation/bitsandbytes/issues/767", "quantization.int8-load")
class OutlierColumnsStay(ReferenceQuantizedModel):
    """A column that had an outlier in some call has no codes in later ones."""

    _columns: Array | None = None

    def outliers(self, cast: Array) -> Array:
        outliers = super().outliers(cast)
        if self._columns is not None and self._columns.shape == outliers.shape:
            outliers = outliers | self._columns
        self._columns = outliers
        return outliers


@fault("https://github.com/NVIDIA/Megatron-LM/pull/6666", "quantization.int8-load", "quantization.weights-as-declared")
class WeightsAreNotCast(ReferenceQuantizedModel):
    """Weights have codes of another format than the declared one: of float32 without a cast."""

    def cast(self, operand: Array) -> Array:
        weight = operand.dtype == np.float32
        return operand if weight else super().cast(operand)


@fault("https://github.com/huggingface/transformers/pull/45743", "quantization.survives-saving", raises=True)
class LoadsAreNotSaved(ReferenceQuantizedModel):
    """A model that was loaded raises when it is to be saved."""

    _loaded = False

    def save(self, path: Path) -> None:
        if self._loaded:
            raise NotImplementedError
        super().save(path)

    def restore(self, path: Path) -> None:
        super().restore(path)
        self._loaded = True
