"""The law of quantized models: what each layer stores and computes is independent of the history."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

import numpy as np
import pytest

from conformance.checks.subject import Subject, need
from conformance.search.arrays import laid_out, nth
from conformance.search.properties import CheckedInstance, breaking
from conformance.techniques.post_training import expected_models
from conformance.techniques.post_training.checks import (
    check_chosen,
    check_float_layer,
    check_layer,
    check_near,
    check_ranges,
    check_weights,
    collect_arrays,
    input_values,
    quantized_layers,
    unlike_weights,
)
from fixtures.arrays import Array
from fixtures.model import Activation, Dense, Head, Heads, LayerNorm, Model, dense_weights
from frameworks.contract import Capability, LinearRule, PostTraining, QuantizedModel

Receiver = Literal["itself", "other", "used"]


@dataclass(frozen=True)
class PredictBatch:
    """A prediction of samples, of which the largest values are about 2 to the power."""

    rows: int
    power: int = 0


@dataclass(frozen=True)
class RunLayers:
    """Each dense layer alone, on a matrix of as many rows."""

    rows: int
    seed: int


@dataclass(frozen=True)
class SaveAndLoad:
    """A save, and a load into the model itself, another one, or another used one, which then continues."""

    into: Receiver


QuantizedVerb = PredictBatch | RunLayers | SaveAndLoad


@dataclass(frozen=True)
class QuantizedCase(CheckedInstance):
    """A trained model, a technique that quantizes it, and the verbs that follow.

    Attributes:
        skip: dense layers that are left as they are, by weight.
        power: weights are multiplied by 2 to it.
        batches: rows of each batch that it is calibrated with.
        seed: of weights and samples.
    """

    technique: str
    model: Model
    skip: tuple[str, ...]
    power: int
    batches: tuple[int, ...]
    verbs: tuple[QuantizedVerb, ...]
    seed: int

    def words(self) -> frozenset[str]:
        """What exclusions may name."""
        flags = {
            "quantized=skips": bool(self.skip),
            "quantized=loads": any(isinstance(verb, SaveAndLoad) for verb in self.verbs),
            "quantized=small-weights": self.power < 0,
            "quantized=bias-before-dense": _has_bias_before_dense(self.model),
        }
        return frozenset({f"technique={self.technique}", *(word for word, there in flags.items() if there)})

    def check(self, subject: Subject) -> None:
        """Checks the model at first and after every verb."""
        need(subject, Capability(f"quantization.{self.technique}"))
        with TemporaryDirectory() as folder:
            self._check(subject, Path(folder))

    def weights(self, seed: int) -> dict[str, Array]:
        """The trained weights."""
        drawn = unlike_weights(self.model, seed)
        dense = dense_weights(self.model)
        scaled = {name: v * np.float32(2.0**self.power) if name in dense else v for name, v in drawn.items()}
        return {name: laid_out(value, nth(self.seed + index)) for index, (name, value) in enumerate(scaled.items())}

    def samples(self, rows: int, power: int, index: int) -> Array:
        """A batch of samples (rows, ...), float32."""
        rng = np.random.default_rng([self.seed, 51, index])
        values = np.asarray(rng.standard_normal((rows, *self.model.sample)) * 2.0**power, np.float32)
        return laid_out(values, nth(self.seed + index))

    def _make_model(self, subject: Subject, seed: int) -> QuantizedModel:
        post_training, batches = subject.framework.rule(PostTraining), self._calibration()
        return post_training.quantize(self.technique, self.model, self.weights(seed), batches, self.skip)

    def _calibration(self) -> tuple[Array, ...]:
        return tuple(self.samples(rows, index % 3 - 1, 100 + index) for index, rows in enumerate(self.batches))

    def _check(self, subject: Subject, folder: Path) -> None:
        rule, weights = subject.framework.rule(PostTraining).rules()[self.technique], self.weights(self.seed)
        current = self._make_model(subject, self.seed)
        self._check_stored(current, rule, weights)
        if _saw_nothing(current):
            return
        state = collect_arrays(current)
        for index, verb in enumerate(self.verbs):
            clause = "quantization.dynamic-scale"
            match verb:
                case PredictBatch():
                    samples = self.samples(verb.rows, verb.power, index)
                    self._check_prediction(subject, current, rule, weights, samples)
                case RunLayers():
                    self._check_layers(current, rule, weights, verb)
                case SaveAndLoad():
                    clause = "quantization.survives-saving"
                    current = self._save_and_load(subject, current, verb, folder / str(index))
            with breaking(clause) as verdict:
                verdict.same_state(collect_arrays(current), state, f"the model after step {index + 1}", "differs")

    def _save_and_load(
        self, subject: Subject, current: QuantizedModel, verb: SaveAndLoad, folder: Path
    ) -> QuantizedModel:
        current.save(folder)
        receiver = current if verb.into == "itself" else self._make_model(subject, self.seed + 1)
        if verb.into == "used":
            receiver.predict(self.samples(2, 0, 200))
        receiver.restore(folder)
        return receiver

    def _check_stored(self, quantized: QuantizedModel, rule: LinearRule, weights: dict[str, Array]) -> None:
        """The selected layers have the rule's codes, and the calibrated ranges."""
        wanted = sorted(set(quantized_layers(self.model, rule)) - set(self.skip))
        with breaking("quantization.only-what-was-asked") as verdict:
            check_chosen(verdict, quantized, weights, wanted)
        with breaking("quantization.weights-as-declared") as verdict:
            check_weights(verdict, quantized, rule, weights)
        if rule.ranges != "calibration":
            return
        batches = self._calibration()
        by_layer = expected_models.layer_inputs_and_outputs(self.model, weights, batches)
        terms = sum(shape[0] + 8 for shape in dense_weights(self.model).values())
        times = expected_models.conditions(self.model, weights, batches, by_layer)
        with breaking("quantization.calibrated-range") as verdict:
            for name, ranges in quantized.calibrated_ranges().items():
                check_ranges(verdict, rule, name, ranges, by_layer[name], math.ceil(terms * times[name]))

    def _check_layers(
        self, quantized: QuantizedModel, rule: LinearRule, weights: dict[str, Array], verb: RunLayers
    ) -> None:
        """Each single layer computes the result of its codes, or of its weight if it is not quantized."""
        with breaking("quantization.linear-arithmetic") as verdict:
            for name, weight in quantized.weights().items():
                bias, width = weights.get(name.replace(".weight", ".bias")), len(weights[name])
                if weight is not None:
                    inputs = _inputs(rule, quantized, name, verb, width)
                    check_layer(verdict, rule, quantized, name, inputs, bias)
                    continue
                drawn = np.random.default_rng([verb.seed, 52]).standard_normal((verb.rows, width))
                check_float_layer(verdict, quantized, name, drawn.astype(np.float32), weights[name], bias)

    def _check_prediction(
        self, subject: Subject, quantized: QuantizedModel, rule: LinearRule, weights: dict[str, Array], samples: Array
    ) -> None:
        """A prediction equals its layers in sequence, as far as codes may differ, and the prediction of a fresh model.

        The former of models without norms; the latter where a model is no program of its own, whose last digits differ.
        """
        measured = quantized.predict(samples)
        if not any(isinstance(layer, LayerNorm) for layer in self.model.layers):
            with breaking("quantization.linear-arithmetic") as verdict:
                expected = expected_models.predict_outputs(self.model, quantized, weights, rule, samples)
                for head, (values, bound) in expected.items():
                    check_near(verdict, measured[head], values, bound, f"prediction of {head}", "prediction")
        if not subject.conventions.compiled:
            with breaking("quantization.dynamic-scale") as verdict:
                fresh = self._make_model(subject, self.seed).predict(samples)
                verdict.same_state(measured, fresh, "a prediction, compared with a fresh model", "differs")


