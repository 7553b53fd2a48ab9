"""Checks that parts shipped by a framework, and models that it quantizes, keep their values under a technique."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import cast

import numpy as np
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from conformance.checks.evidence import Verdict
from conformance.checks.subject import Subject, need, supports
from conformance.known_failures.reading import Exclusion
from conformance.search.properties import Property
from conformance.techniques import Technique
from conformance.techniques.post_training import (
    TECHNIQUES,
    PredictBatch,
    QuantizedCase,
    QuantizedVerb,
    RunLayers,
    SaveAndLoad,
)
from conformance.techniques.qat import QatCase, beginnings, draw_case
from fixtures.arrays import Array
from fixtures.model import Activation, Dense, Head, Heads, Layer, LayerNorm, Model, dense_weights
from frameworks.contract import SHIPPED, Capability, Framework, Part, PostTraining, Shipped, Unsupported, Values

BASES = {"recomputed-in-scope": "in-scope"}
"""Techniques that are compared with another technique, instead of with none."""
ROUNDING = 2.0**-9
"""Largest difference, as a share of the largest element; a gradient of `logcumsumexp` times 1024 differs by 2⁻¹¹."""
SMALL = 2.0**-12
"""Smallest scale of a difference, as a share of the part's largest element: a gradient may cancel."""

_WIDTHS = st.sampled_from([2, 3, 5, 8, 17, 31, 33, 64, 65])
_ROWS = st.sampled_from([1, 2, 3, 7, 9, 16, 33, 300, 520])
_BETWEEN: tuple[Layer, ...] = (Activation("relu"), Activation("tanh"), LayerNorm())


def judge_parts(subject: Subject, verdict: Verdict, excluded: Sequence[Exclusion], part: Part, technique: str) -> None:
    """Check that every part of a kind keeps its values under a technique, except parts that exclusions name.

    Raises:
        Unsupported: the adapter has no examples of such parts.
    """
    need(subject, SHIPPED[part])
    shipped = subject.framework.get_shipped(part)
    judged = 0
    differing: list[str] = []
    for name in shipped.names():
        features = f"{part[:-1]}={name}", f"technique={technique}"
        if any(exclusion.leaves_out(features) for exclusion in excluded):
            continue
        for result in _differences(shipped, name, technique):
            judged += 1
            differing += [f"{name} {result}"] if result else []
    verdict.equal(tuple(differing), (), f"{part} that differ, {technique}", "differs")
    verdict.holds(judged > 0, f"{part} judged, {technique}", judged, "one or more", "none-judged")


def _differences(shipped: Shipped, name: str, technique: str) -> Iterator[str]:
    """Yield how a part differs under a technique, "" if it does not; nothing if it fails without the technique.

    A framework's parts raise exceptions of any type, so all are caught: without the technique the part has no values to
    compare with, and under the technique the exception itself is the difference.
    """
    try:
        expected = shipped.values(name, BASES.get(technique, ""))
    except Exception:
        return
    try:
        yield difference(shipped.values(name, technique), expected)
    except Unsupported:
        return
    except Exception as error:
        first_line, _, _ = str(error).strip().partition("\n")
        yield f"raises {type(error).__name__}: {first_line[:80]}"


def difference(measured: Values, expected: Values) -> str:
    """Return the largest difference beyond rounding, in words; "" if there is none.

    Values that were not measured are left out. A missing gradient equals one of zeros.
    """
    worst, text = ROUNDING, ""
    floor = SMALL * max((_largest(array) for array in expected.values() if array is not None), default=0.0)
    for key, got in measured.items():
        want = expected.get(key)
        if got is None or want is None:
            present = want if got is None else got
            if present is not None and np.any(present):
                return f"{key}: got {_describe(got)}, want {_describe(want)}"
        elif got.size == want.size == 0:
            continue
        elif got.dtype != want.dtype or got.shape != want.shape:
            return f"{key}: got {_describe(got)}, want {_describe(want)}"
        elif (share := _share(got, want, floor)) > worst:
            worst, text = share, f"{key}: by {share:.1g} of the largest element"
    return text


def _describe(value: Array | None) -> str:
    return "nothing" if value is None else f"{value.dtype}{list(value.shape)}"


def _wide(value: Array) -> Array:
    return value if value.dtype.kind == "c" else value.astype(np.float64)


