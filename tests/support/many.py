"""Many records, made of the committed ones.

Each is of another version and of another kind of device; times, losses and a tenth of the messages differ.
"""

import random
from collections.abc import Iterator
from dataclasses import replace

from results.record.folders import listed
from results.record.reading import Record, TestVerdict, load
from tests.support.suite_runs import ROOT


def many(count: int, seed: int = 0) -> Iterator[Record]:
    """Perturbed copies of the committed baselines, in turn; the same for the same seed."""
    rng = random.Random(seed)
    paths = listed(ROOT / "results" / "baselines")
    for number in range(count):
        yield _perturbed(load(paths[number % len(paths)]), number, rng)


def _perturbed(record: Record, number: int, rng: random.Random) -> Record:
    version = f"{record.variant.framework_version.partition('+')[0]}.{number}"
    factor = 1.0 + rng.uniform(-1e-9, 1e-9)
    return replace(
        record,
        series=replace(record.series, device_kind=f"kind {number}"),
        variant=replace(record.variant, framework_version=version),
        verdicts=tuple(_verdict(verdict, number, rng) for verdict in record.verdicts),
        traces=tuple(
            replace(each, curves={name: tuple(x * factor for x in points) for name, points in each.curves.items()})
            for each in record.traces
        ),
    )


def _verdict(verdict: TestVerdict, number: int, rng: random.Random) -> TestVerdict:
    message = f"{verdict.message} ({number})" if rng.random() < 0.1 else verdict.message
    return replace(verdict, duration_s=verdict.duration_s * rng.uniform(0.9, 1.1), message=message)
