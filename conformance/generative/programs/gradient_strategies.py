"""Generates external gradients for one model and recipe."""

from __future__ import annotations

import math
from dataclasses import replace

from hypothesis import strategies as st

from conformance.generative.programs.batch_strategies import Habits
from conformance.generative.programs.case import ApplyGradients, Spike, SpikedGradient
from conformance.generative.programs.data import GeneratedModel
from conformance.generative.programs.grammar import LARGE
from fixtures.recipe import DynamicScaling, Recipe
from frameworks.contract import Capability, Framework

LAST = 0.999999
"""Where the last value of a parameter is, as a share of them."""
OFTEN, LONG = 7, 300
"""Updates in a row; bfloat16 counts to 256."""

BEYOND_FLOAT32 = 2.0**130
"""Infinite in float32, and finite in float64."""


class Feeds:
    """The update attempts from given gradients that a program for one model and recipe makes.

    Attributes:
        largest: a gradient that only just does not overflow under the scale that the run begins with, None for none.
        counted: whether anything depends on how many updates were applied, as is open of a window without gradients.
    """

    def __init__(self, framework: Framework, drawn: GeneratedModel, recipe: Recipe, habits: Habits) -> None:
        def supports(capability: Capability) -> bool:
            return framework.declares(capability).supported

        scaling = recipe.scaling if isinstance(recipe.scaling, DynamicScaling) and recipe.scaling.enabled else None
        scale = None if scaling is None else scaling.initial
        self._habits = habits
        self._dynamic, self._count, self._two = scaling is not None, recipe.accumulation, recipe.optimizers > 1
        self.largest = None if scale is None or recipe.clip is not None else _largest(recipe) / scale
        self.counted = recipe.schedule is not None or recipe.average is not None
        self._unscale = supports(Capability.EXPLICIT_UNSCALE) and recipe.scaling is not None
        self._second_unscale = supports(Capability.SECOND_UNSCALE)
        self._missing = supports(Capability.MISSING_GRADIENTS)
        wide = any(head.format == "float64" for head in drawn.model.heads.heads)
        self._beyond = [BEYOND_FLOAT32] * 3 if wide else []
        sizes = [math.prod(shape) for shape in drawn.model.parameter_shapes().values()]
        self._large = max(sizes) >= LARGE
        self._longest = LONG if recipe.accumulation == 1 and not self._large else OFTEN
        self._places = [i / 16 for i in range(16)] + [sizes.index(max(sizes)) / len(sizes)] * 8

    def apply_gradients(self, draw: st.DrawFn) -> ApplyGradients:
        """One attempt, or several in a row."""
        window = tuple(self._given(draw) for _ in range(self._count))
        if self._large and self._dynamic and draw(st.booleans()):
            window = self._with_one_at_the_end(draw)
        if self._missing and not self.counted and draw(st.integers(0, 11)) == 0:
            return ApplyGradients((SpikedGradient(0.0, nothing=True),) * len(window))
        if not self._unscale:
            return ApplyGradients(window, times=draw(st.sampled_from([1] * 12 + [OFTEN] * 3 + [self._longest])))
        match draw(st.sampled_from(["plain", "plain", "plain", "by-hand", "twice", "abandon", "poison", "often"])):
            case "by-hand":
                return ApplyGradients(window, unscale_calls=1)
            case "twice":
                return ApplyGradients(window, unscale_calls=2 if self._second_unscale else 1)
            case "abandon":
                return ApplyGradients(self._overflowing(draw, window), discard=True)
            case "poison":
                inject = SpikedGradient(0.0, (Spike(draw(st.sampled_from([math.inf, math.nan, 0.5])), 0.5, 0.5),))
                return ApplyGradients(tuple(replace(given, missing=None) for given in window), inject=inject)
            case "often":
                return ApplyGradients(window, times=draw(st.sampled_from([OFTEN] * 3 + [self._longest])))
            case _:
                return ApplyGradients(window)

    def _with_one_at_the_end(self, draw: st.DrawFn) -> tuple[SpikedGradient, ...]:
        """A window of which a single value is not finite, the last one of the largest parameter."""
        spike = Spike(draw(st.sampled_from([math.inf, math.nan])), self._places[-1], LAST)
        plain = SpikedGradient(0.25, missing=self._habits.missing)
        return (*[plain] * (self._count - 1), replace(plain, spikes=(spike,)))

    def _overflowing(self, draw: st.DrawFn, window: tuple[SpikedGradient, ...]) -> tuple[SpikedGradient, ...]:
        """The window; with two optimizers, often one in which a single parameter alone overflows."""
        if not (self._two and self._dynamic and draw(st.booleans())):
            return window
        return (SpikedGradient(0.25, (Spike(math.inf, draw(st.sampled_from(self._places)), 0.5),)), *window[1:])

    def _given(self, draw: st.DrawFn) -> SpikedGradient:
        base = draw(st.sampled_from([0.0, 0.25, 0.3, 1.0, -0.5, 2.0**-14, 2.0**-24]))
        if self.largest is not None and draw(st.integers(0, 15)) == 0:
            return SpikedGradient(self.largest)
        rare = (
            [math.inf, -math.inf, math.nan, 2.0**127, -(2.0**120), 2.0**15, *self._beyond]
            if self._dynamic
            else [2.0**10]
        )
        spikes = draw(
            st.lists(
                st.builds(
                    Spike,
                    st.sampled_from([*rare, 1.0, 2.0**-20]),
                    st.sampled_from(self._places),
                    st.sampled_from([0.0, 0.3, 0.5, LAST]),
                ),
                max_size=2 if self._large or draw(st.booleans()) else 0,
            )
        )
        missing = self._habits.missing
        if missing is None and self._missing:
            missing = draw(st.sampled_from([None, None, None, 0.0, 0.5, 0.99]))
        return SpikedGradient(base, tuple(spikes), missing)


def _largest(recipe: Recipe) -> float:
    """The largest power of two that gradients can be, so that the sum of two is infinite."""
    narrow = recipe.precision.level in ("O2", "O3") and recipe.precision.format == "float16"
    return 2.0**15 if narrow else 2.0**127
