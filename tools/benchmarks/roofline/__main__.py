"""Compare the time of a step with the roofline of its device.

    python -m tools roofline torch    measures, keeps the samples, and fills the page from all kept ones
    python -m tools roofline          fills the page only

Exit status 0; 2 with one line if nothing can be measured or read, or no page has a place for the table.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext

from frameworks.contract import Capability, Framework
from frameworks.registry import load
from results.record.journal import now
from tools.benchmarks import kit
from tools.benchmarks.roofline.cases import TF32, RooflineCase, cases, fixtures
from tools.benchmarks.roofline.counting import least_bytes, operations
from tools.benchmarks.roofline.samples import STORE, Roofline, StepTimes
from tools.benchmarks.roofline.works import WORKS, Works

SIZES = {"cpu": (256, 512, 1024), "cuda": (2048, 4096, 8192)}
"""Of the matrices that are multiplied."""

TRANSPOSED = ((False, False), (False, True), (True, False))
"""Which of them is: a step has all three kinds, forward and backward, at rates that may differ by far."""

ELEMENTS = {"cpu": (2**23, 2**24), "cuda": (2**26, 2**28)}
"""Of the vectors that are added; too many for a cache."""

TRIES = 5
"""Times of each work, of which the best is taken, after one that is not."""

WARM_UP, STEPS = 3, 20


def works(name: str) -> Works:
    """The products and sums of a framework.

    Raises:
        ValueError: there are none.
    """
    if name not in WORKS:
        raise ValueError(f"no product is written in {name!r}")
    return WORKS[name]


def roofline(framework: Framework, made: Works) -> Roofline:
    """Rates and times of every case that the framework declares to support on its device."""
    started = now()
    chosen = list(cases(framework))
    rates = {name: rate(framework, made, name) for name in dict.fromkeys(case.format for case in chosen)}
    moved = bandwidth(framework, made)
    steps = tuple(_step(framework, case) for case in chosen)
    here = kit.machine()
    if framework.device != "cpu":
        here = f"{framework.environment().get('device', framework.device)}; {here}"
    place = f"{framework.device} {framework.mode}"
    return Roofline(framework.name, framework.version(), place, here, started, kit.TICK_NS / 1e9, rates, moved, steps)


def _of_device(sizes: Mapping[str, tuple[int, ...]], framework: Framework) -> tuple[int, ...]:
    """The sizes for a CPU or, on any accelerator, those for a GPU."""
    return sizes["cpu" if framework.device == "cpu" else "cuda"]


def rate(framework: Framework, made: Works, name: str) -> float:
    """Operations a second of the best product in a format."""
    stored = "float32" if name == TF32 else name
    with _products(framework, name):
        result = [
            2 * size**3 / _best(framework, made.product(size, stored, framework.device, left=left, right=right))
            for size in _of_device(SIZES, framework)
            for left, right in TRANSPOSED
        ]
    return round(max(result), -6)


def bandwidth(framework: Framework, made: Works) -> float:
    """Bytes a second of the best sum: two vectors are read, and one is written."""
    result = [
        12 * count / _best(framework, made.addition(count, framework.device))
        for count in _of_device(ELEMENTS, framework)
    ]
    return round(max(result), -6)


def _products(framework: Framework, name: str) -> AbstractContextManager[None]:
    """Float32 that keeps every bit, or may not, where the framework has a switch."""
    if name in ("float32", TF32) and framework.declares(Capability.TF32).supported:
        return framework.tf32(name == TF32)
    return nullcontext()


def _best(framework: Framework, work: Callable[[], object]) -> float:
    framework.timed(work)
    return min(framework.timed(work) for _ in range(TRIES)) / 1e9


def _step(framework: Framework, case: RooflineCase) -> StepTimes:
    model, batch = fixtures(framework.device)[case.fixture]()
    with _products(framework, case.format):
        trainer = framework.trainer(model, case.recipe)
        times = [framework.timed(lambda: trainer.update((batch,))) for _ in range(WARM_UP + STEPS)][WARM_UP:]
    count = operations(model, len(batch))
    moved = least_bytes(model, batch, case.precision, case.recipe.optimizer)
    return StepTimes(case.fixture, case.format, count, moved, tuple(round(spent / kit.TICK_NS) for spent in times))


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures if a framework is named, fills the page, and returns the exit status."""
    parser = kit.parser("roofline", "Compare step times with the roofline of the device.")
    return kit.run(parser.parse_args(arguments), _stored, "roofline")


def _stored(options: argparse.Namespace) -> Sequence[str]:
    kit.installed(options.framework)
    framework = load(options.framework, options.device)
    STORE.save(roofline(framework, works(framework.name)), f"{framework.name}-{framework.device}")
    return ()


if __name__ == "__main__":
    sys.exit(main())
