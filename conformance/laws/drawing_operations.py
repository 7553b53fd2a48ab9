"""Draws operations in scopes, and calls that are recomputed."""

from __future__ import annotations

from hypothesis import strategies as st

from conformance.laws.drawing_recipes import PRECISIONS, offered
from conformance.laws.operations import RANDOM, Call, Calls, NestedScope, ScopedOperation
from fixtures.recipe import FormatName, Recipe
from frameworks.contract import Capability, Framework, RecomputeCase
from frameworks.operations import CATALOGUE

WAYS: tuple[RecomputeCase, ...] = ("positional", "tuple", "list", "dict", "keyword", "no-grad-input", "raises")
SIZES = (4, 5, 7, 8, 9, 16, 33)
"""No size is below 4, since the catalogue's labels are."""


@st.composite
def scoped(draw: st.DrawFn, framework: Framework) -> ScopedOperation:
    """Operations in up to three scopes, after up to two others."""
    formats: list[FormatName] = [
        p.format for p in PRECISIONS if p.level == "O1" and offered(framework, Recipe(precision=p))
    ]
    operations = sorted(op for op in CATALOGUE if op not in RANDOM)
    products = ["matmul", "batched_matmul", "einsum", "linear", "attention"]
    op = draw(st.sampled_from(products) | st.sampled_from(operations))
    lists = framework.declares(Capability.AUTOCAST_LISTS).supported

    def region() -> NestedScope:
        listed = ((op,), ()) if lists and draw(st.integers(0, 4)) == 0 else ((), ())
        wide, low = listed if draw(st.booleans()) else listed[::-1]
        return NestedScope(draw(st.sampled_from(formats)), draw(st.integers(0, 3)) > 0, wide, low)

    before = tuple(region() for _ in range(draw(st.integers(0, 2))))
    nest = tuple(region() for _ in range(draw(st.integers(1, 3))))
    sizes = draw(st.sampled_from(SIZES)), draw(st.sampled_from(SIZES))
    operand = draw(st.sampled_from(["float32", "float32", *formats]))
    return ScopedOperation(op, sizes, operand, before, draw(st.booleans()), nest, draw(st.integers(0, 99)))


def calls(framework: Framework) -> st.SearchStrategy[Calls]:
    """One to three calls."""
    return st.lists(_calls(framework), min_size=1, max_size=3).map(lambda drawn: Calls(tuple(drawn)))


@st.composite
def _calls(draw: st.DrawFn, framework: Framework) -> Call:
    """Every way to pass arguments, at sizes from one on."""
    size = st.sampled_from([1, 2, 3, 5, 8, 17])
    variant = draw(st.sampled_from([None, *framework.recompute_variants()]))
    return Call(draw(st.sampled_from(WAYS)), variant, (draw(size), draw(size), draw(size)), draw(st.integers(0, 99)))
