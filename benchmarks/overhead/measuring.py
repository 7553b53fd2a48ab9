"""Takes the times of both sides in turn, once it is sure that they train the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from importlib import import_module
from typing import cast

import numpy as np

from benchmarks.calibration.recording import machine
from benchmarks.calibration.samples import TICK_NS
from benchmarks.overhead.cases import CASES, FIXTURES, ByHand, Case
from benchmarks.overhead.samples import Measured, Overhead
from conformance.subject import Subject
from conformance.timing import interleaved
from frameworks.base import needs
from frameworks.contract import Framework

PAIRS = 240
UPDATES = 4
"""How many losses of both sides are held against the envelope."""


class Apart(Exception):  # noqa: N818 - shown to the user as one line
    """The two sides do not train the same, so their times say nothing."""


def by_hand(name: str) -> ByHand:
    """The steps written by hand in a framework.

    Raises:
        ValueError: there are none.
    """
    module = f"benchmarks.overhead.{name}_by_hand"
    try:
        return cast(ByHand, import_module(module))
    except ModuleNotFoundError as error:
        if error.name != module:
            raise
        raise ValueError(f"no step is written by hand in {name!r}") from error


def overhead(framework: Framework, hand: ByHand, pairs: int = PAIRS) -> Overhead:
    """Times of every case that the framework declares to support on its device.

    Raises:
        Apart: a loss of one side is not where a correct run may be.
    """
    started = datetime.now(UTC).isoformat(timespec="seconds")
    rng = np.random.default_rng(0)
    measured = tuple(_measured(framework, hand, case, pairs, rng) for case in _supported(framework))
    place = f"{framework.device} {framework.mode}"
    return Overhead(framework.name, framework.version(), place, machine(), started, TICK_NS / 1e9, measured)


def _supported(framework: Framework) -> Iterator[Case]:
    for case in CASES:
        if all(framework.declares(capability).supported for capability in needs(case.recipe)):
            yield case


def _measured(framework: Framework, hand: ByHand, case: Case, pairs: int, rng: np.random.Generator) -> Measured:
    _check(framework, hand, case)
    works = {"by hand": _hand(framework, hand, case), "adapter": _adapter(framework, case)}
    times = {side: tuple(round(t / TICK_NS) for t in spent) for side, spent in interleaved(works, pairs, rng).items()}
    return Measured(case.label, times["by hand"], times["adapter"])


def _hand(framework: Framework, hand: ByHand, case: Case) -> Callable[[], float]:
    model, batch = FIXTURES[case.fixture]()
    return hand.make(case.fixture, case.mixed, model.weights(case.recipe.seed), batch, framework.device)


def _adapter(framework: Framework, case: Case) -> Callable[[], float]:
    model, batch = FIXTURES[case.fixture]()
    trainer = framework.trainer(model, case.recipe)
    return lambda: trainer.update((batch,)).loss


def _check(framework: Framework, hand: ByHand, case: Case) -> None:
    model, batch = FIXTURES[case.fixture]()
    envelope = Subject(framework).envelope(model, case.recipe, [(batch,)] * UPDATES)
    for side, step in (("by hand", _hand(framework, hand, case)), ("adapter", _adapter(framework, case))):
        deviation, bound, update = envelope.worst_loss(np.array([step() for _ in range(UPDATES)]))
        if not deviation <= bound.value:
            said = f"loss {update} is {deviation:.3g} from the exact one, and {bound.value:.3g} is allowed"
            raise Apart(f"{framework.name}, {case.label}, {side}: {said}")
