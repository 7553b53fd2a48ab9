"""A record of three tests, and variants of it, for tests of comparisons and of what is shown of records."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from results.compare.ratio import FEWEST
from results.record.model import CheckResult, Measurement, Observation, Series, Suite
from results.record.reading import ClauseText, Outcome, Record, TestVerdict, Variant

CLAUSE = "scaling.stays-finite"
DATE = "2026-01-02T03:04:05+00:00"
TESTS = tuple(f"{CLAUSE}/test_{name}" for name in ("a", "b[1]", "b[2]"))
BOUND = CheckResult("distance", 0.5, 1.0, None, True)
TIME = "test_b[1]"
BASE = Record(
    Suite("0.1", areas={"judging": "0" * 16, "specification": "1" * 16}),
    Series("torch", "cpu", "cpu", "eager"),
    Variant("2.13.0", {"numpy": "2.3"}),
    DATE,
    0,
    "",
    {CLAUSE: ClauseText("MUST", "…", "", (), "scaling")},
    DATE,
    1.0,
    "complete",
    tuple(TestVerdict(test, CLAUSE, Outcome.PASS, checks=(BOUND,), seed=0) for test in TESTS),
    (
        Observation(CLAUSE, "formats", "test_a", {"add": "float16", "mul": {"low": math.nan}}),
        Observation(CLAUSE, "rule", "test_b[1]", "drop"),
    ),
    (Measurement(CLAUSE, "bytes", "test_a", "B", (100.0,)), Measurement(CLAUSE, "time", "test_b[1]", "s", (1.0,) * 30)),
)


def verdict(record: Record, place: int, **changes: Any) -> Record:
    """The record with one of its verdicts changed."""
    verdicts = list(record.verdicts)
    verdicts[place] = replace(verdicts[place], **changes)
    return replace(record, verdicts=tuple(verdicts))


def observed(**changes: Any) -> Record:
    """The base with other observations, by "KEY/CASE"."""
    places = {name: Observation(CLAUSE, *name.split("/"), value) for name, value in changes.items()}
    others = (one for one in BASE.observations if f"{one.key}/{one.case}" not in places)
    return replace(BASE, observations=(*others, *places.values()))


def measured(samples: Mapping[str, tuple[float, ...]]) -> Record:
    """The base with other samples."""
    named = (f"{m.key}/{m.case}" for m in BASE.measurements)
    changed = (
        replace(m, samples=samples.get(name, m.samples)) for name, m in zip(named, BASE.measurements, strict=True)
    )
    return replace(BASE, measurements=tuple(changed))


def timed(seed: int, ratio: float, pairs: int = FEWEST, controlled: bool = True) -> Record:
    """The base with times `ratio` times their control's, up to noise; each seed is a process of another speed."""
    rng = np.random.default_rng(seed)
    speed = rng.uniform(0.8, 1.2)
    control, samples = speed * (1.0 + rng.gamma(2.0, 0.01, (2, pairs)))
    times = Measurement(CLAUSE, "time", TIME, "s", tuple(ratio * samples), tuple(control) if controlled else ())
    return replace(BASE, measurements=(BASE.measurements[0], times))
