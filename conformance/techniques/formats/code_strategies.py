"""Generates calls of quantizers, casts to 8-bit formats, and quantized matmuls."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from conformance.search.layouts import LAYOUTS
from conformance.techniques.formats.cases import CodedCall, CodedCalls, FakeCall, Matrix, QuantizerCall, SpoiltCall
from conformance.techniques.formats.expected_casts import SOURCES
from conformance.techniques.formats.format_cases import INTEGERS, CastCall, CodeProduct, Packing
from fixtures.narrow import NARROW
from frameworks.contract import Capability, Framework

QUANTIZERS = ("int8-tensor", "int8-row", "int8-column", "uint8-tensor", "int4-group")
FAKE_QUANTIZERS = ("fake-int8-tensor", "fake-int8-column", "fake-uint8-tensor", "fake-int4-tensor")
PRODUCTS = (("float8_e4m3fn", "float8_e4m3fn"), ("float8_e4m3fn", "float8_e5m2"), ("float8_e5m2", "float8_e4m3fn"))
"""Formats of the forward pass, and of gradients, which need a wider range."""
_SEEDS = st.integers(0, 2**16)
_SMALL, _LARGE = st.integers(1, 9), st.sampled_from([16, 31, 64, 65, 129, 257, 1025])
_SIDES = _SMALL | _LARGE


def matrices(
    rows: SearchStrategy[int], columns: SearchStrategy[int], contents: Collection[str]
) -> SearchStrategy[Matrix]:
    """Matrices of these sizes, whose rows have magnitudes of their own."""
    return st.builds(
        Matrix,
        rows=rows,
        columns=columns,
        exponents=st.lists(st.integers(-40, 40), min_size=1, max_size=4).map(tuple),
        sign=st.sampled_from([0, 1, -1]),
        content=st.sampled_from(sorted(contents)),
        seed=_SEEDS,
    )


MATRICES = matrices(_SIDES, st.integers(1, 67) | _LARGE, ("normal", "one", "zeros", "far"))


def coded(framework: Framework) -> SearchStrategy[CodedCalls]:
    """One to three calls of any kind that a framework declares."""
    calls = st.lists(st.one_of(_kinds(framework)), min_size=1, max_size=3).map(tuple)
    return st.builds(CodedCalls, calls, st.sampled_from(LAYOUTS))


def _kinds(framework: Framework) -> list[SearchStrategy[CodedCall]]:
    """Calls by kind; where nothing is declared, one that is refused."""

    def declared(prefix: str, names: Collection[str]) -> list[str]:
        return [name for name in names if framework.declares(Capability(f"{prefix}.{name}")).supported]

    quantizers, fakes = declared("quantization", QUANTIZERS), declared("quantization", FAKE_QUANTIZERS)
    casts = declared("formats", sorted(NARROW))
    products = [INTEGERS] * framework.declares(Capability.INTEGER_PRODUCTS).supported
    products += PRODUCTS * framework.declares(Capability.FLOAT8_PRODUCTS).supported
    kinds: list[SearchStrategy[CodedCall]] = []
    if quantizers:
        kinds.append(st.builds(QuantizerCall, st.sampled_from(quantizers), MATRICES))
        kinds.append(_spoilt(quantizers))
    if fakes:
        kinds.append(_fake(fakes))
    if casts:
        shapes = st.tuples(_SIDES | st.sampled_from([4099, 70_001])) | st.tuples(_SMALL, _SIDES)
        source = st.sampled_from(sorted(SOURCES))
        special = st.sampled_from([0, 0, 1, 3])
        kinds.append(st.builds(CastCall, st.sampled_from(casts), source, shapes, special, _SEEDS))
    if products:
        sizes = st.tuples(_SMALL, _SIDES | st.sampled_from([4097, 70_001]), _SMALL)
        kinds.append(st.builds(CodeProduct, st.sampled_from(products), sizes, st.booleans(), _SEEDS))
    if framework.declares(Capability.INT4_PACKING).supported:
        kinds.append(st.builds(Packing, _SIDES, _SIDES, st.sampled_from([0, 1]), _SEEDS))
    return kinds or [st.builds(QuantizerCall, st.just(QUANTIZERS[0]), MATRICES)]


def _spoilt(names: Collection[str]) -> SearchStrategy[CodedCall]:
    """Quantizers of matrices with a value that is not finite, first, last or between."""
    places = st.sampled_from([0.0, 0.3, 0.6, 0.9999])
    values = st.sampled_from([np.nan, np.inf, -np.inf])
    return st.builds(SpoiltCall, st.sampled_from(sorted(names)), MATRICES, values, places, places)


def _fake(names: Collection[str]) -> SearchStrategy[CodedCall]:
    """Fake quantizers, of values of which some are beyond the range or none is."""
    beyond = st.sampled_from([0, 0, 3, 300])
    return st.builds(FakeCall, st.sampled_from(sorted(names)), _SIDES, _SIDES, st.booleans(), beyond, _SEEDS)
