"""Ways: the other public calls and options of a technique train like its default ones."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from conformance.checks import combinations
from conformance.checks.api import Subject, Verdict, clause, full, need, spike_gradients, supports
from conformance.checks.combinations import Row, rows
from conformance.generative.programs.features import recipe_features
from conformance.generative.verdicts import Excluded
from conformance.oracle.bound import Bound
from conformance.techniques.sharding import PAIRS, make_single_run, split_across_ranks, windows_of
from fixtures.arrays import Array
from fixtures.data import exact_batch
from fixtures.model import Batch, BatchNorm, Dense, Model
from fixtures.models import exact_linear, exact_stack, make_reused_dense, two_heads
from fixtures.recipe import BFLOAT16, FLOAT16, SGD, AdamW, DynamicScaling, Optimizer, Ranks, Recipe, Recompute, Steps
from frameworks.contract import Capability, Framework, RankGroup, Trainer, Unsupported, model_needs, needs
from frameworks.ways import Way, watch_calls

States = Sequence[Mapping[str, Array]]

WANTED: dict[str, tuple[str, Any]] = {
    "autocast": ("precision", BFLOAT16),
    "average": ("average", 0.5),
    "clip": ("clip", 0.25),
    "recompute": ("recompute", Recompute(2)),
    "scaling": ("scaling", DynamicScaling(initial=16.0, interval=2)),
    "schedule": ("schedule", Steps((1, 3), (1.0, 0.5, 0.25))),
}
"""By technique, the recipe field that uses it, with a value."""

ROWS = 3
"""Largest number of rows until each call of a way was made: a call may be the constructor of one optimizer."""

SINGLE = ("clip", "scaling", "schedule")
"""Techniques that some frameworks offer only for windows of one micro-batch, or count by micro-batches."""

STATELESS = ("autocast", "backward", "clip", "recompute", "zero-grad")
"""Techniques without a state to save."""

FILES = ("load", "save")
"""Techniques that read and write files."""

AFTER_GRADIENTS = ("average", "load", "optimizer", "save", "schedule")
"""Techniques that start from a window's gradients, whatever their source."""

ROUNDING = ("average", "clip")
"""Techniques whose ways may round differently where values have more than a few bits."""
_failing: set[Row] = set()
"""Rows that this process found to fail by the default ways."""
_VALUES = (0.5, math.inf, 0.5, 0.25, 0.75)
"""Values of one gradient element in successive updates; the infinite one is skipped, so counters end at odd numbers."""
_default_states: dict[tuple[Framework, int, bool, str], list[dict[str, Array]]] = {}
"""Cache of the states of this process's runs by the default way."""
_default_rank_states: dict[tuple[Framework, int, str], list[tuple[str, States]]] = {}
"""Cache of the states of ranks by the default way, in the form of `_updated_ranks`."""


def _using(recipe: Recipe, technique: str) -> Recipe:
    """Return the recipe, changed if it does not use the technique; a constant loss scale does not count as use."""
    constant = technique == "scaling" and not isinstance(recipe.scaling, DynamicScaling)
    if recipe.uses(technique) and not constant:
        return recipe
    name, value = WANTED[technique]
    return recipe.replace(**{name: value})


@clause("composition.ways")
def test_way_matches_oracle(subject: Subject, verdict: Verdict, excluded: Excluded, way: Way, tmp_path: Path) -> None:
    with watch_calls(way) as calls:
        trained = 0
        for row in _rows(subject, way, excluded):
            try:
                start = len(verdict.checks)
                combinations.compare(subject, verdict, row, tmp_path / row.label)
            except Unsupported:
                continue
            except Exception:
                if not _fails_by_default(subject, row, tmp_path / "default"):
                    raise
                del verdict.checks[start:]
                continue
            trained += 1
            if not calls.missing or trained == ROWS:
                break
        verdict.holds(trained > 0, f"rows that {way} can train", trained, "one or more", "no-row")
    verdict.equal(calls.missing, (), "calls of the way that were not made", "way-not-used")


