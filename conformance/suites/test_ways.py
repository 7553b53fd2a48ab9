"""Other public calls and options of a technique train as its default ones do."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any, Literal

from conformance.judging import combinations
from conformance.judging.covering_array import Row, rows
from conformance.judging.kit import Subject, Verdict, clause, full, need, spiked
from conformance.judging.meshes import PAIRS, declared, one_place, shared, windows_of
from fixtures.data import exact_batch
from fixtures.model import Model
from fixtures.models import exact_linear, exact_stack, reused
from fixtures.recipe import BFLOAT16, LEVELS_OF, SGD, DynamicScaling, Ranks, Recipe, Recompute, Steps
from frameworks.contract import Capability, Company, Unsupported, model_needs, needs
from frameworks.ways import Way, watched

WANTED: dict[str, tuple[str, Any]] = {
    "autocast": ("precision", BFLOAT16),
    "average": ("average", 0.5),
    "clip": ("clip", 0.25),
    "recompute": ("recompute", Recompute(2)),
    "scaling": ("scaling", DynamicScaling(initial=16.0, interval=2)),
    "schedule": ("schedule", Steps((1, 3), (1.0, 0.5, 0.25))),
}
"""The field of a recipe, and a value, by the technique that they use."""

SINGLE = ("clip", "scaling", "schedule")
"""Techniques that some frameworks offer for windows of one micro-batch alone, or count by micro-batches."""

OF_OPTIMIZERS = ("load", "optimizer", "save")
"""Techniques whose ways see all optimizers of a run."""

ROUNDING = ("average", "clip")
"""Techniques whose ways may round differently where values have more than a few bits."""


def _using(recipe: Recipe, technique: str) -> Recipe:
    """The recipe, changed if it does not use the technique, or scales losses by a constant."""
    constant = technique == "scaling" and not isinstance(recipe.scaling, DynamicScaling)
    if recipe.uses(technique) and not constant:
        return recipe
    name, value = WANTED[technique]
    return recipe.but(**{name: value})


@clause("composition.ways")
def test_a_way_trains_as_the_oracle_does(subject: Subject, verdict: Verdict, way: Way, tmp_path: Path) -> None:
    with watched(way) as calls:
        for row in _rows(subject, way):
            try:
                made = len(verdict.checks)
                combinations.compare(subject, verdict, row, tmp_path / row.label)
            except Unsupported:
                continue
            except Exception:
                if not _fails_by_default(subject, row, tmp_path / "default"):
                    raise
                del verdict.checks[made:]
                continue
            break
        else:
            verdict.holds(False, f"rows that {way} can train", 0, "one or more", "no-row")
    verdict.equal(calls.missing, (), "calls of the way that were not made", "way-not-used")


_failing: set[Row] = set()
"""Rows that fail by the default ways, as far as this process has met them."""


def _fails_by_default(subject: Subject, row: Row, folder: Path) -> bool:
    """Whether the row fails by the default ways too, which is the matter of `composition.pairs`."""
    usual = row.but(ways=())
    try:
        combinations.compare(subject, Verdict(), usual, folder / row.label)
    except Exception:
        _failing.add(usual)
    return usual in _failing


def _rows(subject: Subject, way: Way) -> Iterator[Row]:
    """Rows that use the technique, then the others, from another place of the array for each way."""
    array = [row for row in rows(subject.framework) if row.recipe.ranks is None]
    start = sum(map(ord, str(way))) % len(array)
    turned = [*array[start:], *array[:start]]
    for row in sorted(turned, key=lambda row: not row.recipe.uses(way.technique)):
        recipe = _using(row.recipe, way.technique)
        fields = {name: getattr(recipe, name) for name, _ in WANTED.values()}
        if row.but(**fields, ways=()) not in _failing:
            yield row.but(**fields, ways=(str(way),))


@clause("composition.ways")
def test_a_way_keeps_the_state_of_the_default_way(subject: Subject, verdict: Verdict, way: Way, tmp_path: Path) -> None:
    _same_states(subject, verdict, way, 1, tmp_path / "one")
    two = subject.framework.declares(Capability.TWO_OPTIMIZERS).supported
    if two and way.technique in OF_OPTIMIZERS:
        _same_states(subject, verdict, way, 2, tmp_path / "two")


def _same_states(subject: Subject, verdict: Verdict, way: Way, optimizers: Literal[1, 2], folder: Path) -> None:
    """Compares the states of runs with one or two optimizers by the way and by the default way."""
    recipe, rounds = _recipe(subject, way, optimizers), way.technique in ROUNDING
    model, window = exact_linear() if rounds else exact_stack(), exact_batch(16, seed=1).into(recipe.accumulation)
    other, usual = (subject.trainer(model, recipe.but(ways=ways)) for ways in ((str(way),), ()))
    for place, value in enumerate((0.5, math.inf, 0.5, 0.25), start=1):
        for trainer in (other, usual):
            if not rounds and value != math.inf:
                trainer.update(window)
            if value != math.inf or recipe.scaling is not None:
                trainer.feed(*[spiked(trainer, value)] * recipe.accumulation)
        zeroed = ("accumulator/",) if way.technique == "zero-grad" else ()
        verdict.same_state(
            subject.state(other),
            subject.state(usual),
            f"state after update {place}, by {way} and by the default way",
            but=zeroed,
        )
    other.save(folder)
    again = subject.trainer(model, recipe.but(ways=(str(way),)))
    again.restore(folder)
    verdict.same_state(subject.state(again), subject.state(other), f"state after a save and a load by {way}")


def _recipe(subject: Subject, way: Way, optimizers: Literal[1, 2]) -> Recipe:
    """A recipe that uses as much as the framework declares, and the way's technique in any case.

    Two optimizers get no momentum, so that they have no state, and no schedule with a loss scale, which is open.
    """
    chosen = Recipe(SGD(2.0**-4, momentum=0.5 if optimizers == 1 else 0.0), optimizers=optimizers)
    chosen = chosen.but(accumulation=1 if way.technique in SINGLE else 2)
    for technique in ("scaling", "schedule", "average") if optimizers == 1 else ("average",):
        larger = _using(chosen, technique)
        if all(subject.framework.declares(capability).supported for capability in needs(larger)):
            chosen = larger
    return _using(chosen, way.technique)


@clause("composition.ways")
def test_ranks_of_a_way_keep_the_state_of_the_default_way(
    subject: Subject, verdict: Verdict, rank_way: Way, tmp_path: Path
) -> None:
    meshes = declared(subject, [PAIRS[level] for level in LEVELS_OF[rank_way.technique]])
    need(subject, *(() if meshes else Capability.of_ranks(PAIRS[LEVELS_OF[rank_way.technique][0]])))
    models = [
        model
        for model in (exact_stack(), reused())
        if all(subject.framework.declares(capability).supported for capability in model_needs(model))
    ]
    for ranks, model in product(meshes, models):
        _same_ranks(subject, verdict, rank_way, model, ranks, tmp_path / f"{ranks.label}-{len(model.layers)}")


def _same_ranks(subject: Subject, verdict: Verdict, way: Way, model: Model, ranks: Ranks, folder: Path) -> None:
    """Compares the states of ranks by the way and by the default way, over uneven micro-batches and skipped updates.

    At rate 0 the weights keep their few bits while momentum adds up the gradients, so that these are exact.
    """
    recipe = Recipe(SGD(2.0**-4, momentum=0.5), ranks=ranks, schedule=Steps((2,), (0.0, 1.0)))
    scaled = recipe.but(scaling=DynamicScaling(initial=16.0, interval=2))
    if all(subject.framework.declares(capability).supported for capability in needs(scaled)):
        recipe = scaled
    recipe = _accumulating(subject, model, recipe)
    other, usual = (subject.company(model, recipe.but(ways=ways)) for ways in ((str(way),), ()))
    for place, sizes in enumerate(((3, 1), (2, 2), (1, 3)), start=1):
        parts = (exact_batch(4, *_sizes(model), seed=place + 10 * n) for n in range(recipe.accumulation))
        windows = windows_of(*[shared(part, *sizes) for part in parts])
        _, _ = other.update(windows), usual.update(windows)
        _each_state(verdict, other, usual, f"after update {place}, by {way} and by the default way, {ranks.label}")
    one = one_place(subject, model, recipe.but(scaling=None))
    for value in (math.inf, 0.5) if recipe.scaling is not None else (0.5,):
        gradients = (full(one, value), full(one, 1.0))
        for company in (other, usual):
            company.feed([[gradient] * recipe.accumulation for gradient in gradients])
        what = f"after gradients of {value} on one rank, by {way} and by the default way, {ranks.label}"
        _each_state(verdict, other, usual, what)
    other.save(folder)
    again = subject.company(model, recipe.but(ways=(str(way),)))
    again.restore(folder)
    _each_state(verdict, again, other, f"after a save and a load by {way}, {ranks.label}")


def _accumulating(subject: Subject, model: Model, recipe: Recipe) -> Recipe:
    """The recipe with windows of two micro-batches, where the framework's ranks have them."""
    two = recipe.but(accumulation=2)
    try:
        subject.company(model, two)
    except Unsupported:
        return recipe
    return two


def _sizes(model: Model) -> tuple[int, int]:
    """Widths of the model's inputs and targets."""
    return model.sample[-1], model.heads.heads[0].units


def _each_state(verdict: Verdict, found: Company, expected: Company, what: str) -> None:
    for rank, (own, wanted) in enumerate(zip(found.states(), expected.states(), strict=True)):
        verdict.same_state(own, wanted, f"state of rank {rank} {what}")
