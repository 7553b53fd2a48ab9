"""Records that something was done to, each made from a committed baseline."""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np

from results.compare.numbers import number
from results.record.arrays import fingerprint
from results.record.fingerprints import Fingerprint
from results.record.reading import CheckResult, Curves, Record, Tensors, TestVerdict, Variant, load
from tests.support.suite_runs import ROOT

MULTIPLIER = 4.0
"""How many times its spread a bound is, where the baseline does not hold the bounds of losses."""

LAYERS = ("output/0.body.0", "output/2.body.1", "output/3", "gradient/3", "parameter/3.weight", "gradient/2.body.1")


@cache
def baseline() -> Record:
    """The committed record of PyTorch, with bounds and fingerprints of every run's arrays."""
    (path,) = (ROOT / "results" / "baselines").glob("torch-*-cpu-eager.json.gz")
    record = load(path)
    traces = tuple(
        replace(trace, curves=add_bounds(trace.curves)) if trace.key == "loss" else trace for trace in record.traces
    )
    runs = [trace.case for trace in traces if trace.key == "loss"]
    first, layers = (
        (Tensors("first", case, arrays()[-2:]) for case in runs),
        (Tensors("layers", c, arrays()) for c in runs),
    )
    packages = {"numpy": "2.4.6", "scipy": "1.17.0", "protobuf": "6.33.1", "torch": "2.13.0+cpu"}
    variant = Variant("2.13.0+cpu", record.variant.environment, packages, {"OMP_NUM_THREADS": "1"}, ("avx2", "fma"))
    return replace(record, variant=variant, traces=traces, tensors=(*first, *layers))


def add_bounds(trace: Curves) -> Curves:
    """A run's curves with the bound of every update's loss, infinite for those that are not judged."""
    limit = 0.1 * abs(trace["exact"][0])
    return {"bound": tuple(MULTIPLIER * s if s <= limit else math.inf for s in trace["spread"]), **trace}


def arrays(moved: Mapping[str, int] | None = None) -> tuple[Fingerprint, ...]:
    """Fingerprints of the arrays of a small network in bfloat16, some of them moved by units in the last place."""
    rng = np.random.default_rng(5)
    fingerprints = []
    for name in LAYERS:
        values = rng.uniform(1.0, 1.9, (8, 4)).astype(ml_dtypes.bfloat16)
        bits = values.view(np.uint16)
        bits[3, 2] += (moved or {}).get(name, 0)
        fingerprints.append(fingerprint(name, bits.view(ml_dtypes.bfloat16)))
    return tuple(fingerprints)


def with_verdicts(record: Record, change: Callable[[TestVerdict], TestVerdict]) -> Record:
    """The record with every verdict changed."""
    return replace(record, verdicts=tuple(map(change, record.verdicts)))


def with_losses(record: Record, change: Callable[[float], float]) -> Record:
    """The record with every loss of every run changed."""
    return with_curves(record, lambda curves: {**curves, "loss": tuple(map(change, curves["loss"]))})


def with_curves(record: Record, change: Callable[[Curves], Curves]) -> Record:
    """The record with the curves of every run changed."""
    traces = (replace(trace, curves=change(trace.curves)) if trace.key == "loss" else trace for trace in record.traces)
    return replace(record, traces=tuple(traces))


def with_errors(record: Record, test: str, share: float) -> Record:
    """The record with the first error of a test at a share of its bound."""

    def scale_error(check: CheckResult) -> CheckResult:
        bound = number(check.bound)
        return check if bound is None else replace(check, measured=share * bound)

    def change(verdict: TestVerdict) -> TestVerdict:
        if verdict.test != test:
            return verdict
        index = next(i for i, check in enumerate(verdict.checks) if number(check.bound))
        checks = tuple(scale_error(check) if i == index else check for i, check in enumerate(verdict.checks))
        return replace(verdict, checks=checks)

    return with_verdicts(record, change)


def with_variant(record: Record, **changes: Any) -> Record:
    """The record of another environment; mappings are added to what is there."""
    merged = {
        name: {**getattr(record.variant, name), **value} if isinstance(value, Mapping) else value
        for name, value in changes.items()
    }
    return replace(record, variant=replace(record.variant, **merged))


def with_tensors(record: Record, case: str, moved: Mapping[str, int]) -> Record:
    """The record with some arrays of one run moved by units in the last place."""
    others = (entry for entry in record.tensors if entry.place != ("layers", case))
    return replace(record, tensors=(*others, Tensors("layers", case, arrays(moved)))).sort_parts()
