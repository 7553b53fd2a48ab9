"""Generates operations in scopes, and recomputed calls."""

from __future__ import annotations

import math

from hypothesis import strategies as st

from conformance.generative.calls import Call, Calls
from conformance.generative.operations import MIXED, RANDOM, SHIFTED, UNBOUNDED, NestedScope, ScopedOperation
from conformance.generative.programs.recipe_strategies import PRECISIONS, offered
from conformance.search.arrays import LAYOUTS
from fixtures.recipe import FormatName, Recipe
from frameworks.contract import Capability, Framework, RecomputeCase
from frameworks.operations import CATALOGUE

WAYS: tuple[RecomputeCase, ...] = ("positional", "tuple", "list", "dict", "keyword", "no-grad-input", "raises")
SIZES = (4, 5, 7, 8, 9, 16, 33)
"""No size is below 4, since the catalogue's labels are."""
PRODUCTS = ("matmul", "batched_matmul", "einsum", "linear", "attention")
FEW = (1, 1, 2, 3)
"""Sizes of products that frameworks may compute in another way: of a vector, or of one number."""
LONG = ((5, 2051), (65_539, 4))
"""Rows and columns beyond where kernels change their way, or count in 16 bits, for operations of one row each."""
BY_ROW = frozenset(op for op in CATALOGUE if all(array.shape[:1] == (4,) for array in CATALOGUE[op]())) - {
    *("matmul", "einsum", "linear", "gather_ids", "embedding"),
    *("sum", "mean", "variance", "norm", "prod"),  # over everything, as the mean of a loss
    *("cross_entropy", "squared_error", "absolute_error", "huber"),
    "cumsum",  # whose rounding leans to one side, as no random rounding does
}

MANY_CLASSES = (5, 2051)
"""Rows and classes of a loss over more of them than kernels have in a block."""

SEVERAL_WAYS = ("layer_norm", "rms_norm", "softmax", "log_softmax", "conv2d", "concatenate", "cross_entropy")
"""Operations for which frameworks have a way of its own for some shapes or values; they are drawn more often."""
SMALLEST = {"norm": -4, "elu": 0}
"""Powers of two by which operands are made small: squares underflow in float16, and elu cancels; others' is -12."""


@st.composite
def scoped(draw: st.DrawFn, framework: Framework) -> ScopedOperation:
    """Operations in up to three scopes, after up to two others."""
    formats = _formats(framework)
    operations = sorted(op for op in CATALOGUE if op not in RANDOM)
    op = draw(st.sampled_from([*PRODUCTS]) | st.sampled_from(operations) | st.sampled_from([*SEVERAL_WAYS]))
    lists = framework.declares(Capability.AUTOCAST_LISTS).supported
    unrelated = "matmul" if op in ("tanh", "gelu") else "tanh"

    def region() -> NestedScope:
        named = draw(st.sampled_from([(op,), (op,), (unrelated,)]))
        listed = (named, ()) if lists and draw(st.integers(0, 3)) == 0 else ((), ())
        wide, low = listed if draw(st.booleans()) else listed[::-1]
        return NestedScope(draw(st.sampled_from(formats)), draw(st.integers(0, 3)) > 0, wide, low)

    before = tuple(region() for _ in range(draw(st.integers(0, 2))))
    nest = tuple(region() for _ in range(draw(st.integers(1, 3))))
    sized = st.sampled_from([*SIZES, *FEW * (op in PRODUCTS)])
    sizes = draw(sized), draw(sized)
    if op in BY_ROW and draw(st.integers(0, 3)) == 0:
        sizes = draw(st.sampled_from(LONG))
    if op == "cross_entropy" and draw(st.booleans()):
        sizes = MANY_CLASSES
    operand = draw(st.sampled_from(["float32", "float32", *formats]))
    left = (region(),) if draw(st.integers(0, 3)) == 0 else ()
    second = draw(st.sampled_from([None, "float32", *formats])) if op in MIXED else None
    magnitudes = [0, 0, 0, 0, SMALLEST.get(op, -12), 4, *_largest(op, (operand, nest[-1].format))]
    return ScopedOperation(
        op,
        sizes,
        operand,
        before,
        draw(st.booleans()),
        nest,
        draw(st.integers(0, 99)),
        magnitude=draw(st.sampled_from(magnitudes)),
        constant=draw(st.integers(0, 2 if op == "attention" else 7)) == 0,
        left=left,
        second=None if second == operand else second,
        offset=draw(st.sampled_from([0.0, 0.0, *[-120.0, -200.0, 150.0] * (op in SHIFTED)])),
        empty=op == "concatenate" and draw(st.booleans()),
        layout=draw(st.sampled_from(LAYOUTS)),
        prepared=draw(st.booleans()),
        special=draw(st.sampled_from([0.0, *[-math.inf] * (op in UNBOUNDED)]))
        if draw(st.integers(0, 3)) == 0
        else None,
    )


def _largest(op: str, formats: tuple[str, str]) -> tuple[int, ...]:
    """Powers of two by which operands are made large; scores are squares: float16 does not hold the largest."""
    if op != "attention":
        return (10,)
    return (4, 4, 4) if "float16" in formats else (4, 9, 9)


@st.composite
def calls(draw: st.DrawFn, framework: Framework) -> Calls:
    """One to three calls; in a scope only where a program is not compiled, whose rounding has a bound in float32."""
    drawn = tuple(draw(st.lists(_calls(framework), min_size=1, max_size=3)))
    formats = _formats(framework) if not framework.conventions().compiled else []
    return Calls(drawn, draw(st.sampled_from([None, *(NestedScope(name) for name in formats)])))


def _formats(framework: Framework) -> list[FormatName]:
    """The low formats that a framework has scopes for."""
    if not framework.declares(Capability.AUTOCAST_SCOPE).supported:
        return []
    return [p.format for p in PRECISIONS if p.level == "O1" and offered(framework, Recipe(precision=p))]


@st.composite
def _calls(draw: st.DrawFn, framework: Framework) -> Call:
    """Every way to pass arguments, at sizes from one on."""
    size = st.sampled_from([1, 2, 3, 5, 8, 17])
    variant = draw(st.sampled_from([None, *framework.recompute_variants()]))
    return Call(draw(st.sampled_from(WAYS)), variant, (draw(size), draw(size), draw(size)), draw(st.integers(0, 99)))
