"""The law of aware training: what it sees of ranges, predictions, conversions, saves and loads."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conformance.checks.subject import Subject
from conformance.search.adapter_settings import generative_settings
from conformance.techniques.qat.cases import Convert, PredictQat, QatCase, QatVerb, Reload, SkipQat, TrainQat
from fixtures.arrays import Array
from fixtures.layers import Activation, Dense, Head, Heads
from fixtures.model import Model
from frameworks.contract import QuantRule
from frameworks.reference import ReferenceFramework
from frameworks.reference.quantization.post_training import ReferenceQuantizedModel
from frameworks.reference.training.trainer import ReferenceTrainer
from tools.faults.reference import formats, quantization

MODEL = Model(
    "aware", (Dense(5), Activation("relu"), Heads((Head("output", 3),))), (8,), (("output", "squared_error"),)
)
TRAIN, LARGE = TrainQat((4, 3), (0, 1)), TrainQat((5, 2), (3, 2))


def failure(framework: Any, *verbs: QatVerb, freeze: int | None = None, **fields: Any) -> Any:
    """What the law says of a run of two micro-batches an update."""
    subject = Subject(framework("cpu"))
    case = QatCase(MODEL, freeze, 2, (TRAIN, *verbs), 7, **fields)
    return case.failure(subject, generative_settings(subject.framework))


def framework_of(trainer: type[ReferenceTrainer]) -> type[ReferenceFramework]:
    """The reference with another trainer."""
    return type("Broken", (ReferenceFramework,), {"trainer_class": trainer})


class _ConvertsOnce(ReferenceTrainer):
    """Every conversion after the first gives the first one's model."""

    def convert(self) -> ReferenceQuantizedModel:
        if not hasattr(self, "_model"):
            self._model = super().convert()
        return self._model


class _ConvertsTheAverage(ReferenceTrainer):
    """Conversion takes the average in the place of the weights."""

    def convert(self) -> ReferenceQuantizedModel:
        weights = {name: self.averaged(name).astype(np.float32) for name in self.averages} or self.parameters()
        return self.quantized_model_class(self.qat_layers().rule.linear, self.model, weights, known=self.observed())


class _LoadsOverItself(ReferenceTrainer):
    """A load into the run that was saved forgets its ranges."""

    def restore(self, path: Path) -> None:
        super().restore(path)
        if self.qat is not None:
            self.statistics |= self.qat.initial_statistics(self.model)


@pytest.mark.parametrize(
    ("framework", "verbs", "clause"),
    [
        (quantization.AverageStartsAtOne, (), "quantization.ranges-follow"),
        (quantization.WidestRangeStays, (LARGE, TRAIN), "quantization.ranges-follow"),
        (quantization.PredictionsAreObserved, (PredictQat(3, 4),), "quantization.observers-hold-still"),
        (quantization.ConvertsByAnotherScale, (Convert(2),), "quantization.convert-is-faithful"),
        (quantization.ConvertedClipsElsewhere, (LARGE, Convert(33)), "quantization.convert-is-faithful"),
        (framework_of(_ConvertsOnce), (Convert(2), LARGE, Convert(2)), "quantization.convert-is-faithful"),
        (quantization.RangesAreNotLoaded, (LARGE, Reload("fresh")), "quantization.aware-survives-saving"),
        (framework_of(_LoadsOverItself), (Reload("itself"),), "quantization.aware-survives-saving"),
    ],
)
def test_qat_case_with_a_fault_names_its_clause(framework: Any, verbs: tuple[QatVerb, ...], clause: str) -> None:
    assert failure(ReferenceFramework, *verbs) is None
    assert failure(framework, *verbs).name == clause


def test_qat_case_that_converts_the_average_fails() -> None:
    framework = framework_of(_ConvertsTheAverage)
    assert failure(framework, LARGE, Convert(2)) is None
    assert failure(ReferenceFramework, LARGE, Convert(2), average=0.5) is None
    assert failure(framework, LARGE, Convert(2), average=0.5).name == "quantization.convert-is-faithful"


def test_qat_case_whose_ranges_never_freeze_fails() -> None:
    assert failure(ReferenceFramework, LARGE, TRAIN, freeze=2) is None
    assert failure(quantization.NeverFrozen, LARGE, freeze=1).name == "quantization.ranges-follow"


def test_qat_case_with_a_skipped_window_freezes_nothing() -> None:
    broken = formats.SkippedUpdatesFreezeRanges
    assert failure(ReferenceFramework, SkipQat(), LARGE, freeze=2, scaled=True) is None
    assert failure(broken, LARGE, freeze=2, scaled=True) is None
    assert failure(broken, SkipQat(), LARGE, freeze=2, scaled=True).name == "quantization.ranges-follow"


class _EndsLater(ReferenceQuantizedModel):
    """What comes out of a layer is rounded to codes, and not clipped."""

    def requantized(self, name: str, result: Array, rule: QuantRule) -> Array:
        outputs = self.calibrated()[name].outputs
        assert outputs is not None
        return np.asarray(np.rint(result / outputs.scale) * outputs.scale, np.float32)


class _ConvertsToEndsLater(ReferenceTrainer):
    """A run that is converted to such layers."""

    quantized_model_class = _EndsLater


def test_qat_case_beyond_the_ranges_is_compared_on_request_alone() -> None:
    """Codes of a converted model may end elsewhere; only results beyond the ranges show it."""
    framework = framework_of(_ConvertsToEndsLater)
    assert failure(framework, Convert(33)) is None
    assert failure(framework, Convert(33, beyond=True)).name == "quantization.convert-is-faithful"