def _fails_by_default(subject: Subject, row: Row, folder: Path) -> bool:
    """Return whether the row fails by the default ways too; that failure belongs to `composition.pairs`."""
    default_row = row.replace(ways=())
    try:
        combinations.compare(subject, Verdict(), default_row, folder / row.label)
    except Exception:
        _failing.add(default_row)
    return default_row in _failing


def _rows(subject: Subject, way: Way, excluded: Excluded) -> Iterator[Row]:
    """Yield rows that use the technique, then the others; each way starts at another row of the array.

    Rows with a known defect come last.
    """
    array = [row for row in rows(subject.framework) if row.recipe.ranks is None]
    start = sum(map(ord, str(way))) % len(array)
    rotated = [*array[start:], *array[:start]]
    changed: list[Row] = []
    for row in sorted(rotated, key=lambda row: not row.recipe.uses(way.technique)):
        recipe = _using(row.recipe, way.technique)
        changed.append(row.replace(**{name: getattr(recipe, name) for name, _ in WANTED.values()}, ways=()))
    for row in sorted(changed, key=lambda row: _is_excluded(row, excluded)):
        if row not in _failing:
            yield row.replace(ways=(str(way),))


def _is_excluded(row: Row, excluded: Excluded) -> bool:
    features = {*recipe_features(row.recipe, row.model.layers)}
    return any(exclusion.leaves_out(features) for exclusion in excluded)


@clause("composition.ways")
def test_way_keeps_state_of_default_way(subject: Subject, verdict: Verdict, way: Way, tmp_path: Path) -> None:
    before = subject.framework.global_state()
    errors: list[Exception] = []
    for label, model, recipe in _cases(subject, way):
        try:
            _same_states(subject, verdict, way, model, recipe, tmp_path / label)
        except Exception as error:
            errors.append(error)
    if errors:  # what was measured comes before what the framework raised
        raise min(errors, key=lambda error: not isinstance(error, AssertionError))
    verdict.equal(subject.framework.global_state(), before, "process-wide settings", "settings-left-behind")


def _cases(subject: Subject, way: Way) -> Iterator[tuple[str, Model, Recipe]]:
    """Yield label, model and recipe of runs in which errors of the technique are visible."""
    recipe, model = _recipe(subject, way, SGD(2.0**-4, momentum=0.5)), exact_stack()
    match way.technique:
        case "recompute":
            yield "dropout", exact_stack(dropout=0.5), recipe
        case "average":
            yield "one-layer", exact_linear(), recipe.replace(average=0.75)
        case "clip":
            yield "one-layer", exact_linear(), recipe
        case "autocast":
            for precision in (BFLOAT16, FLOAT16):
                if _declares(subject, recipe.replace(precision=precision)):
                    yield precision.format, model, recipe.replace(precision=precision)
        case "backward":
            yield "one-head", model, recipe
            yield "two-heads", two_heads(), recipe
        case "load" | "optimizer" | "save" | "zero-grad":
            model = make_norm_model() if way.technique in FILES else model
            adam = _recipe(subject, way, AdamW(2.0**-4, epsilon=1.0, weight_decay=0.5))
            undecayed = adam.replace(undecayed=tuple(model.parameter_shapes())[:1])
            several = next(
                (candidate for candidate in (undecayed.replace(groups=2), undecayed) if _declares(subject, candidate)),
                None,
            )
            yield ("adam", model, adam) if several is None else ("groups", model, several)
            if way.technique == "optimizer" and _declares(subject, clipped := Recipe(SGD(2.0**-4), clip=0.25)):
                yield "clipped", exact_linear(), clipped
            two = Recipe(SGD(2.0**-4), optimizers=2, accumulation=2)  # without a state, in any framework
            if _declares(subject, two):
                yield "two-optimizers", exact_stack(), _using(two, way.technique)
        case _:
            yield "one", model, recipe


def make_norm_model() -> Model:
    """Return a model of a linear layer and batch norm, whose statistics change in training."""
    model = exact_stack()
    return replace(model, name="normed", layers=(Dense(8), BatchNorm(), model.layers[-1]), starts=())


def _declares(subject: Subject, recipe: Recipe) -> bool:
    return supports(subject.framework, *needs(recipe))


def _trains(way: Way) -> bool:
    """Return whether runs of the way train on data, in addition to given gradients."""
    return way.technique not in (*ROUNDING, *AFTER_GRADIENTS)


