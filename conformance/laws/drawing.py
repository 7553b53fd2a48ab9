"""Draws cases, and programs of verbs that make sense one after the other."""

from __future__ import annotations

import math
from dataclasses import replace

from hypothesis import strategies as st

from conformance.laws.drawing_recipes import PRECISIONS, offered, recipes
from conformance.laws.grammar import LARGE, models
from conformance.laws.programs import (
    Accumulate,
    Apply,
    Break,
    CountBytes,
    Damage,
    DrawnBatch,
    DrawnCase,
    DrawnModel,
    Feed,
    Given,
    Gradients,
    MaskKind,
    OpenScope,
    Predict,
    Restore,
    RestoreDamaged,
    Save,
    Spike,
    StartAgain,
    Target,
    TraceLayers,
    Train,
    Verb,
    Way,
)
from fixtures.layers import BatchNorm, walk
from fixtures.recipe import (
    DynamicScaling,
    Recipe,
)
from frameworks.contract import Capability, Framework

TARGETS: tuple[Target, ...] = ("same", "fresh", "used", "predicted", "skipped", "stopped")
MANY = 67
"""Samples of a micro-batch that is too large for what is done in blocks of 64."""
_SLOTS = st.integers(0, 2)
"""Where runs are saved, so that one save often comes after another one of another kind."""
LONGEST = 8
"""Steps that a program is drawn from; a window that is spelt out is one of them."""


@st.composite
def _programs(draw: st.DrawFn, steps: _Steps) -> tuple[Verb, ...]:
    verbs: list[Verb] = [StartAgain()]
    chosen = draw(_repertoires(steps))
    between: set[int] = set()
    for _ in range(draw(st.integers(1, LONGEST))):
        words = [word for word in steps.words(bool(between)) if word in chosen]
        step = draw(st.sampled_from(words))
        new = steps.verbs(draw, step, sorted(between))
        between = steps.saved_between_windows(between, step, new)
        verbs += new
    return tuple(verbs)


@st.composite
def _repertoires(draw: st.DrawFn, steps: _Steps) -> frozenset[str]:
    """What steps a program is made of: all, or a few, which then meet each other more often.

    Source: Groce et al., "Swarm testing", ISSTA 2012.
    """
    every = sorted({*steps.words(saved=True)})
    if draw(st.integers(0, 3)) == 0:
        return frozenset(every)
    updates = [word for word in every if word in ("train", "feed", "window")]
    few = draw(st.lists(st.sampled_from(every), min_size=1, max_size=4))
    loads = {"save", "restore"} if draw(st.booleans()) else {"save"}
    return frozenset({draw(st.sampled_from(updates)), *few, *(loads & {*every})})


@st.composite
def cases(draw: st.DrawFn, framework: Framework, dropout: bool = False) -> DrawnCase:
    """A model, a recipe and a program."""
    drawn = draw(models(framework, dropout))
    recipe = draw(recipes(framework, drawn))
    even = recipe.accumulation > 1 and draw(st.booleans())
    return DrawnCase(drawn, recipe, draw(_programs(_Steps(framework, drawn, recipe, even))))


