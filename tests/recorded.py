"""Records and journals for the tests of both."""

from __future__ import annotations

import math

from results.record.journal import Journal
from results.record.reading import (
    CheckResult,
    ClauseText,
    Header,
    Measurement,
    Outcome,
    Series,
    Suite,
    TestVerdict,
    Variant,
)

CLAUSE = "scaling.stays-finite"


def header() -> Header:
    texts = {
        name: ClauseText("MUST", "S and 1/S stay ≤ ∞.", "paper §3", ("https://example.org/1",), name.split(".")[0])
        for name in (CLAUSE, "autocast.op-dtypes", "cost.recompute-bytes", "master.untested")
    }
    suite = Suite("0.1.0", (CLAUSE, "autocast.op-dtypes"), ("master.untested",))
    series, variant = Series("torch", "auto", "cpu", "eager"), Variant("2.13.0+cpu", {"threads": "1", "ä": "ö"})
    return Header(suite, series, variant, "2026-01-02T03:04:05+00:00", 7, "-k scaling", texts)


def verdict(test: str, outcome: Outcome = Outcome.PASS) -> TestVerdict:
    check = CheckResult("scale", math.inf, 2.0**127, None, False, {"method": "closed form", "samples": [1.5, math.nan]})
    return TestVerdict(
        test, CLAUSE, outcome, "adam", "scale-inf", "line\nline", (check,), "why", "", "abc", 3, "pytest …"
    )


def filled(journal: Journal, count: int = 3) -> Journal:
    for index in range(count):
        journal.start(f"suite.py::test[{index}]", CLAUSE, case=str(index), repro="pytest")
        journal.verdict(verdict(f"suite.py::test[{index}]"))
    journal.observation("autocast.op-dtypes", "matmul", {"O1": ["float16", -math.inf, 1, None, True]})
    journal.measurement("bytes", Measurement("B", (1.0, math.inf), "cost.recompute-bytes"))
    journal.measurement("time", Measurement("s", (2.0, 2.5), "cost.recompute-bytes", (1.0, 1.25)))
    journal.trace("sincos", {"loss": (2.5, math.nan), "scale": (65536.0, 32768.0)})
    return journal
