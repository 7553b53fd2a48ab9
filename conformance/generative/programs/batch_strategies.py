"""Generates micro-batches for one model and recipe."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from hypothesis import strategies as st

from conformance.generative.programs.data import GeneratedBatch, GeneratedModel, MaskKind
from conformance.generative.programs.features import MANY
from conformance.generative.programs.grammar import WIDTHS
from fixtures.layers import BatchNorm, walk
from fixtures.recipe import DynamicScaling, Recipe
from frameworks.contract import Capability, Framework

SMALL_BATCHES = (2, 2, 3, 4, 5)
LARGE_BATCHES = (MANY, MANY + 3, 4 * MANY + 3)
"""Samples of a micro-batch that is too large for what is done in blocks of 32, 64 or 256; means over 64 are exact."""
ROWS = 65_539
"""Samples that are too many for what counts rows in 16 bits."""
MAGNITUDES, SUBNORMAL = (-10, 4, 9, 14), -130
"""Powers of two by which inputs are multiplied; by the last one they are subnormal."""


@dataclass(frozen=True)
class Habits:
    """Choices that apply to a whole program.

    Attributes:
        even: whether the micro-batches of a window are of one size, so that any way of weighing them is the same.
        head: the only head that micro-batches bring targets for, "" for any.
        missing: place of the parameter that given gradients leave out, None for any or none.
    """

    even: bool = False
    head: str = ""
    missing: float | None = None


@st.composite
def habits(draw: st.DrawFn, framework: Framework, drawn: GeneratedModel, recipe: Recipe) -> Habits:
    """The habits of a program; most have none."""
    even = recipe.accumulation > 1 and draw(st.booleans())
    if not framework.declares(Capability.MISSING_GRADIENTS).supported or draw(st.integers(0, 3)):
        return Habits(even)
    head = draw(st.sampled_from([name for name, _ in drawn.losses])) if len(drawn.losses) > 1 else ""
    return Habits(even, head, draw(st.integers(0, 15)) / 16)


def large_batches(drawn: GeneratedModel) -> list[int]:
    """Sizes of micro-batches that are large for a model, the likelier the more often."""
    widest = max(math.prod(shape) for shape in (drawn.sample, *drawn.model.output_shapes().values()))
    vectors = len(drawn.sample) == 1 and not drawn.integer_inputs
    return [*LARGE_BATCHES * 2, *([ROWS] * 2 if vectors and widest <= max(WIDTHS) else [])]


class Batches:
    """The micro-batches that a program for one model and recipe takes.

    Args:
        subnormal: whether inputs may be.
    """

    def __init__(
        self, framework: Framework, drawn: GeneratedModel, recipe: Recipe, habits: Habits, subnormal: bool
    ) -> None:
        self._drawn, self._habits = drawn, habits
        self._magnitudes = [*MAGNITUDES, SUBNORMAL] if subnormal else [*MAGNITUDES]
        self._dynamic = isinstance(recipe.scaling, DynamicScaling) and recipe.scaling.enabled
        self._moving = any(isinstance(layer, BatchNorm) for _, layer in walk(drawn.layers))
        biased = framework.conventions().running_variance == "biased"
        self._small = SMALL_BATCHES if self._moving and not biased else (*SMALL_BATCHES, 1)
        self._missing = framework.declares(Capability.MISSING_GRADIENTS).supported
        self._large = large_batches(drawn)

    def window(self, draw: st.DrawFn, count: int) -> tuple[GeneratedBatch, ...]:
        """So many micro-batches, of which at least one has an item."""
        micros = tuple(self._one(draw) for _ in range(count))
        if self._drawn.exact and draw(st.booleans()):
            micros = tuple(
                replace(micro, size=size) for micro, size in zip(micros, self._sizes(draw, count), strict=True)
            )
        if self._habits.even:
            micros = tuple(replace(micro, size=micros[0].size, mask="none") for micro in micros)
        if self._habits.head:
            micros = tuple(replace(micro, heads=(self._habits.head,)) for micro in micros)
        return micros if any(m.items(self._drawn) for m in micros) else (GeneratedBatch(2), *micros[1:])

    def predicted(self, draw: st.DrawFn) -> GeneratedBatch:
        """A micro-batch to be evaluated, of which sizes, magnitudes and equal values are of interest."""
        size = draw(st.sampled_from([1, 2, 3] * 5 + self._large))
        seed, rare = draw(st.integers(0, 9)), draw(st.integers(0, 7))
        if rare == 0 and not self._drawn.integer_inputs:
            return GeneratedBatch(size, seed, magnitude=draw(st.sampled_from(MAGNITUDES)))
        return GeneratedBatch(size, seed, constant=rare == 1)

    def _sizes(self, draw: st.DrawFn, count: int) -> list[int]:
        """Sizes that add up to a power of two, so that means over a window are exact."""
        total = draw(st.sampled_from([total for total in (2, 4, 8, 32) if total >= count]))
        ends = sorted(draw(st.permutations(range(1, total)))[: count - 1])
        return [end - start for start, end in zip([0, *ends], [*ends, total], strict=True)]

    def _one(self, draw: st.DrawFn) -> GeneratedBatch:
        seed, rare = draw(st.integers(0, 99)), draw(st.integers(0, 3 if self._moving else 7))
        many = draw(st.integers(0, 23)) == 0
        size = draw(st.sampled_from(self._large if many else self._small))
        if not self._drawn.integer_inputs and rare < 2:
            spoilt = draw(st.sampled_from([math.inf, -math.inf, math.nan])) if self._dynamic and rare == 0 else None
            if rare == 1 and draw(st.booleans()):
                return GeneratedBatch(size, seed, constant=True)
            return GeneratedBatch(size, seed, magnitude=draw(st.sampled_from(self._magnitudes)), spoilt=spoilt)
        constant = self._drawn.integer_inputs and (rare < 2 or (many and draw(st.booleans())))
        if self._drawn.token_level:
            masks: list[MaskKind] = ["none", "ragged", "holes", "empty"]
            return GeneratedBatch(size, seed, draw(st.sampled_from(masks)), constant=constant)
        if self._missing and len(self._drawn.losses) > 1 and draw(st.integers(0, 3)) == 0:
            return GeneratedBatch(size, seed, heads=(draw(st.sampled_from([name for name, _ in self._drawn.losses])),))
        return GeneratedBatch(size, seed, constant=constant)
