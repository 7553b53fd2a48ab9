"""pytest-benchmark's and asv's rules, by their own code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from asv.commands.compare import _is_result_better
from asv_runner.statistics import compute_stats
from pytest_benchmark.stats import Stats
from pytest_benchmark.utils import parse_compare_fail

from benchmarks.calibration.rules import Rule, RuleAnswer
from benchmarks.calibration.two_runs import PairedCost


def pytest_benchmark(expression: str) -> Rule:
    """`--benchmark-compare-fail=EXPRESSION` of the mean; it has no word for a smaller cost."""
    check = parse_compare_fail(expression)

    def rule(old: PairedCost, new: PairedCost) -> RuleAnswer:
        return RuleAnswer.WORSE if check.fails(_summary(new.samples), _summary(old.samples)) else RuleAnswer.NOTHING

    return rule


def _summary(samples: Sequence[float]) -> Mapping[str, float]:
    stats = Stats()
    for sample in samples:
        stats.update(sample)
    return {"mean": stats.mean}


def asv(factor: float, use_stats: bool = True) -> Rule:
    """`asv compare --factor FACTOR`, with its test of significance or without (`--no-stats`)."""

    def rule(old: PairedCost, new: PairedCost) -> RuleAnswer:
        (before, statistics), (after, later) = (compute_stats(list(side.samples), 1) for side in (old, new))
        first, second = (statistics, list(old.samples)), (later, list(new.samples))
        if _is_result_better(before, after, first, second, factor, use_stats=use_stats):
            return RuleAnswer.WORSE
        if _is_result_better(after, before, second, first, factor, use_stats=use_stats):
            return RuleAnswer.BETTER
        return RuleAnswer.NOTHING

    return rule


OTHERS: dict[str, Rule] = {
    "pytest-benchmark, `mean:5%`": pytest_benchmark("mean:5%"),
    "pytest-benchmark, `mean:2%`": pytest_benchmark("mean:2%"),
    "asv, factor 1.1 (its default)": asv(1.1),
    "asv, factor 1.1, no statistics": asv(1.1, use_stats=False),
    "asv, factor 1.02": asv(1.02),
}
"""As they come, and with the thresholds that suit a change of 5 % better."""
