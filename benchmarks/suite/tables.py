"""The page's block: what the committed costs come to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from benchmarks.suite.measuring import SHARES
from benchmarks.suite.samples import STORE, CommandRuns, SuiteCost

START = {"help": "`conformance --help`", "import": "import", "collection": "collection", "first test": "first test"}
"""The columns of start-up by what was run."""


def blocks() -> Mapping[str, str]:
    """Three tables of all committed costs, and when and where they were taken; one line if there are none.

    Raises:
        ValueError: a file holds no costs, or lacks a run.
        OSError: it cannot be read.
    """
    costs = STORE.all()
    if not costs:
        return {"suite cost": "No costs are kept."}
    taken = (f"- {cost.taken}." for cost in costs)
    return {"suite cost": "\n".join((*_starts(costs), "", *_workers(costs), "", *_growth(costs), "", *taken))}


def _starts(costs: Sequence[SuiteCost]) -> Iterator[str]:
    yield f"| processor seconds (seconds that passed) of | {' | '.join(START.values())} |"
    yield f"|---|{'--:|' * len(START)}"
    for cost in costs:
        runs = [cost.of(what) for what in START]
        told = (f"{min(run.cpu_s):.2f} ({min(run.wall_s):.2f})" for run in runs)
        yield f"| {cost.label} | {' | '.join(told)} |"


def _workers(costs: Sequence[SuiteCost]) -> Iterator[str]:
    yield "| tests of | tests | one process | its processor time | two workers | their processor time | as fast |"
    yield "|---|--:|--:|--:|--:|--:|--:|"
    for cost in costs:
        one, two = cost.of(SHARES[-1]), cost.of("two workers")
        sides = " | ".join(f"{run.wall_s[0]:.1f} s | {run.cpu_s[0]:.1f} s" for run in (one, two))
        yield f"| {cost.label}{_selected(cost)} | {two.tests} | {sides} | × {one.wall_s[0] / two.wall_s[0]:.2f} |"


def _growth(costs: Sequence[SuiteCost]) -> Iterator[str]:
    shares = " | ".join(f"{float(share):.0%} of clauses" for share in SHARES)
    yield f"| processor seconds of | {shares} | fixed | each test | furthest from that line |"
    yield f"|---|{'--:|' * (len(SHARES) + 3)}"
    for cost in costs:
        runs = [cost.of(share) for share in SHARES]
        fixed, each, off = line(runs)
        told = " | ".join(f"{run.cpu_s[0]:.1f} ({run.clauses} / {run.tests})" for run in runs)
        yield f"| {cost.label}{_selected(cost)} | {told} | {fixed:.1f} | {1e3 * each:.0f} ms | {off:.0%} |"


def line(runs: Sequence[CommandRuns]) -> tuple[float, float, float]:
    """The straight line of processor seconds over tests by least squares.

    Returns:
        Its seconds without any test, its seconds a test, and the largest distance of a run from it, as a share of the
        longest run.
    """
    tests, spent = np.array([run.tests for run in runs]), np.array([run.cpu_s[0] for run in runs])
    each, fixed = np.polyfit(tests, spent, 1)
    off = np.abs(fixed + each * tests - spent).max() / spent.max()
    return float(fixed), float(each), float(off)


def _selected(cost: SuiteCost) -> str:
    return f", `-k {cost.selection}`" if cost.selection else ""