class _Steps:
    """The steps that a program for one model and recipe is made of.

    Attributes:
        even: whether the micro-batches of a window are of one size, so that any way of weighing them is the same.
    """

    def __init__(self, framework: Framework, drawn: DrawnModel, recipe: Recipe, even: bool) -> None:
        self.framework, self.drawn, self.recipe, self.even = framework, drawn, recipe, even

        def supports(capability: Capability) -> bool:
            return framework.declares(capability).supported

        flushes = framework.conventions().remainder == "flush"
        self.flush = recipe.accumulation > 1 and supports(Capability.PARTIAL_WINDOW) and flushes
        self.spelt = supports(Capability.ACCUMULATION)
        self.dynamic = isinstance(recipe.scaling, DynamicScaling) and recipe.scaling.enabled
        self.feed, self.checkpoint = supports(Capability.FEED), supports(Capability.CHECKPOINT)
        self.unscale = supports(Capability.EXPLICIT_UNSCALE) and recipe.scaling is not None
        self.second_unscale = supports(Capability.SECOND_UNSCALE)
        self.scope = supports(Capability.AUTOCAST_SCOPE)
        biased = framework.conventions().running_variance == "biased"
        self.several = not biased and any(isinstance(layer, BatchNorm) for _, layer in walk(drawn.layers))
        self.trace, self.count = supports(Capability.TRACE), supports(Capability.SAVED_BYTES)
        self.breaks = not drawn.token_level and not drawn.integer_inputs
        self.by_itself = framework.conventions().remainder != "flush"
        self.missing = supports(Capability.MISSING_GRADIENTS)
        sizes = [math.prod(shape) for shape in drawn.model.parameter_shapes().values()]
        self.large = max(sizes) >= LARGE
        self.places = [i / 16 for i in range(16)] + [sizes.index(max(sizes)) / len(sizes)] * 8
        self.formats = [p.format for p in PRECISIONS if p.level == "O1" and offered(framework, Recipe(precision=p))]

    def words(self, saved: bool) -> list[str]:
        """What may come next, the likelier the more often."""
        steps = ["train", "train", "train", "gradients", "predict", "start-again"]
        steps += ["window"] * 2 if self.spelt else []
        steps += ["feed"] * 3 if self.feed else []
        steps += ["save"] if self.checkpoint else []
        steps += ["restore", "restore", "damaged"] if saved else []
        steps += ["trace"] if self.trace and self.recipe.recompute is None else []
        steps += ["bytes"] if self.count else []
        steps += ["averaged"] * 2 if self.recipe.average is not None else []
        steps += ["break", "break-update"] if self.breaks else []
        steps += ["scope"] if self.scope and self.formats else []
        return steps

    def verbs(self, draw: st.DrawFn, step: str, saved: list[int]) -> list[Verb]:
        """The verbs of a step; `saved` are the slots that hold a run between two windows."""
        match step:
            case "window":
                return self._window(draw)
            case "save":
                return [*self._look(draw), Save(draw(_SLOTS))]
            case "restore":
                where, into = draw(st.sampled_from(saved)), draw(st.sampled_from(self._targets()))
                return [Restore(where, into), *self._look(draw)]
            case "damaged":
                return [self._damaged(draw, draw(st.sampled_from(saved)))]
        return [self._verb(draw, step)]

    def saved_between_windows(self, slots: set[int], step: str, verbs: list[Verb]) -> set[int]:
        """The slots that hold a run between two windows after a step: a window's saves are of an open one."""
        written = {verb.slot for verb in verbs if isinstance(verb, Save)}
        return slots - written if step == "window" else slots | written

    def _look(self, draw: st.DrawFn) -> list[Verb]:
        """What may come right before a save or after a load: often nothing, else what reads the run."""
        looks = ["averaged"] * 3 if self.recipe.average is not None else []
        looks += ["predict", "gradients"] + ["trace"] * (self.trace and self.recipe.recompute is None)
        return [self._verb(draw, draw(st.sampled_from(looks)))] if draw(st.booleans()) else []

    def _verb(self, draw: st.DrawFn, step: str) -> Verb:
        match step:
            case "train":
                return Train(self._micros(draw, self.recipe.accumulation))
            case "feed":
                return self._feed(draw)
            case "gradients":
                return Gradients(self._micros(draw, draw(st.integers(1, self.recipe.accumulation))))
            case "predict" | "averaged":
                return Predict(DrawnBatch(draw(st.integers(1, 3)), draw(st.integers(0, 9))), step == "averaged")
            case "start-again":
                return StartAgain(draw(st.integers(0, 3)) == 0)
            case "trace":
                return TraceLayers(*self._micros(draw, 1))
            case "bytes":
                return CountBytes(DrawnBatch(draw(st.integers(2, 4)), draw(st.integers(0, 9))))
            case "break":
                ways: list[Way] = ["accumulate", "predict"]
                return Break(DrawnBatch(2, draw(st.integers(0, 9))), draw(st.sampled_from(ways)))
            case "break-update":
                others: list[Way] = ["update", "gradients"]
                return Break(DrawnBatch(2, draw(st.integers(0, 9))), draw(st.sampled_from(others)))
            case _:
                return OpenScope(draw(st.sampled_from(self.formats)), draw(st.booleans()), draw(st.booleans()))

    def _targets(self) -> list[Target]:
        left_out = {
            *(() if self.dynamic and self.feed else ("skipped",)),
            *(() if self.recipe.accumulation > 1 else ("stopped",)),
        }
        return [target for target in TARGETS if target not in left_out]

    def _micros(self, draw: st.DrawFn, count: int) -> tuple[DrawnBatch, ...]:
        micros = tuple(self._micro(draw) for _ in range(count))
        if self.drawn.exact and draw(st.booleans()):
            micros = tuple(
                replace(micro, size=size) for micro, size in zip(micros, self._sizes(draw, count), strict=True)
            )
        if self.even:
            micros = tuple(replace(micro, size=micros[0].size, mask="none") for micro in micros)
        return micros if any(self._items(m) for m in micros) else (DrawnBatch(2), *micros[1:])

    def _sizes(self, draw: st.DrawFn, count: int) -> list[int]:
        """Sizes that add up to a power of two, so that means over a window are exact."""
        total = draw(st.sampled_from([total for total in (2, 4, 8) if total >= count]))
        ends = sorted(draw(st.permutations(range(1, total)))[: count - 1])
        return [end - start for start, end in zip([0, *ends], [*ends, total], strict=True)]

    def _micro(self, draw: st.DrawFn) -> DrawnBatch:
        size, seed = draw(st.sampled_from([2, 2, 3, 4, 5] + [1] * (not self.several))), draw(st.integers(0, 99))
        size = MANY if draw(st.integers(0, 23)) == 0 else size
        rare = draw(st.integers(0, 7))
        if not self.drawn.integer_inputs and rare < 2:
            spoilt = math.inf if self.dynamic and rare == 0 else None
            if rare == 1 and draw(st.booleans()):
                return DrawnBatch(size, seed, constant=True)
            return DrawnBatch(size, seed, magnitude=draw(st.sampled_from([-10, 4, 9])), spoilt=spoilt)
        if self.drawn.token_level:
            masks: list[MaskKind] = ["none", "ragged", "ragged", "empty"]
            mask = draw(st.sampled_from(masks))
            return DrawnBatch(size, seed, mask, constant=rare == 2)
        if self.missing and len(self.drawn.losses) > 1 and draw(st.integers(0, 3)) == 0:
            return DrawnBatch(size, seed, heads=(draw(st.sampled_from([name for name, _ in self.drawn.losses])),))
        return DrawnBatch(size, seed)

    def _items(self, micro: DrawnBatch) -> int:
        return micro.batch(self.drawn).items

    def _window(self, draw: st.DrawFn) -> list[Verb]:
        """A window in its micro-batches, with other verbs between them, ended, flushed or left open by a new run."""
        k = self.recipe.accumulation
        count = draw(st.integers(1, k)) if self.flush else k
        micros = self._micros(draw, count)
        items = sum(self._items(micro) for micro in micros)
        verbs: list[Verb] = []
        for place, micro in enumerate(micros):
            if place:
                verbs += self._between(draw, micro, items, last=place == k - 1)
            verbs.append(Accumulate(micro, items))
        if not self.by_itself:
            verbs += self._between(draw, micros[-1], items, last=True)
        return [*verbs, Apply(flush=count < k)]

    def _between(self, draw: st.DrawFn, micro: DrawnBatch, items: int, last: bool) -> list[Verb]:
        """A verb that changes nothing, inside a window; `last` if one micro-batch more would end it."""
        kinds = ["nothing", "nothing", "predict"] + (["save", "save"] if self.checkpoint else [])
        kinds += ["damaged"] if self.checkpoint else []
        kinds += ["averaged"] if self.recipe.average is not None else []
        kinds += ["break"] if self.breaks else []
        kinds += ["trace"] if self.trace and self.recipe.recompute is None else []
        kinds += ["bytes"] if self.count else []
        match draw(st.sampled_from(kinds)):
            case "nothing":
                return []
            case "save":
                slot = draw(_SLOTS)
                into = draw(st.sampled_from(self._targets()))
                again: list[Verb] = [Accumulate(micro, items)] if draw(st.booleans()) and not last else []
                return [Save(slot), *again, Restore(slot, into)]
            case "damaged":
                slot = draw(_SLOTS)
                return [Save(slot), self._damaged(draw, slot)]
            case kind:
                return [self._verb(draw, kind)]

    def _damaged(self, draw: st.DrawFn, slot: int) -> RestoreDamaged:
        damages: list[Damage] = ["cut", "foreign", "missing"]
        return RestoreDamaged(slot, draw(st.sampled_from(damages)), draw(st.sampled_from([0.0, 0.5, 0.99])))

    def _feed(self, draw: st.DrawFn) -> Feed:
        window = tuple(self._given(draw) for _ in range(self.recipe.accumulation))
        if not self.unscale:
            return Feed(window, times=draw(st.sampled_from([1] * 12 + [7] * 3 + [140])))
        match draw(st.sampled_from(["plain", "plain", "plain", "by-hand", "twice", "abandon", "poison", "often"])):
            case "by-hand":
                return Feed(window, unscale_calls=1)
            case "twice":
                return Feed(window, unscale_calls=2 if self.second_unscale else 1)
            case "abandon":
                return Feed(window, abandon=True)
            case "poison":
                poison = Given(0.0, (Spike(draw(st.sampled_from([math.inf, math.nan, 0.5])), 0.5, 0.5),))
                return Feed(tuple(replace(given, missing=None) for given in window), poison=poison)
            case "often":
                return Feed(window, times=draw(st.sampled_from([7, 7, 7, 140])))
            case _:
                return Feed(window)

    def _given(self, draw: st.DrawFn) -> Given:
        base = draw(st.sampled_from([0.0, 0.25, 1.0, -0.5, 2.0**-14, 2.0**-24]))
        rare = [math.inf, -math.inf, math.nan, 2.0**127, -(2.0**120), 2.0**15] if self.dynamic else [2.0**10]
        spikes = draw(
            st.lists(
                st.builds(
                    Spike,
                    st.sampled_from([*rare, 1.0, 2.0**-20]),
                    st.sampled_from(self.places),
                    st.sampled_from([0.0, 0.3, 0.5, 0.999999]),
                ),
                max_size=2 if self.large or draw(st.integers(0, 2)) == 0 else 0,
            )
        )
        missing = draw(st.sampled_from([None, None, None, 0.0, 0.5, 0.99])) if self.missing else None
        return Given(base, tuple(spikes), missing)
