"""Laws of saving and loading: whatever mix of techniques a run uses and wherever it is cut, it goes on as it was."""

from __future__ import annotations

import math
from dataclasses import astuple, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import strategies as st

from conformance.judging.kit import Subject, Verdict, clause, full, spiked
from conformance.judging.laws import explore
from fixtures.data import exact_batch
from fixtures.models import exact_stack, scalar
from fixtures.recipe import (
    BFLOAT16,
    FLOAT16,
    FLOAT32,
    MASTERED,
    SGD,
    Adam,
    AdamW,
    DynamicScaling,
    Recipe,
    Recompute,
    Steps,
)
from frameworks.contract import Trainer

SCALING = DynamicScaling(initial=2.0**10, interval=3)
RECIPES = st.builds(
    Recipe,
    optimizer=st.sampled_from([SGD(2.0**-6, momentum=0.5), Adam(1e-3), AdamW(1e-3, weight_decay=0.01)]),
    precision=st.sampled_from([FLOAT32, FLOAT32, BFLOAT16, FLOAT16, *MASTERED]),
    scaling=st.sampled_from([None, SCALING]),
    accumulation=st.sampled_from([1, 2, 4]),
    recompute=st.sampled_from([None, Recompute(2)]),
    clip=st.sampled_from([None, 2.0]),
    schedule=st.sampled_from([None, Steps((1, 3), (1.0, 0.5, 0.25))]),
)


@dataclass(frozen=True)
class Cut:
    """A run of a recipe that is saved after so many whole windows and so many micro-batches of the next one."""

    recipe: Recipe
    windows: int
    micro_batches: int = 0


@st.composite
def cuts(draw: st.DrawFn, inside: bool) -> Cut:
    """Runs that are saved after 1 to 3 windows or, with `inside`, in the middle of a window after 0 to 2."""
    recipe = draw(RECIPES)
    if not inside:
        return Cut(recipe, draw(st.integers(1, 3)))
    recipe = recipe.but(accumulation=draw(st.sampled_from([2, 4])))
    return Cut(recipe, draw(st.integers(0, 2)), draw(st.integers(1, recipe.accumulation - 1)))


def hold(subject: Subject, verdict: Verdict, case: Cut, signature: str) -> None:
    """Saves a run where the case says, goes on with it and with the one that is loaded, and compares everything."""
    k, model = case.recipe.accumulation, exact_stack(depth=2)
    through, resumed = (subject.trainer(model, case.recipe) for _ in range(2))
    for window in range(case.windows):
        through.update(exact_batch(8, seed=window).into(k))
    parts = exact_batch(8, seed=case.windows).into(k)
    for part in parts[: case.micro_batches]:
        through.accumulate(part, 8)
    with TemporaryDirectory() as folder:
        try:
            through.save(Path(folder))
        except (RuntimeError, ValueError) as refusal:
            verdict.holds(case.micro_batches > 0, "a save is refused inside a window only", str(refusal), "", signature)
            return
        resumed.restore(Path(folder))
    verdict.same_state(subject.state(resumed), subject.state(through), "whole state right after the load", signature)
    ends = []
    for run in (through, resumed):
        for part in parts[case.micro_batches :]:
            run.accumulate(part, 8)
        ends.append([astuple(run.apply()), astuple(run.update(exact_batch(8, seed=9).into(k)))])
    verdict.equal(ends[1], ends[0], "what the next two updates report", signature)
    verdict.same_state(subject.state(resumed), subject.state(through), "whole state two updates later", signature)


@clause("resume.bit-identical")
@explore(cuts(inside=False), examples=4)
def test_a_run_of_any_techniques_goes_on_as_it_was(subject: Subject, verdict: Verdict, case: Cut) -> None:
    hold(subject, verdict, case, "run-differs")


@clause("resume.mid-window")
@explore(cuts(inside=True), examples=4)
def test_a_window_that_is_cut_anywhere_is_whole_or_refused(subject: Subject, verdict: Verdict, case: Cut) -> None:
    hold(subject, verdict, case, "partial-window-lost")


@dataclass(frozen=True)
class Script:
    """What the last gradient of each update is, and after how many updates the run is saved."""

    values: tuple[float, ...]
    saved_after: int


@st.composite
def scripts(draw: st.DrawFn) -> Script:
    """3 to 10 updates, some of which overflow, and a save among them."""
    value = st.sampled_from([0.25, 0.25, 0.25, math.inf, math.nan])
    values = draw(st.lists(value, min_size=3, max_size=10))
    return Script(tuple(values), draw(st.integers(1, len(values) - 1)))


@clause("resume.scaler-state")
@explore(scripts(), examples=5)
def test_the_scale_goes_on_from_any_update(subject: Subject, verdict: Verdict, case: Script) -> None:
    recipe = Recipe(SGD(2.0**-6), scaling=DynamicScaling(initial=2.0**10, interval=2))
    through, resumed = (subject.trainer(scalar(), recipe) for _ in range(2))
    for value in case.values[: case.saved_after]:
        fed(through, value)
    with TemporaryDirectory() as folder:
        through.save(Path(folder))
        resumed.restore(Path(folder))
    verdict.same_state(subject.state(resumed), subject.state(through), "whole state right after the load")
    rest = case.values[case.saved_after :]
    expected, measured = ([fed(run, value) for value in rest] for run in (through, resumed))
    verdict.equal(measured, expected, "scale, growth counter and skips after the load", "scale-differs")


def fed(trainer: Trainer, value: float) -> tuple[float, int | None, bool]:
    """One feed: the scale after it, the growth counter, and whether it was skipped."""
    update = trainer.feed(full(trainer, value) if math.isfinite(value) else spiked(trainer, value))
    return update.scale_after, update.good_steps, update.skipped
