"""Races drawn from recorded processes: how often the rules are wrong, and how often they find five percent.

The samples are of the reference (small-mlp, 4 updates in a sample), recorded by the driver of `conformance race` on a
machine of two cores that others used: three equal processes in each set. `quiet`: 16 sets of 240 rounds at a load of 3.
`shared`: 24 sets at a load of 9 to 10. `busy`: 13 sets of 80 rounds next to two more processes of the same priority.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from conformance.race.driver import PAIRS
from conformance.race.judgement import RaceJudgement, RaceOutcome, judge
from conformance.race.samples import RaceSamples, load
from tests.support.racing import drawn, slowed

RACES = 100
SAMPLES = Path(__file__).parent


@cache
def recorded(name: str) -> RaceSamples:
    """The recorded processes."""
    return load(SAMPLES / f"{name}.json.gz")


def races(name: str, times: float) -> Iterator[RaceJudgement]:
    """A hundred races in which the new version takes so many times as long."""
    rng = np.random.default_rng(7)
    for _ in range(RACES):
        yield judge(slowed(drawn(recorded(name), rng, PAIRS), times))


@pytest.mark.parametrize("name", ["quiet", "shared", "busy"])
def test_equal_versions_raise_at_most_one_false_alarm(name: str) -> None:
    assert Counter(each.status for each in races(name, 1.0))[1] <= 1


@pytest.mark.parametrize("name", ["quiet", "shared"])
def test_five_percent_are_found(name: str) -> None:
    result = [each.verdicts[0].outcome for each in races(name, 1.05)]
    assert result.count(RaceOutcome.GREW) >= 95


def test_equal_versions_can_mostly_be_judged() -> None:
    assert Counter(each.status for each in races("shared", 1.0))[0] >= 90