def _largest(value: Array) -> float:
    """Return the magnitude of the largest finite element."""
    return float(np.abs(np.nan_to_num(_wide(value), posinf=0.0, neginf=0.0)).max(initial=0.0))


def _share(got: Array, want: Array, floor: float) -> float:
    """Return the largest difference as a share of the largest element; infinite if only one of two is finite."""
    got, want = _wide(got), _wide(want)
    finite = np.isfinite(want)
    if not np.array_equal(finite, np.isfinite(got)):
        return float("inf")
    gap = float(np.abs(got[finite] - want[finite]).max(initial=0.0))
    return gap / max(_largest(want), floor) if gap else 0.0


def draw_quantization_case(framework: Framework) -> SearchStrategy[QuantizedCase | QatCase]:
    """Return a strategy for models quantized after training and, if the framework converts them, QAT models."""
    trained = _draw_quantized_case(framework)
    converts = supports(framework, Capability.QAT, Capability.CONVERT)
    return trained | draw_case(framework) if converts else trained


@st.composite
def _draw_quantized_case(draw: st.DrawFn, framework: Framework) -> QuantizedCase:
    """Draw a case of a technique that the framework declares; if there is none, of one that it refuses."""
    declared = [t for t in TECHNIQUES if framework.declares(Capability(f"quantization.{t}")).supported]
    technique = draw(st.sampled_from(declared or TECHNIQUES[:1]))
    model = draw(_models())
    if technique in declared:
        model = large_enough(model, framework.rule(PostTraining).rules()[technique].smallest)
    names = sorted(dense_weights(model))
    contained = [name for name in names if any(name != other and name in other for other in names)]
    skipped = st.sampled_from([*names, *contained * 6])
    skip = draw(st.lists(skipped, min_size=1, max_size=2, unique=True)) if draw(st.booleans()) else []
    verbs = tuple(draw(st.lists(_verbs(), min_size=1, max_size=4)))
    rows = st.integers(1, 9) | st.sampled_from([300, 1030, 2051])
    batches = tuple(draw(st.lists(rows, min_size=1, max_size=3)))
    power = draw(st.sampled_from([0, 0, 0, -8, 4]))
    return QuantizedCase(technique, model, tuple(skip), power, batches, verbs, draw(st.integers(0, 99)))


def large_enough(model: Model, smallest: int) -> Model:
    """Return the model, with a wider first dense layer if no weight had enough entries for codes."""
    sizes = {name: math.prod(shape) for name, shape in dense_weights(model).items()}
    if max(sizes.values()) >= smallest:
        return model
    position = next(index for index, layer in enumerate(model.layers) if isinstance(layer, Dense))
    inputs, _ = dense_weights(model)[f"{position}.weight"]
    wider = replace(cast(Dense, model.layers[position]), units=-(-smallest // inputs))
    return replace(model, layers=(*model.layers[:position], wider, *model.layers[position + 1 :]))


@st.composite
def _models(draw: st.DrawFn) -> Model:
    """Draw a model of up to three dense layers or, now and then, so many that the number of a layer has two digits."""
    sample, body = draw(beginnings(_WIDTHS))
    deep = draw(st.integers(0, 4)) == 0
    count = 6 if deep else draw(st.integers(1, 3))
    for _ in range(count):
        body.append(Dense(draw(st.sampled_from([3, 5, 8]) if deep else _WIDTHS), bias=draw(st.integers(0, 3)) > 0))
        if deep or draw(st.booleans()):
            body.append(draw(st.sampled_from(_BETWEEN)))
    names = draw(st.sampled_from([("output",), ("a", "b"), ("a", "ab")]))
    heads = Heads(tuple(Head(name, draw(st.sampled_from([2, 3, 5]))) for name in names))
    return Model("drawn", (*body, heads), sample, tuple((name, "squared_error") for name in names))


def _verbs() -> SearchStrategy[QuantizedVerb]:
    """Return a strategy for predictions, calls of layers alone, and saves with loads."""
    into = st.sampled_from(["itself", "other", "used"])
    return st.one_of(
        st.builds(PredictBatch, _ROWS, st.sampled_from([0, 0, 3, -6])),
        st.builds(RunLayers, _ROWS, st.integers(0, 99)),
        st.builds(SaveAndLoad, into),
    )


QUANTIZED_MODELS = Technique(
    properties={"laws.quantized-models": Property(11, draw_quantization_case, 1, 1 / 4)},
    features=tuple(f"technique={name}" for name in TECHNIQUES),
)
