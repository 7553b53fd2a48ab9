"""Generates cases, with programs of verbs in a meaningful order."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st

from conformance.generative.programs.batch_strategies import Batches, Habits, habits
from conformance.generative.programs.case import (
    Accumulate,
    Apply,
    ApplyGradients,
    CountBytes,
    Damage,
    DamageOffloaded,
    GeneratedCase,
    Gradients,
    OpenScope,
    Predict,
    Restore,
    RestoreDamaged,
    RestoreOverrides,
    Save,
    StartAgain,
    Target,
    TraceLayers,
    Train,
    Verb,
    Way,
    WrongWidth,
)
from conformance.generative.programs.data import GeneratedBatch, GeneratedModel
from conformance.generative.programs.gradient_strategies import LONG, OFTEN, Feeds
from conformance.generative.programs.grammar import models
from conformance.generative.programs.recipe_strategies import PRECISIONS, offered, recipes, techniques_of
from fixtures.layers import BatchNorm
from fixtures.recipe import DynamicScaling, Offload, Ranks, Recipe
from frameworks.contract import Capability, Framework

TARGETS: tuple[Target, ...] = ("same", "fresh", "used", "predicted", "skipped", "stopped")
_SLOTS = st.integers(0, 1)
"""Slots of saves, few enough that saves of different kinds overwrite each other."""
LONGEST = 8
"""Steps of a program; a window with single micro-batches is one of them."""


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
    """Kinds of steps in a program: all, or a few, which then meet more often.

    Source: Groce et al., "Swarm testing", ISSTA 2012.
    """
    every = sorted({*steps.words(saved=True)})
    if draw(st.integers(0, 3)) == 0:
        return frozenset(every)
    updates = [word for word in every if word in ("train", "feed", "window")]
    few = draw(st.lists(st.sampled_from(every), min_size=1, max_size=4))
    loads = draw(st.sampled_from([{"save"}, {"save", "restore"}, {"save", "restore", "start-again"}]))
    return frozenset({draw(st.sampled_from(updates)), *few, *(loads & {*every})})


@st.composite
def cases(draw: st.DrawFn, framework: Framework, dropout: bool = False, subnormal: bool = False) -> GeneratedCase:
    """A model, a recipe and a program.

    Args:
        subnormal: whether inputs may be, which frameworks take for zero or not.
    """
    drawn = draw(models(framework, dropout))
    recipe = draw(recipes(framework, drawn))
    chosen = draw(habits(framework, drawn, recipe))
    return few_files(GeneratedCase(drawn, recipe, draw(_programs(_Steps(framework, drawn, recipe, chosen, subnormal)))))


def few_files(case: GeneratedCase) -> GeneratedCase:
    """The case; offloaded to the host where so many updates would write files by the thousand."""
    if not any(isinstance(verb, Train | ApplyGradients) and verb.times > OFTEN for verb in case.program):
        return case
    case = case.loaded_under(lambda under: replace(under, offload=_to_host(under.offload)))
    return replace(case, recipe=case.recipe.replace(offload=_to_host(case.recipe.offload)))


def _to_host(offload: Offload | None) -> Offload | None:
    return None if offload is None else replace(offload, to="host")


def _others(framework: Framework, recipe: Recipe) -> list[RestoreOverrides]:
    """The ways in which a run that another one saved may go on, if there are any but that one's own."""
    ranks, offloads = recipe.ranks, [None, *techniques_of(framework).offloads]
    moves = [RestoreOverrides(ranks, offload) for offload in offloads if offload != recipe.offload]
    if ranks is None or not framework.declares(Capability.RANKS_RESHAPE).supported:
        return moves
    counts = [Ranks(count, ranks.level, reduce=ranks.reduce) for count in (1, 2, 3, 4) if count != ranks.count]
    return moves + [RestoreOverrides(other, recipe.offload) for other in counts] * 4