def _inputs(rule: LinearRule, quantized: QuantizedModel, name: str, verb: RunLayers, width: int) -> Array:
    """What a layer is asked for, by the seed with outliers of one kind or another where the rule has any."""
    if math.isinf(rule.outliers):
        return input_values(rule, quantized, name, verb.rows, width, verb.seed)
    cases = tuple(expected_models.CASES.values())
    return cases[verb.seed % len(cases)](verb.rows, width, rule, verb.seed)


def _has_bias_before_dense(model: Model) -> bool:
    """Whether a dense layer with a bias is followed by another one, or by the heads, with nothing between."""
    return any(
        isinstance(layer, Dense) and layer.bias and isinstance(after, Dense | Heads)
        for layer, after in pairwise(model.layers)
    )


def _saw_nothing(quantized: QuantizedModel) -> bool:
    """Whether calibration saw only zeros, so that the layer has an empty range."""
    return any(
        code_range is not None and code_range.scale == 0.0
        for ranges in quantized.calibrated_ranges().values()
        for code_range in (ranges.inputs, ranges.outputs)
    )


TECHNIQUES = ("dynamic-int8", "static-int8", "weight-int8", "weight-int4", "load-int8")
DYNAMIC, STATIC = TECHNIQUES[:2]
each_technique = pytest.mark.parametrize("technique", TECHNIQUES)
LAYERS = (Dense(33), Activation("relu"), LayerNorm(), Dense(17), Activation("tanh"), Heads((Head("output", 5),)))
MIXED = Model("mixed", LAYERS, (160,), (("output", "squared_error"),))
"""Sizes that no group divides, and a norm between layers."""
ROWS = 9


