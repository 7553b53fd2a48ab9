"""Step times with and without a technique, measured in turns while no other worker runs a test; and saved bytes.

A worker that has joined runs every test within `share_machine`. A timing (`alone`) waits until the other workers are
between two tests, and they wait until it ends. A run in a single process does not join and does not wait.
"""

import fcntl
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

import numpy as np

from conformance.checks.api import Subject, Verdict
from fixtures.data import sincos_batch, token_batch, wide_batch
from fixtures.model import Batch, Model
from fixtures.models import blocks, encoder, sincos
from fixtures.recipe import SGD, Recipe, Recompute
from frameworks.base import measure_elapsed
from results.compare.ratio import FEWEST, Ratio, ratio


class Workers:
    """Coordinates the workers of one run by two locked files: `door`, an exclusive lock, and `room`, a shared one.

    A test holds the door's lock for a moment while it takes the shared lock of the room. Exclusive timing holds the
    door's lock, so that no test can start, until no test holds the room's.

    Args:
        folder: a folder shared by all workers.
    """

    def __init__(self, folder: Path) -> None:
        self._door, self._room = (os.open(folder / name, os.O_RDWR | os.O_CREAT, 0o600) for name in ("door", "room"))

    @contextmanager
    def share_machine(self) -> Iterator[None]:
        """Within the context, hold the shared lock of the room, as every test does."""
        self._enter()
        try:
            yield
        finally:
            fcntl.flock(self._room, fcntl.LOCK_UN)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Within the context, hold the room's lock exclusively; call it from within `share_machine`."""
        fcntl.flock(self._room, fcntl.LOCK_UN)
        with self._in_the_door():
            fcntl.flock(self._room, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(self._room, fcntl.LOCK_UN)
            self._enter()

    def _enter(self) -> None:
        with self._in_the_door():
            fcntl.flock(self._room, fcntl.LOCK_SH)

    @contextmanager
    def _in_the_door(self) -> Iterator[None]:
        fcntl.flock(self._door, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(self._door, fcntl.LOCK_UN)


_joined: list[Workers] = []


def join(folder: Path) -> None:
    """Register this process as a worker; all workers name the same folder."""
    _joined[:] = [Workers(folder)]


def share_machine() -> AbstractContextManager[None]:
    """Return the context for one test of a worker."""
    return _joined[0].share_machine() if _joined else nullcontext()


def alone() -> AbstractContextManager[None]:
    """Return a context, for use within a test, in which no other worker runs a test."""
    return _joined[0].alone() if _joined else nullcontext()


WARM_UP = 3
"""Number of warm-up rounds. Other workers run during the first round, in which frameworks compile."""


def time_interleaved(
    works: Mapping[str, Callable[[], object]],
    rounds: int,
    rng: np.random.Generator,
    timed: Callable[[Callable[[], object]], int] = measure_elapsed,
) -> dict[str, list[int]]:
    """Time every workload `rounds` times, in nanoseconds; sample i of one is taken next to sample i of the others.

    The order is random in every round, so that no workload benefits from its position.

    Args:
        timed: runs a workload and returns its time, measured by the host's clock or by `Framework.measure_time`.
    """
    names = list(works)
    times: dict[str, list[int]] = {name: [] for name in names}

    def run(turns: Iterable[int]) -> None:
        for turn in turns:
            for index in rng.permutation(len(names)):
                name = names[index]
                spent = timed(works[name])
                if turn >= 0:
                    times[name].append(spent)

    run([-WARM_UP])
    with alone():
        run(range(1 - WARM_UP, rounds))
    return times


RECIPE = Recipe(SGD(2.0**-10))

Fixture = tuple[Model, Batch]


def saved_bytes(subject: Subject, fixture: Fixture, segments: int, variant: str | None = None) -> int:
    """Return the saved bytes of a fixture with this number of recomputed segments; 0 means no recomputation."""
    model, batch = fixture
    recompute = Recompute(segments, variant=variant) if segments else None
    return subject.trainer(model, RECIPE.replace(recompute=recompute)).saved_bytes(batch)


def equal_blocks(count: int, width: int, rows: int, inputs: int | None = None) -> Fixture:
    """Return `count` equal blocks, and a batch of shape (rows, inputs) for them; `inputs` is `width` by default."""
    return blocks(count, width, inputs), wide_batch(rows, inputs or width)


def products() -> Fixture:
    """Return a step dominated by products of 2048 × 2048 weights, with a small batch."""
    return equal_blocks(8, 2048, 8192, inputs=16)


def transformer_block() -> Fixture:
    """Return one transformer block of width 1024 and a batch of 16 sequences of 512 tokens."""
    return encoder(1024, 16, 1, 512), token_batch(16, 512, ragged=False)


def example() -> Fixture:
    """Return the original sine and cosine example: 20,000 points, width 150."""
    return sincos(), sincos_batch()


def compare_times(
    subject: Subject,
    verdict: Verdict,
    fixture: Fixture,
    technique: Recipe,
    what: str,
    *,
    plain: Recipe = RECIPE,
    steps: int = 1,
) -> Ratio:
    """Time steps with and without a technique in pairs; abstain if the plain step's time differs from itself.

    Args:
        steps: number of steps in one sample.
    """
    recipes = {"plain": plain, "twin": plain, "technique": technique}
    works = {side: training(subject, fixture, recipe, steps) for side, recipe in recipes.items()}
    times = time_interleaved(works, FEWEST, np.random.default_rng(subject.seed), subject.framework.measure_time)
    seconds = {side: [spent / 1e9 for spent in times[side]] for side in times}
    control = ratio(seconds["plain"], seconds["twin"])
    if control.grew or control.shrank or not control.judged:
        verdict.abstain(f"the same step in two runs differs: {control.summary}")
    samples = ([spent / steps for spent in seconds[side]] for side in ("technique", "plain"))
    verdict.measure(f"seconds a step, {what}", "s", *samples)
    return ratio(seconds["plain"], seconds["technique"])


def training(subject: Subject, fixture: Fixture, recipe: Recipe, steps: int) -> Callable[[], None]:
    """Return a call that makes `steps` updates of a new run on the fixture's batch."""
    model, batch = fixture
    trainer = subject.trainer(model, recipe)

    def train() -> None:
        for _ in range(steps):
            trainer.update((batch,))

    return train
