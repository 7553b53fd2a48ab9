"""Measure the overhead of a step through an adapter.

    python -m tools overhead torch    takes the times, keeps them, and fills the page from all kept ones
    python -m tools overhead          fills the page only

Exit status 0; 1 if an adapter's whole interval lies beyond what is wanted; 2 with one line if times cannot be taken or
read, the two sides do not train the same, or no page has a place for the table.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from conformance.checks.subject import Subject
from conformance.oracle.errormodel import IMPLEMENTATION_FREEDOM
from conformance.timing.interleaved import interleaved
from frameworks.contract import Framework, needs
from frameworks.native_loop import CASES, FIXTURES, LoopCase, NativeLoop, steps
from frameworks.registry import load
from results.compare.ratio import FEWEST
from results.record.journal import now
from tools.benchmarks import kit
from tools.benchmarks.overhead.samples import STORE, CaseTimes, Overhead, beyond

PAIRS = 240
UPDATES = 4
"""Number of losses of both sides to compare."""


class TrainingMismatch(ValueError):
    """The two sides do not train the same, so their times are not comparable."""


def overhead(framework: Framework, hand: NativeLoop, pairs: int) -> Overhead:
    """Times of every case that the framework declares to support on its device.

    Raises:
        TrainingMismatch: a loss of one side is further from the other's than rounding explains.
    """
    started = now()
    rng = np.random.default_rng(0)
    measured = tuple(_measured(framework, hand, case, pairs, rng) for case in supported(framework))
    place = f"{framework.device} {framework.mode}"
    return Overhead(framework.name, framework.version(), place, kit.machine(), started, kit.TICK_NS / 1e9, measured)


def supported(framework: Framework) -> Iterator[LoopCase]:
    """The cases whose every capability is declared."""
    for case in CASES:
        if all(framework.declares(capability).supported for capability in needs(case.recipe)):
            yield case


def _measured(
    framework: Framework, hand: NativeLoop, case: LoopCase, pairs: int, rng: np.random.Generator
) -> CaseTimes:
    _check(framework, hand, case)
    works = {"by hand": _hand(framework, hand, case), "adapter": _adapter(framework, case)}
    times = interleaved(works, pairs, rng, framework.timed)
    ticks = {side: tuple(round(spent / kit.TICK_NS) for spent in times[side]) for side in times}
    return CaseTimes(case.label, ticks["by hand"], ticks["adapter"])


def _hand(framework: Framework, hand: NativeLoop, case: LoopCase) -> Callable[[], float]:
    model, batch = FIXTURES[case.fixture]()
    return hand.make(case.fixture, case.mixed, model.weights(case.recipe.seed), batch, framework.device)


def _adapter(framework: Framework, case: LoopCase) -> Callable[[], float]:
    model, batch = FIXTURES[case.fixture]()
    trainer = framework.trainer(model, case.recipe)
    return lambda: trainer.update((batch,)).loss


def _check(framework: Framework, hand: NativeLoop, case: LoopCase) -> None:
    model, batch = FIXTURES[case.fixture]()
    envelope = Subject(framework).envelope(model, case.recipe, [(batch,)] * UPDATES)
    bounds = IMPLEMENTATION_FREEDOM * envelope.loss_spread
    native, adapter = (
        np.array([step() for _ in range(UPDATES)]) for step in (_hand(framework, hand, case), _adapter(framework, case))
    )
    for update, (one, other, bound) in enumerate(zip(native, adapter, bounds, strict=True)):
        if not abs(one - other) <= bound:
            said = f"loss {update} through the adapter: got {other:.6g}, want {one:.6g} ± {bound:.2g}"
            raise TrainingMismatch(f"{framework.name}, {case.label}: {said}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures if a framework is named, fills the page, and returns the exit status."""
    parser = kit.parser("overhead", "Measure the overhead of a step through an adapter.")
    parser.add_argument("--pairs", type=int, default=PAIRS, help=f"pairs a step, at least {FEWEST}")
    return kit.run(parser.parse_args(arguments), _stored, "overhead")


def _stored(options: argparse.Namespace) -> Sequence[str]:
    kit.installed(options.framework)
    if options.pairs < FEWEST:
        raise ValueError(f"{options.pairs} pairs are too few: {FEWEST} are needed")
    framework = load(options.framework, options.device)
    samples = overhead(framework, steps(framework.name, framework.mode), options.pairs)
    STORE.save(samples, framework.name)
    return beyond(samples)


if __name__ == "__main__":
    sys.exit(main())