def _run_updates(
    subject: Subject, trainer: Trainer, way: Way, model: Model, recipe: Recipe
) -> Iterator[dict[str, Array]]:
    """Yield the state after each update of a run, which also trains on data unless the way may round differently."""
    names = list(trainer.parameters())
    batch = exact_batch(16, *_sizes(model), seed=1)
    targets = {head.name: batch.targets["output"] for head in model.heads.heads}
    window = Batch(batch.inputs, targets).into(recipe.accumulation)
    for value, name in zip(_VALUES, (None, None, names[0], names[1], None), strict=True):
        if _trains(way) and recipe.clip is None and value not in (math.inf, _VALUES[-1]):
            trainer.update(window)
        if value != math.inf or recipe.scaling is not None:
            trainer.apply_gradients(*[spike_gradients(trainer, value, name)] * recipe.accumulation)
        yield subject.state(trainer)


def _by_default_way(subject: Subject, model: Model, recipe: Recipe) -> Trainer:
    """Return a run by the default way that is not in the verdict's record, as other tests use its states too."""
    framework = subject.framework
    return type(framework).trainer(framework, model, subject.complete_recipe(recipe.replace(ways=())))


def _same_states(subject: Subject, verdict: Verdict, way: Way, model: Model, recipe: Recipe, folder: Path) -> None:
    """Compare the states of runs by the way and by the default way."""
    reference_states = _default_states.get(
        key := (subject.framework, subject.seed, _trains(way), repr((model, recipe)))
    )
    if reference_states is None:
        reference_states = _default_states[key] = [
            *_run_updates(subject, _by_default_way(subject, model, recipe), way, model, recipe)
        ]
    trainer = subject.trainer(model, recipe.replace(ways=(str(way),)))
    zeroed = ("accumulator/",) if way.technique == "zero-grad" else ()
    saved: dict[str, Array] = {}
    for index, (saved, expected) in enumerate(
        zip(_run_updates(subject, trainer, way, model, recipe), reference_states, strict=True), start=1
    ):
        if index == 1 and way.technique in FILES and recipe.optimizers == 1:
            trainer.save(folder)  # which a later save replaces
        what = f"state after update {index}, by {way} and by the default way"
        if subject.conventions.compiled and isinstance(recipe.optimizer, AdamW):
            _nearly_same(verdict, saved, expected, what)
        else:
            verdict.same_state(saved, expected, what, ignoring=zeroed)
    if way.technique in STATELESS:
        return
    trainer.save(folder)
    runs = [subject.trainer(model, recipe.replace(ways=(str(way),))) for _ in range(1 + (way.technique in FILES))]
    for index, restored in enumerate(runs, start=1):
        restored.restore(folder)
        verdict.same_state(subject.state(restored), saved, f"state after load {index} by {way}")
        restored.apply_gradients(*[spike_gradients(restored, 0.5)] * recipe.accumulation)
    trainer.apply_gradients(*[spike_gradients(trainer, 0.5)] * recipe.accumulation)
    verdict.same_state(subject.state(runs[0]), subject.state(trainer), f"state of an update after a load by {way}")


def _nearly_same(verdict: Verdict, measured: Mapping[str, Array], expected: Mapping[str, Array], what: str) -> None:
    """Compare the states of two compiled programs, which may divide and take roots in different orders."""
    verdict.equal(sorted(measured), sorted(expected), f"entries of the {what}", "entries-differ")
    numbers = {name for name, value in expected.items() if np.issubdtype(value.dtype, np.floating)}
    measured_rest, rest = ({n: v for n, v in state.items() if n not in numbers} for state in (measured, expected))
    verdict.same_state(measured_rest, rest, what)
    for name in sorted(numbers):
        value = expected[name]
        gap = np.max(np.abs(measured[name].astype(np.float64) - value.astype(np.float64)), initial=0.0)
        largest = float(np.max(np.abs(value.astype(np.float64)), initial=0.0))
        bound = Bound(2.0**-16 * largest, {"method": "256 unit roundoffs of float32, of the largest value"})
        verdict.within(float(gap), bound, f"distance of {name}: {what}", "state-differs")