def make_mixed_model(rule: LinearRule) -> Model:
    """`MIXED`, or where small weights stay as they are, a model of such sizes that every layer but one head has codes.

    The weight of its other head has as many entries as it needs for codes, and no more, where 32 divides that.
    """
    if not rule.smallest:
        return MIXED
    fewest = -(-rule.smallest // 32)
    heads = Heads((Head("output", max(5, fewest)), Head("small", min(5, max(1, fewest - 1)))))
    layers = (Dense(max(33, fewest + 1)), *LAYERS[1:3], Dense(32), LAYERS[4], heads)
    return Model("large", layers, MIXED.sample, tuple((head.name, "squared_error") for head in heads.heads))


def foreign(model: Model, how: str) -> Model:
    """A model unlike the given one: its first layers, or its only dense layer, have another output width."""
    first, *between, heads = model.layers
    assert isinstance(first, Dense)
    assert isinstance(heads, Heads)
    if how == "other-shape":
        return replace(model, name="wider", layers=(replace(first, units=first.units + 1), *between, heads))
    head, *others = heads.heads
    wider = replace(heads, heads=(replace(head, units=head.units + 1), *others))
    return replace(model, name="wider", layers=(first, *between, wider))


def rule_of(subject: Subject, technique: str) -> LinearRule:
    """The declared rule of a technique; ends the test if there is none."""
    need(subject, Capability(f"quantization.{technique}"))
    return subject.framework.rule(PostTraining).rules()[technique]


def batches(model: Model, seed: int = 0) -> tuple[Array, ...]:
    """Three batches of samples, the largest values in the second."""
    rng = np.random.default_rng([seed, 4])
    drawn = (rng.standard_normal((size, *model.sample)) for size in (7, 5, 8))
    return tuple((values * factor).astype(np.float32) for values, factor in zip(drawn, (1.0, 3.0, 0.5), strict=True))


def make_quantized(
    subject: Subject, technique: str, model: Model | None = None, seed: int = 0, **more: Sequence[str]
) -> QuantizedModel:
    """The quantized and calibrated model, by default the one for the technique, with its own weights."""
    post_training = subject.framework.rule(PostTraining)
    model = model or make_mixed_model(post_training.rules()[technique])
    return post_training.quantize(technique, model, unlike_weights(model, seed), batches(model, seed), **more)


def try_predict(make: Callable[[], QuantizedModel], samples: Array) -> tuple[str, dict[str, Array]]:
    """The message that refuses a model, or "" and its predictions."""
    try:
        return "", make().predict(samples)
    except Exception as error:
        return f"{type(error).__name__}: {error}", {}
