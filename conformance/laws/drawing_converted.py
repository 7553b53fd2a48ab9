"""Draws runs of aware training, and what is done with them."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from conformance.laws.converted import AwareCase, AwareVerb, Convert, PredictAware, Reload, TrainAware
from fixtures.layers import Activation, Dense, Flatten, Head, Heads, Layer
from fixtures.model import Model

_WIDTHS = st.sampled_from([2, 3, 5, 8, 17, 33, 65])
_ROWS = st.integers(1, 9)
_POWERS = st.sampled_from([0, 0, 1, -2, 3, -6])


@st.composite
def converted(draw: st.DrawFn) -> AwareCase:
    """A model of one to four dense layers, and a run that begins with an update."""
    accumulation = draw(st.sampled_from([1, 1, 2, 3]))
    first = draw(_updates(accumulation))
    verbs = draw(st.lists(_verbs(accumulation), min_size=1, max_size=6))
    return AwareCase(
        draw(_models()),
        draw(st.sampled_from([None, None, 1, 2, 3])),
        accumulation,
        (first, *verbs),
        draw(st.integers(0, 99)),
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
        body += [Dense(draw(_WIDTHS)), Activation("relu")]
    heads = Heads(tuple(Head(name, draw(st.sampled_from([2, 3, 5]))) for name in draw(_HEADS)))
    return Model("aware", (*body, heads), sample, tuple((head.name, "squared_error") for head in heads.heads))


_HEADS = st.sampled_from([("output",), ("a", "b")])


def _updates(accumulation: int) -> SearchStrategy[AwareVerb]:
    sizes = st.tuples(*[_ROWS] * accumulation)
    return st.builds(TrainAware, sizes, st.tuples(*[_POWERS] * accumulation))


def _verbs(accumulation: int) -> SearchStrategy[AwareVerb]:
    """Updates and conversions more often than what should change nothing."""
    convert, update = st.builds(Convert, st.sampled_from([9, 33, 64]), st.booleans()), _updates(accumulation)
    still = st.builds(PredictAware, _ROWS, _POWERS)
    reload = st.builds(Reload, st.sampled_from(["itself", "fresh", "used"]))
    return st.one_of(update, update, convert, convert, still, reload)