def _takes_any_width(drawn: GeneratedModel) -> bool:
    """Whether a batch norm of one value comes first, of which wider inputs are rows, as arrays broadcast."""
    return isinstance(drawn.layers[0], BatchNorm) and drawn.sample == (1,)


class _Steps:
    """The steps that a program for one model and recipe is made of.

    Args:
        subnormal: whether inputs may be.
    """

    def __init__(
        self, framework: Framework, drawn: GeneratedModel, recipe: Recipe, chosen: Habits, subnormal: bool
    ) -> None:
        self.framework, self.drawn, self.recipe = framework, drawn, recipe
        self._batches = Batches(framework, drawn, recipe, chosen, subnormal)
        self._feeds = Feeds(framework, drawn, recipe, chosen)

        def supports(capability: Capability) -> bool:
            return framework.declares(capability).supported

        flushes = framework.conventions().remainder == "flush"
        self.flush = recipe.accumulation > 1 and supports(Capability.PARTIAL_WINDOW) and flushes
        self.spelt = supports(Capability.ACCUMULATION)
        self.dynamic = isinstance(recipe.scaling, DynamicScaling) and recipe.scaling.enabled
        self.feed, self.checkpoint = supports(Capability.FEED), supports(Capability.CHECKPOINT)
        self.scope = supports(Capability.AUTOCAST_SCOPE)
        self.trace = supports(Capability.TRACE) and recipe.recompute is None
        self.count = supports(Capability.SAVED_BYTES)
        self.breaks = not drawn.token_level and not drawn.integer_inputs and not _takes_any_width(drawn)
        self._moves = _others(framework, recipe)
        offload = recipe.offload
        self.offloaded = offload is not None and offload.to == "disk" and offload.what != ("activations",)
        self.by_itself = framework.conventions().remainder != "flush"
        self.formats = [p.format for p in PRECISIONS if p.level == "O1" and offered(framework, Recipe(precision=p))]

    def words(self, saved: bool) -> list[str]:
        """Candidates for the next step, repeated by weight."""
        steps = ["train", "train", "train", "gradients", "predict", "start-again"]
        steps += ["window"] * 2 if self.spelt else []
        steps += ["feed"] * 3 if self.feed else []
        steps += ["save"] if self.checkpoint else []
        steps += ["restore", "restore", "damaged"] if saved else []
        steps += ["trace"] if self.trace else []
        steps += ["damage-offloaded"] * 2 if self.offloaded else []
        steps += ["bytes"] if self.count else []
        steps += ["averaged", "averaged", "train-averaged"] if self.recipe.average is not None else []
        steps += ["relay"] if self.checkpoint else []
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
            case "feed":
                return self._fed(draw)
            case "restore":
                where, into = draw(st.sampled_from(saved)), draw(st.sampled_from(self._targets()))
                under = draw(st.sampled_from([None, *self._moves])) if into != "same" else None
                return [Restore(where, into, under), *self._look(draw)]
            case "damaged":
                return [self._damaged(draw, draw(st.sampled_from(saved)))]
            case "train-averaged":
                return [self._verb(draw, "train"), self._verb(draw, "averaged")]
            case "relay":
                return self._relay(draw)
        return [self._verb(draw, step)]

    def saved_between_windows(self, slots: set[int], step: str, verbs: list[Verb]) -> set[int]:
        """The slots that hold a run between two windows after a step: a window's saves are of an open one."""
        written = {verb.slot for verb in verbs if isinstance(verb, Save)}
        return slots - written if step == "window" else slots | written

    def _relay(self, draw: st.DrawFn) -> list[Verb]:
        """A run that takes over another one's weights at the same count of updates, evaluated before and after."""
        slot, averaged = draw(_SLOTS), self.recipe.average is not None and draw(st.booleans())
        look = Predict(self._batches.predicted(draw), averaged)
        train = [self._verb(draw, "train") for _ in range(2)]
        return [train[0], Save(slot), StartAgain(), train[1], look, Restore(slot, "same"), look]

    def _look(self, draw: st.DrawFn) -> list[Verb]:
        """Verbs right before a save or after a load: often none, otherwise one that reads the run."""
        looks = ["averaged"] * 3 if self.recipe.average is not None else []
        looks += ["predict", "gradients"] + ["trace"] * self.trace
        return [self._verb(draw, draw(st.sampled_from(looks)))] if draw(st.booleans()) else []

    def _verb(self, draw: st.DrawFn, step: str) -> Verb:
        match step:
            case "train":
                return Train(self._batches.window(draw, self.recipe.accumulation))
            case "gradients":
                return Gradients(self._batches.window(draw, draw(st.integers(1, self.recipe.accumulation))))
            case "predict" | "averaged":
                return Predict(self._batches.predicted(draw), step == "averaged")
            case "start-again":
                return StartAgain(draw(st.integers(0, 3)) == 0)
            case "trace":
                return TraceLayers(*self._batches.window(draw, 1))
            case "bytes":
                return CountBytes(GeneratedBatch(draw(st.integers(2, 4)), draw(st.integers(0, 9))))
            case "damage-offloaded":
                places = st.sampled_from([0.0, 0.3, 0.6, 0.99])
                return DamageOffloaded(draw(places), draw(st.none() | places))
            case "break":
                ways: list[Way] = ["accumulate", "predict"]
                ways += ["averaged", "averaged"] if self.recipe.average is not None else []
                return WrongWidth(GeneratedBatch(2, draw(st.integers(0, 9))), draw(st.sampled_from(ways)))
            case "break-update":
                others: list[Way] = ["update", "gradients"]
                others += ["trace"] if self.trace else []
                others += ["bytes"] if self.count else []
                return WrongWidth(GeneratedBatch(2, draw(st.integers(0, 9))), draw(st.sampled_from(others)))
            case _:
                return OpenScope(draw(st.sampled_from(self.formats)), draw(st.booleans()), draw(st.booleans()))

    def _targets(self) -> list[Target]:
        left_out = {
            *(() if self.dynamic and self.feed else ("skipped",)),
            *(() if self.recipe.accumulation > 1 else ("stopped",)),
        }
        return [target for target in TARGETS if target not in left_out]

    def _window(self, draw: st.DrawFn) -> list[Verb]:
        """A window in its micro-batches, with other verbs between them, ended, flushed or left open by a new run."""
        k = self.recipe.accumulation
        count = draw(st.integers(1, k)) if self.flush else k
        micros = self._batches.window(draw, count)
        items = sum(micro.items(self.drawn) for micro in micros)
        verbs: list[Verb] = []
        for place, micro in enumerate(micros):
            if place:
                verbs += self._between(draw, micro, items, last=place == k - 1)
            verbs.append(Accumulate(micro, items))
        if not self.by_itself:
            verbs += self._between(draw, micros[-1], items, last=True)
        return [*verbs, Apply(flush=count < k)]

    def _between(self, draw: st.DrawFn, micro: GeneratedBatch, items: int, last: bool) -> list[Verb]:
        """A verb that changes nothing, within a window; `last` if one more micro-batch would end it."""
        kinds = ["nothing", "nothing", "predict"] + (["save", "save"] if self.checkpoint else [])
        kinds += ["damaged"] if self.checkpoint else []
        kinds += ["averaged"] if self.recipe.average is not None else []
        kinds += ["break"] if self.breaks else []
        kinds += ["trace"] if self.trace else []
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

    def _fed(self, draw: st.DrawFn) -> list[Verb]:
        """Gradients from outside; after so many updates that counts grow long, the run is saved and loaded."""
        feed, slot = self._feeds.apply_gradients(draw), draw(_SLOTS)
        if feed.times < LONG or not self.checkpoint:
            return [feed]
        return [feed, Save(slot), Restore(slot, draw(st.sampled_from(self._targets())))]
