"""Records and journals for the tests of both."""

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from results.record.fingerprints import Fingerprint
from results.record.journal import Journal
from results.record.model import CheckResult, Header, JudgedTest, Measurement, Observation, RunSetup, Series
from results.record.reading import ClauseText, Outcome, Suite, Tensors, TestVerdict, Trace, Variant

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
    return TestVerdict(test, CLAUSE, outcome, "scale-inf", "line\nline", (check,), "why", "", "abc", 3, "pytest …")


def filled(journal: Journal, count: int = 3) -> Journal:
    for index in range(count):
        test = f"{CLAUSE}/test[{index}]"
        journal.start(test, CLAUSE, repro="pytest")
        journal.judged(judged(test) if index else whole(test))
    return journal


def by_name(parts: Iterable[Measurement] | Iterable[Trace] | Iterable[Tensors]) -> dict[str, Any]:
    """Parts of a record by "KEY/CASE"."""
    return {f"{part.key}/{part.case}": part for part in parts}


def judged(test: str) -> JudgedTest:
    return JudgedTest(verdict(test))


def whole(test: str) -> JudgedTest:
    """What a test leaves that uses every part of a record."""
    return JudgedTest(
        replace(verdict(test), runs=(RunSetup("sincos", {"seed": 3, "clip": math.inf}),)),
        (Observation("autocast.op-dtypes", "matmul", "test[0]", {"O1": ["float16", -math.inf, 1, None, True]}),),
        (
            Measurement("cost.recompute-bytes", "bytes", "test[0]", "B", (1.0, math.inf)),
            Measurement("cost.recompute-bytes", "time", "test[0]", "s", (2.0, 2.5), (1.0, 1.25)),
        ),
        (Trace("sincos", "test[0]", {"loss": (2.5, math.nan), "scale": (65536.0, 32768.0)}),),
        (Tensors("first", "test[0]", (Fingerprint("parameter/w", "float32", (2,), "0" * 16, math.inf, "AACAPw=="),)),),
    )
