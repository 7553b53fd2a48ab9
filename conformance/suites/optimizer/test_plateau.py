"""Learning-rate schedules that follow a metric."""

import math

import pytest

from conformance.checks.api import Subject, Verdict, clause, need
from fixtures.schedules import Plateau, PlateauRule
from frameworks.contract import Capability

BAD, QUARTER = math.nan, 2.0**-2
CASES: dict[str, tuple[Plateau, tuple[float, ...]]] = {
    "ties": (Plateau(), (4, 4, 3, 3, 3, 3, 3, 2, 2, 2)),
    "worse": (Plateau(patience=3), (4, 5, 3, 6, 3.5, 4, 3, 5, 4)),
    "less-than-the-threshold": (Plateau(threshold=0.5), (4, 3.75, 3.5, 3.25, 2.75, 2.25, 1.75)),
    "not-a-number": (Plateau(), (4, BAD, BAD, 3, BAD, 2, BAD, BAD)),
    "first-not-a-number": (Plateau(), (BAD, 8, 7, 6, 6, 6, 5)),
    "cooldown-of-one": (Plateau(patience=1, cooldown=1), (4, 4, 4, 4, 4, 4, 4)),
    "cooldown": (Plateau(cooldown=2), (4, 4, 4, 3, 3.5, 3.5, 3.5, 4, 4, 2, 2, 2)),
    "minimum": (Plateau(patience=1, factor=QUARTER, minimum=0.125), (4, 4, 4, 4, 3, 3)),
    "largest": (Plateau(mode="max"), (1, 1, 2, 1, 2, 2, 3, 2, 2)),
    "relative": (Plateau(threshold=QUARTER, relative=True), (16, 13, 12, 9, 8, 7, 6, 4)),
    "relative-largest": (Plateau(threshold=QUARTER, relative=True, mode="max"), (16, 19, 20, 24, 25, 32, 33)),
    "relative-below-zero": (Plateau(threshold=QUARTER, relative=True), (-4, -4, -4, -5, -8, -8, -8)),
}
each_case = pytest.mark.parametrize("case", CASES)


def judge(subject: Subject, verdict: Verdict, case: str, saved: int | None = None) -> None:
    """Compare the rate after each metric with the rule."""
    need(subject, Capability.PLATEAU)
    (plateau, metrics), conventions = CASES[case], subject.conventions
    rule = PlateauRule(plateau, waits=conventions.plateau_waits, signed=conventions.plateau_signed)
    expected = tuple(map(rule.take, metrics))
    measured = subject.framework.plateau(plateau, metrics, saved)
    verdict.equal(measured, expected, f"learning rates after the metrics {metrics}", "rate-differs")


@clause("optimizer.schedules")
@each_case
def test_rates_follow_metric(subject: Subject, verdict: Verdict, case: str) -> None:
    judge(subject, verdict, case)


@clause("optimizer.schedules")
@pytest.mark.parametrize(("case", "saved"), [("ties", 4), ("cooldown", 3)])
def test_restored_schedule_follows_metric(subject: Subject, verdict: Verdict, case: str, saved: int) -> None:
    judge(subject, verdict, case, saved)