def _recipe(subject: Subject, way: Way, optimizer: Optimizer) -> Recipe:
    """Return a recipe with all techniques that the framework declares, and in any case the way's technique."""
    chosen = Recipe(optimizer, accumulation=1 if way.technique in SINGLE else 2)
    for technique in ("scaling", "schedule", "average"):
        larger = _using(chosen, technique)
        chosen = larger if _declares(subject, larger) else chosen
    return _using(chosen, way.technique)


@clause("composition.ways")
def test_way_keeps_state_of_default_way_over_ranks(
    subject: Subject, verdict: Verdict, rank_way: Way, tmp_path: Path
) -> None:
    twice = supports(subject.framework, *model_needs(make_reused_dense()))
    for level in rank_way.levels or ("replicated" if rank_way.technique == "data-parallel" else "full",):
        ranks = PAIRS[level]
        need(subject, *Capability.of_ranks(ranks))
        _same_ranks(
            subject, verdict, rank_way, make_reused_dense() if twice else exact_stack(), ranks, tmp_path / level
        )


def _same_ranks(subject: Subject, verdict: Verdict, way: Way, model: Model, ranks: Ranks, folder: Path) -> None:
    """Compare the states of ranks by the way and by the default way.

    At rate 0 the weights keep their few bits while momentum adds up the gradients, so that these are exact.
    """
    recipe = Recipe(SGD(2.0**-4, momentum=0.5), ranks=ranks, schedule=Steps((2,), (0.0, 1.0)))
    scaled = recipe.replace(scaling=DynamicScaling(initial=16.0, interval=2))
    recipe = _accumulating(subject, model, scaled if _declares(subject, scaled) else recipe)
    reference_states = _default_rank_states.get(key := (subject.framework, subject.seed, repr((model, recipe))))
    if reference_states is None:
        reference_states = _default_rank_states[key] = [
            *_updated_ranks(subject, subject.rank_group(model, recipe), model, recipe)
        ]
    rank_group = subject.rank_group(model, recipe.replace(ways=(str(way),)))
    for (what, states), (_, expected) in zip(
        _updated_ranks(subject, rank_group, model, recipe), reference_states, strict=True
    ):
        _each_state(verdict, states, expected, f"{what}, by {way} and by the default way, {ranks.label}")
    rank_group.save(folder)
    restored = subject.rank_group(model, recipe.replace(ways=(str(way),)))
    restored.restore(folder)
    _each_state(verdict, restored.states(), rank_group.states(), f"after a save and a load by {way}, {ranks.label}")


def _updated_ranks(
    subject: Subject, rank_group: RankGroup, model: Model, recipe: Recipe
) -> Iterator[tuple[str, States]]:
    """The states of every rank after updates by uneven micro-batches, and after skipped ones; when, and the states."""
    for index, sizes in enumerate(((3, 1), (2, 2), (1, 3)), start=1):
        parts = (exact_batch(4, *_sizes(model), seed=index + 10 * n) for n in range(recipe.accumulation))
        rank_group.update(windows_of(*[split_across_ranks(part, *sizes) for part in parts]))
        yield f"after update {index}", rank_group.states()
    one = make_single_run(subject, model, recipe.replace(scaling=None))
    for value in (math.inf, 0.5) if recipe.scaling is not None else (0.5,):
        rank_group.apply_gradients(
            [[gradient] * recipe.accumulation for gradient in (full(one, value), full(one, 1.0))]
        )
        yield f"after gradients of {value} on one rank", rank_group.states()


def _accumulating(subject: Subject, model: Model, recipe: Recipe) -> Recipe:
    """Return the recipe with windows of two micro-batches if the framework's ranks support them."""
    two = recipe.replace(accumulation=2)
    try:
        subject.rank_group(model, two)
    except Unsupported:
        return recipe
    return two


def _sizes(model: Model) -> tuple[int, int]:
    """Return the widths of the model's inputs and targets."""
    return model.sample[-1], model.heads.heads[0].units


def _each_state(verdict: Verdict, measured: States, expected: States, what: str) -> None:
    for rank, (own, wanted) in enumerate(zip(measured, expected, strict=True)):
        verdict.same_state(own, wanted, f"state of rank {rank} {what}")
