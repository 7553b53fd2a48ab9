"""Generates QAT runs and their verbs."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from conformance.techniques.qat.cases import Convert, PredictQat, QatCase, QatVerb, Reload, SkipQat, TrainQat
from fixtures.layers import Activation, Dense, Flatten, Head, Heads, Layer
from fixtures.model import Model
from frameworks.contract import Capability, Framework

_WIDTHS = st.sampled_from([2, 3, 5, 8, 17, 33, 65])
_ROWS = st.integers(1, 9) | st.sampled_from([*range(1, 10), 300, 1030])
_POWERS = st.sampled_from([0, 0, 1, -2, 3, -6])


@st.composite
def converted(draw: st.DrawFn, framework: Framework) -> QatCase:
    """A model of one to four dense layers, and a run that begins with an update, or with one that is skipped."""
    accumulation = draw(st.sampled_from([1, 1, 2, 3]))
    needed = (Capability.DYNAMIC_SCALING, Capability.FEED)
    scaled = all(framework.declares(each).supported for each in needed) and draw(st.booleans())
    averages = [0.5, 0.75] if framework.declares(Capability.AVERAGE).supported else []
    first = draw(_updates(accumulation))
    verbs = draw(st.lists(_verbs(accumulation, scaled), min_size=1, max_size=6))
    skips: list[QatVerb] = [SkipQat()] if scaled and draw(st.booleans()) else []
    return QatCase(
        draw(_models()),
        draw(st.sampled_from([None, None, 1, 2, 3])),
        accumulation,
        (*skips, first, *verbs),
        draw(st.integers(0, 99)),
        scaled,
        draw(st.sampled_from([None, None, *averages])),
    )


@st.composite
def beginnings(draw: st.DrawFn, widths: SearchStrategy[int]) -> tuple[tuple[int, ...], list[Layer]]:
    """The shape of a sample, and the layer that makes a row of it where it is a matrix."""
    if draw(st.integers(0, 3)) == 0:
        return (draw(st.integers(2, 3)), draw(widths)), [Flatten()]
    return (draw(widths),), []


@st.composite
def _models(draw: st.DrawFn) -> Model:
    sample, body = draw(beginnings(_WIDTHS))
    for _ in range(draw(st.integers(0, 3))):
        body.append(Dense(draw(_WIDTHS), bias=draw(st.integers(0, 3)) > 0))
        body += draw(_BETWEEN)
    heads = Heads(tuple(Head(name, draw(st.sampled_from([2, 3, 5]))) for name in draw(_HEADS)))
    return Model("aware", (*body, heads), sample, tuple((head.name, "squared_error") for head in heads.heads))


_HEADS = st.sampled_from([("output",), ("a", "b"), ("a", "ab")])
_BETWEEN = st.sampled_from([(Activation("relu"),), (Activation("tanh"),), ()])


def _updates(accumulation: int) -> SearchStrategy[QatVerb]:
    sizes = st.tuples(*[_ROWS] * accumulation)
    return st.builds(TrainQat, sizes, st.tuples(*[_POWERS] * accumulation))


def _verbs(accumulation: int, scaled: bool) -> SearchStrategy[QatVerb]:
    """Updates and conversions more often than what should change nothing."""
    convert, update = st.builds(Convert, st.sampled_from([9, 33, 64]), st.booleans()), _updates(accumulation)
    still = st.builds(PredictQat, _ROWS, _POWERS)
    reload = st.builds(Reload, st.sampled_from(["itself", "fresh", "used"]))
    skip: list[SearchStrategy[QatVerb]] = [st.just(SkipQat())] if scaled else []
    return st.one_of(update, update, convert, convert, still, reload, *skip)
