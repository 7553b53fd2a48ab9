"""The law of trained models in integer codes: what each layer stores and computes, whatever happened before."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

import numpy as np

from conformance.judging import coded
from conformance.judging.subject import Subject, need
from conformance.judging.verdict import Verdict
from conformance.laws.codes import Checked, first_broken
from conformance.laws.declared import LawsOfAdapter
from conformance.laws.judging import Failure
from conformance.oracle import post_training
from conformance.oracle.bound import Bound
from fixtures.arrays import Array
from fixtures.layers import LayerNorm
from fixtures.model import Model, dense_weights
from frameworks.contract import Capability, LinearRule, QuantizedModel

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
    """A save, and a load into the model itself, another one, or another one that has predicted; that one goes on."""

    into: Receiver


QuantizedVerb = PredictBatch | RunLayers | SaveAndLoad


@dataclass(frozen=True)
class QuantizedCase:
    """A trained model that a technique quantizes, and what is done with it.

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
        }
        return frozenset({f"technique={self.technique}", *(word for word, there in flags.items() if there)})

    def failure(self, subject: Subject, laws: LawsOfAdapter) -> Failure | None:  # noqa: ARG002
        """What the model stores or computes, and must not by the rule, or otherwise than before."""
        need(subject, Capability(f"quantization.{self.technique}"))
        with TemporaryDirectory() as folder:
            return first_broken(self._checks(subject, Path(folder)))

    def clause(self, subject: Subject, laws: LawsOfAdapter, failure: Failure) -> tuple[str, str]:  # noqa: ARG002
        """The clause that a failure breaks, and the sentence that says so."""
        return failure.name, failure.breaking(failure.name)

    def weights(self, seed: int) -> dict[str, Array]:
        """The trained weights."""
        drawn = coded.unlike_weights(self.model, seed)
        dense = dense_weights(self.model)
        return {name: v * np.float32(2.0**self.power) if name in dense else v for name, v in drawn.items()}

    def samples(self, rows: int, power: int, place: int) -> Array:
        """A batch of samples (rows, ...), float32."""
        rng = np.random.default_rng([self.seed, 51, place])
        return np.asarray(rng.standard_normal((rows, *self.model.sample)) * 2.0**power, np.float32)

    def _made(self, subject: Subject, seed: int) -> QuantizedModel:
        given, batches = subject.framework.post_training(), self._calibration()
        return given.quantized(self.technique, self.model, self.weights(seed), batches, self.skip)

    def _calibration(self) -> tuple[Array, ...]:
        return tuple(self.samples(rows, place % 3 - 1, 100 + place) for place, rows in enumerate(self.batches))

    def _checks(self, subject: Subject, folder: Path) -> Iterator[Checked]:
        rule, weights = subject.framework.post_training().rules()[self.technique], self.weights(self.seed)
        wanted = set(coded.quantized_layers(self.model, rule)) - set(self.skip)
        quantized = self._made(subject, self.seed)
        yield (
            "quantization.only-what-was-asked",
            lambda verdict: coded.check_chosen(verdict, quantized, weights, sorted(wanted)),
        )
        yield "quantization.weights-as-declared", self._stores(quantized, rule, weights)
        if rule.ranges == "calibration":
            yield "quantization.calibrated-range", self._calibrated(quantized, rule, weights)
            if _saw_nothing(quantized):
                return
        state, current = coded.stored(quantized), quantized
        for place, verb in enumerate(self.verbs):
            match verb:
                case PredictBatch():
                    samples = self.samples(verb.rows, verb.power, place)
                    yield "quantization.linear-arithmetic", self._predicts(current, rule, weights, samples)
                    if not subject.conventions.compiled:
                        fresh = self._made(subject, self.seed).predict(samples)
                        what = f"what verb {place + 1} predicts, against a model of which nothing was asked"
                        yield "quantization.dynamic-scale", _same(current.predict(samples), fresh, what)
                case RunLayers():
                    yield "quantization.linear-arithmetic", self._layers(current, rule, weights, verb)
                case SaveAndLoad():
                    current = self._loaded(subject, current, verb, folder / str(place))
            clause = "quantization.survives-saving" if isinstance(verb, SaveAndLoad) else "quantization.dynamic-scale"
            yield clause, _same(coded.stored(current), state, f"the model after verb {place + 1}")

    def _loaded(self, subject: Subject, current: QuantizedModel, verb: SaveAndLoad, folder: Path) -> QuantizedModel:
        current.save(folder)
        receiver = current if verb.into == "itself" else self._made(subject, self.seed + 1)
        if verb.into == "used":
            receiver.predict(self.samples(2, 0, 200))
        receiver.restore(folder)
        return receiver

    def _stores(
        self, quantized: QuantizedModel, rule: LinearRule, weights: dict[str, Array]
    ) -> Callable[[Verdict], None]:
        def check(verdict: Verdict) -> None:
            for name, weight in quantized.weights().items():
                if weight is not None:
                    coded.check_scale(verdict, weights[name], weight, rule.weight, f" of {name}")
                    coded.check_codes(verdict, weights[name], weight, rule.weight, f" of {name}")

        return check

    def _calibrated(
        self, quantized: QuantizedModel, rule: LinearRule, weights: dict[str, Array]
    ) -> Callable[[Verdict], None]:
        seen = post_training.seen_by_layers(self.model, weights, self._calibration())
        terms = sum(shape[0] + 8 for shape in dense_weights(self.model).values())

        def check(verdict: Verdict) -> None:
            for name, ranges in quantized.calibrated().items():
                coded.check_ranges(verdict, rule, name, ranges, seen[name], terms)

        return check

    def _layers(
        self, quantized: QuantizedModel, rule: LinearRule, weights: dict[str, Array], verb: RunLayers
    ) -> Callable[[Verdict], None]:
        def check(verdict: Verdict) -> None:
            for name, weight in quantized.weights().items():
                bias, width = weights.get(name.replace(".weight", ".bias")), len(weights[name])
                if weight is None:
                    inputs = np.random.default_rng([verb.seed, 52]).standard_normal((verb.rows, width))
                    inputs = inputs.astype(np.float32)
                    coded.check_float_layer(verdict, quantized, name, inputs, weights[name], bias)
                else:
                    inputs = coded.input_values(rule, quantized, name, verb.rows, width, verb.seed)
                    coded.check_layer(verdict, rule, quantized, name, inputs, bias)

        return check

    def _predicts(
        self, quantized: QuantizedModel, rule: LinearRule, weights: dict[str, Array], samples: Array
    ) -> Callable[[Verdict], None]:
        """Predictions of a model without norms are its layers' one after the other, as far as codes may differ."""

        def check(verdict: Verdict) -> None:
            if any(isinstance(layer, LayerNorm) for layer in self.model.layers):
                return
            expected, bound = post_training.predicted(self.model, quantized, weights, rule, samples)
            measured = quantized.predict(samples)
            for head, values in expected.items():
                with np.errstate(invalid="ignore", divide="ignore"):
                    gap = np.abs(measured[head] - values)
                    worst = float(np.max(np.where(gap == 0.0, 0.0, gap / bound[head]), initial=0.0))
                verdict.within(worst, Bound(1.0, coded.OF_ITS_BOUND), f"prediction of {head}", "prediction")

        return check


def _saw_nothing(quantized: QuantizedModel) -> bool:
    """Whether a layer saw nothing but zeros in calibration, and has a range without codes."""
    return any(
        each is not None and each.scale == 0.0
        for ranges in quantized.calibrated().values()
        for each in (ranges.inputs, ranges.outputs)
    )


def _same(measured: dict[str, Array], expected: dict[str, Array], what: str) -> Callable[[Verdict], None]:
    return lambda verdict: verdict.same_state(measured, expected, what, "differs")
