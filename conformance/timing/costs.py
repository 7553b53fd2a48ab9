"""Shared code of the `cost` tests: saved bytes of blocks, and interleaved step times."""

from collections.abc import Callable

import numpy as np

from conformance.checks.api import Subject, Verdict
from conformance.timing.interleaved import interleaved
from fixtures.data import sincos_batch, token_batch, wide_batch
from fixtures.model import Batch, Model
from fixtures.models import blocks, encoder, sincos
from fixtures.recipe import SGD, Recipe, Recompute
from results.compare.ratio import FEWEST, Ratio, ratio

RECIPE = Recipe(SGD(2.0**-10))

Fixture = tuple[Model, Batch]


def saved_bytes(subject: Subject, fixture: Fixture, segments: int, variant: str | None = None) -> int:
    """Saved bytes of a fixture with so many recomputed segments, 0 for no recomputation."""
    model, batch = fixture
    recompute = Recompute(segments, variant=variant) if segments else None
    return subject.trainer(model, RECIPE.replace(recompute=recompute)).saved_bytes(batch)


def equal_blocks(count: int, width: int, rows: int, inputs: int | None = None) -> Fixture:
    """`count` equal blocks and a batch of so many rows for them, of `inputs` columns where these are not the width."""
    return blocks(count, width, inputs), wide_batch(rows, inputs or width)


def products() -> Fixture:
    """A step dominated by products of 2048 × 2048 weights, with a small batch."""
    return equal_blocks(8, 2048, 8192, inputs=16)


def transformer_block() -> Fixture:
    """One block of width 1024 on 16 sequences of 512 tokens."""
    return encoder(1024, 16, 1, 512), token_batch(16, 512, ragged=False)


def example() -> Fixture:
    """The original sine and cosine example: 20,000 points, width 150."""
    return sincos(), sincos_batch()


def compared(
    subject: Subject,
    verdict: Verdict,
    fixture: Fixture,
    technique: Recipe,
    what: str,
    plain: Recipe = RECIPE,
    steps: int = 1,
) -> Ratio:
    """Times steps with and without a technique in pairs; abstains if the plain step differs from itself.

    Args:
        steps: how many of them one sample takes.
    """
    recipes = {"plain": plain, "twin": plain, "technique": technique}
    works = {side: training(subject, fixture, recipe, steps) for side, recipe in recipes.items()}
    times = interleaved(works, FEWEST, np.random.default_rng(subject.seed), subject.framework.timed)
    seconds = {side: [spent / 1e9 for spent in times[side]] for side in times}
    control = ratio(seconds["plain"], seconds["twin"])
    if control.grew or control.shrank or not control.judged:
        verdict.abstain(f"the same step in two runs differs: {control.summary}")
    verdict.measure(f"seconds a step, {what}", "s", *_each(seconds["technique"], seconds["plain"], steps))
    return ratio(seconds["plain"], seconds["technique"])


def _each(technique: list[float], plain: list[float], steps: int) -> tuple[list[float], list[float]]:
    return [spent / steps for spent in technique], [spent / steps for spent in plain]


def training(subject: Subject, fixture: Fixture, recipe: Recipe, steps: int) -> Callable[[], None]:
    """Runs so many updates of a new run on the fixture's batch."""
    model, batch = fixture
    trainer = subject.trainer(model, recipe)

    def train() -> None:
        for _ in range(steps):
            trainer.update((batch,))

    return train
