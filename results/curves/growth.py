"""How far rounding differences between two runs of one training grow: the model, and its measured limits.

Two runs that differ in rounding alone begin with differences of some units of rounding, which grow from update to
update, sometimes fast, but never from nothing to much at once. `python -m tools curves --calibrate` trains pairs of
such runs, and stores for each format a small multiple of the largest growth in k updates (growth.toml).
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from scipy import stats

from results.curves.reading import Numbers, Series, Steps

FILE = Path(__file__).with_name("growth.toml")
UNITS: Mapping[str, float] = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
"""Unit roundoff of each format of matrix products."""
SCALES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
"""Numbers of updates over which growth is measured."""
EARLY = (1, 2, 4, 8, 16)
"""Numbers of first updates, in which growth has narrower limits."""
NORMS = ("gradient_norm", "clipped_norm")
ERROR_RATE = 0.01
"""Share of clean runs outside an envelope from controls."""


@dataclass(frozen=True)
class Aligned:
    """Two curves at their common steps.

    Attributes:
        steps: (n,), at which both are finite.
        old, new: (n,)
        scale: (n,), largest magnitude of the old curve in the last half of the steps so far.
        quantum: unit of the last printed decimal of the coarser one, 0 for full digits.
    """

    steps: Steps
    old: Numbers
    new: Numbers
    scale: Numbers
    quantum: float

    @property
    def differences(self) -> Numbers:
        """(n,), beyond the printed decimals, in units of the scale."""
        apart = np.abs(self.new - self.old) - 1.001 * self.quantum
        return np.maximum(apart, 0.0) / self.scale


def align(old: Series, new: Series) -> Aligned:
    """Return both curves at the steps that both have, without those where one is not finite."""
    _, a, b = np.intersect1d(old.steps, new.steps, assume_unique=True, return_indices=True)
    finite = np.isfinite(old.values[a]) & np.isfinite(new.values[b])
    steps, before, after = old.steps[a][finite], old.values[a][finite], new.values[b][finite]
    return Aligned(steps, before, after, _scales(np.abs(before)), max(old.quantum, new.quantum))


def _scales(values: Numbers) -> Numbers:
    """Return the largest value of the last half so far, at least; (n,)."""
    result, start, former = np.ones_like(values), 0, 0.0
    while start < len(values):
        stop = min(len(values), max(1, 2 * start))
        block = np.maximum.accumulate(values[start:stop])
        result[start:stop] = np.maximum(block, former)
        former, start = float(block[-1]), stop
    return np.where(result > 0, result, 1.0)


def levels(curves: Aligned, unit: float) -> Numbers:
    """Return log2 of the largest difference so far, (n + 1,); the first is that of one rounding before any update."""
    floor = np.maximum.accumulate(np.maximum(unit, curves.quantum / curves.scale))
    largest = np.maximum.accumulate(np.maximum(curves.differences, floor))
    result: Numbers = np.log2(np.concatenate([floor[:1], largest]))
    return result


@dataclass(frozen=True)
class Limits:
    """The largest differences of clean pairs.

    Attributes:
        first: log2 of the difference at the first step, in units of the curve's size.
        early: growth in bits from the first step to at most this many updates later.
        later: growth in bits over this many updates anywhere. It is wider, because one switched ReLU, which comes once
            in hundreds of updates, changes a gradient by far more than rounding does.
    """

    first: float
    early: Mapping[int, float]
    later: Mapping[int, float]


def early_growth(level: Numbers, interval: int) -> dict[int, Numbers]:
    """Return the growth in bits from the first step to each early one, by the smallest of `EARLY` that holds it."""
    result, start = {}, 2
    for scale in EARLY:
        stop = min(len(level), max(start, scale // interval + 2))
        result[scale] = level[start:stop] - level[1]
        start = stop
    return result


def later_growth(level: Numbers, interval: int) -> dict[int, Numbers]:
    """Return the growth in bits over k updates ending at each step from the second on, by k."""
    spans = {scale: scale // interval for scale in SCALES}
    return {k: level[1 + n :] - level[1:-n] for k, n in spans.items() if n and n < len(level) - 1}


@cache
def limits(format_name: str, series: str) -> Limits:
    """Return the measured limits for a series of runs with matrix products in this format."""
    table = tomllib.loads(FILE.read_text("utf-8"))[format_name]["norm" if series in NORMS else "loss"]
    parts = ({int(k): bits for k, bits in table[part].items()} for part in ("early", "later"))
    return Limits(max(table["first"], float(np.log2(UNITS[format_name]))), *parts)


def first_excess(level: Numbers, interval: int, allowed: Limits) -> int | None:
    """Return the index of the first step whose difference the growth before it does not explain, None if all are."""
    if level[1] > max(allowed.first, level[0]):
        return 0
    excesses: list[tuple[int, int]] = []
    start = 2
    for k, bits in early_growth(level, interval).items():
        if len(above := np.flatnonzero(bits > allowed.early[k])):
            excesses.append((int(above[0]) + start, int(above[0]) + start - 1))
            break
        start += len(bits)
    for k, bits in later_growth(level, interval).items():
        if len(above := np.flatnonzero(bits > allowed.later[k])):
            excesses.append((int(above[0]) + 1 + k // interval, k // interval))
    if not excesses:
        return None
    end, span = min(excesses)
    return end - span + int(np.argmax(np.diff(level[end - span : end + 1])))


def envelope(pairs: Sequence[Numbers]) -> Numbers:
    """Return the level that a further run of the same code stays below, (n,), from levels of two pairs of runs or more.

    It is Student's prediction limit over pairs, at `ERROR_RATE` for the whole run. The standard deviation is that of
    the step or of all steps, whichever is larger, and at least one bit.
    """
    table = np.stack(pairs)
    count, length = table.shape
    periods = int(np.log2(length)) + 1
    variance = np.var(table, axis=0, ddof=1)
    spread = np.sqrt(np.maximum(1.0, np.maximum(variance, variance.mean())))
    quantile = float(stats.t.ppf(1 - ERROR_RATE / periods, (count - 1) * periods))
    limit: Numbers = table.mean(axis=0) + quantile * spread * np.sqrt(1 + 1 / count)
    return limit
