"""Records and journals for tests, small ones, and reports of pytest."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from results.compare.changes import Change, ChangeKind
from results.compare.comparison import Comparison, Comparisons
from results.compare.ratio import FEWEST
from results.record.arrays import fingerprint
from results.record.folders import list_records
from results.record.model import (
    CheckResult,
    ClauseText,
    Consequence,
    FindingKind,
    FindingText,
    Fingerprint,
    Header,
    Json,
    JudgedTest,
    Measurement,
    Observation,
    RunSetup,
    Series,
)
from results.record.reading import Journal, Outcome, Record, Suite, Tensors, TestVerdict, Trace, Variant, load
from results.report import render
from results.report.matrix import FORMATS

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


def fill_journal(journal: Journal, count: int = 3) -> Journal:
    for index in range(count):
        test = f"{CLAUSE}/test[{index}]"
        journal.start(test, CLAUSE, repro="pytest")
        journal.write_judged(make_judged_test(test) if index else make_full_test(test))
    return journal


def by_name(parts: Iterable[Measurement] | Iterable[Trace] | Iterable[Tensors]) -> dict[str, Any]:
    """Parts of a record by "KEY/CASE"."""
    return {f"{part.key}/{part.case}": part for part in parts}


def make_judged_test(test: str) -> JudgedTest:
    return JudgedTest(verdict(test))


def make_full_test(test: str) -> JudgedTest:
    """The result of a test with every part of a record."""
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


def change_verdict(record: Record, index: int, **changes: Any) -> Record:
    """The record with one of its verdicts changed."""
    verdicts = list(record.verdicts)
    verdicts[index] = replace(verdicts[index], **changes)
    return replace(record, verdicts=tuple(verdicts))


VALUES = np.linspace(1.0, 1.9, 5, dtype=np.float32)
ARRAYS = (fingerprint("output/a", VALUES), fingerprint("gradient/a", VALUES))
LOSSES = (1.0, 2.0, 3.0)
FULL = replace(
    BASE,
    suite=replace(BASE.suite, commit="a" * 40, areas={**BASE.suite.areas, "adapter": "2" * 16}),
    verdicts=tuple(replace(verdict, runs=(RunSetup("sincos", {"seed": 3}),)) for verdict in BASE.verdicts),
    traces=(
        Trace("loss", "test_a", {"loss": LOSSES, "exact": LOSSES, "spread": (0.05,) * 3, "bound": (0.1, 0.2, 0.2)}),
    ),
    tensors=(Tensors("layers", "test_a", ARRAYS),),
)
ERROR = CheckResult("the loss at update 2", 0.1, 1.0, None, True, {"multiplier": 4.0, "spread": 0.25})
FULL = change_verdict(FULL, 0, checks=(ERROR, BOUND))
"""The base with everything that a comparison reads in its first test."""


def replace_observations(**changes: Any) -> Record:
    """The base with other observations, by "KEY/CASE"."""
    changed = {name: Observation(CLAUSE, *name.split("/"), value) for name, value in changes.items()}
    unchanged = (value for value in BASE.observations if f"{value.key}/{value.case}" not in changed)
    return replace(BASE, observations=(*unchanged, *changed.values()))


def make_measured_record(samples: Mapping[str, tuple[float, ...]]) -> Record:
    """The base with other samples."""
    named = (f"{m.key}/{m.case}" for m in BASE.measurements)
    changed = (
        replace(m, samples=samples.get(name, m.samples)) for name, m in zip(named, BASE.measurements, strict=True)
    )
    return replace(BASE, measurements=tuple(changed))


def make_timed_record(seed: int, ratio: float, pairs: int = FEWEST, controlled: bool = True) -> Record:
    """The base with times `ratio` times their control's, up to noise; each seed is a process of another speed."""
    rng = np.random.default_rng(seed)
    speed = rng.uniform(0.8, 1.2)
    control, samples = speed * (1.0 + rng.gamma(2.0, 0.01, (2, pairs)))
    times = Measurement(CLAUSE, "time", TIME, "s", tuple(ratio * samples), tuple(control) if controlled else ())
    return replace(BASE, measurements=(BASE.measurements[0], times))


BASELINES = Path(__file__).parents[2] / "results" / "baselines"
MEGABYTES = 10
HOSTILE = (
    "<script>window.canary = 1</script>",
    "</script><script>window.canary = 1</script>",
    "--></title></style></textarea><svg onload=window.canary=1>",
    "<img src=x onerror=window.canary=1>",
    "<img src=https://example.org/x.png>",
    "<iframe srcdoc='<script>parent.canary=1</script>'></iframe>",
    "<a href='javascript:window.canary=1' id=cell autofocus onfocus=window.canary=1>x</a>",
    "<style>@import url(https://example.org/x.css); * { display: none }</style>",
    "<base href=https://example.org/><meta http-equiv=refresh content='0;url=https://example.org/'>",
    "javascript:window.canary=1",
    "JaVaScRiPt:window.canary=1//https://example.org/",
    "data:text/html,<script>opener.canary=1</script>",
    'https://example.org/" onmouseover="window.canary=1',
    "https://example.org/'><svg/onload=window.canary=1>",
    "' onclick='window.canary=1' x='",
    '" onfocus="window.canary=1" autofocus x="',
    "datum.x; window.canary = 1",
    "datum['constructor']['constructor']('window.canary=1')()",
    "{'signal': 'window.canary=1'}",
    "{{ 7 * 7 }}{% raw %}{# comment #}{{ ''.__class__.__mro__ }}",
    "${window.canary = 1}`${alert(1)}`",
    "__proto__",
    "constructor.prototype.canary",
    "a[0].b\\.c['d']\\",
    "\u2028window.canary=1\u2029\r\n\t\x0b\x00\x1b[2J\x7f\x85",
    "\u202egnp.\u2066exe\u2069\u200f\u200d\ufeff\u061c",
    "\ud800half\udc00 \ufffe\uffff\U0010ffff",
    "Z" + "\u0310\u0311\u0312\u0313" * 40 + "&lt;script&gt;&#x3c;script&#x3e;",
    "\u05e9\u05dc\u05d5\u05dd \u0627\u0644\u0633\u0644\u0627\u0645 " * 400,
    "",
    " ",
)


MAIN = {
    ("jax", "jit"),
    ("jax", "keras"),
    ("paddle", "dygraph"),
    ("paddle", "dygraph-forced-scaler"),
    ("paddle", "static"),
    ("reference", "emulated"),
    ("tf", "graph"),
    ("torch", "eager"),
}
"""Frameworks and modes of the page that the tests of the report read, whose size has bounds."""


@cache
def baselines() -> tuple[Record, ...]:
    """The committed records of CPUs in these modes."""
    return tuple(load(path) for path in list_records(BASELINES) if _is_main(path.name))


def _is_main(name: str) -> bool:
    series, _, mode = name.removesuffix(".json.gz").rpartition("-cpu-")
    return (series.partition("-")[0], mode) in MAIN and "-with-" not in series


@cache
def page() -> str:
    """The report of the baselines."""
    return render(baselines())


def record(framework: str, outcomes: dict[str, Outcome], **changes: Any) -> Record:
    """A record with one test a clause."""
    clauses = {name: ClauseText("MUST", "…", "", (), name.partition(".")[0]) for name in outcomes}
    verdicts = tuple(TestVerdict(f"{name}/t", name, outcome, checks=(BOUND,)) for name, outcome in outcomes.items())
    series = Series(framework, "cpu", "", "m")
    result = Record(Suite("1"), series, Variant("1"), DATE, 0, "", clauses, DATE, 1.0, "complete", verdicts)
    return replace(result, **changes).sort_parts()


def make_infected_record(text: str, message: str | None = None) -> Record:
    """A record with `text` in every string that is not of an enumeration."""
    clause = text or "empty"
    runs = (RunSetup(text, {text: [text]}),)
    derivation: dict[str, Json] = {text: text, "list": [text, {text: text}], "number": math.nan}
    check = CheckResult(text, text, text, {text: [text]}, False, derivation)
    rest = (text, message or text, (check,), text, text, text, 3, text, 0.1, (text,), text, text, (text, text), runs)
    verdicts = tuple(TestVerdict(f"{clause}/{text}{outcome}", clause, outcome, *rest) for outcome in Outcome)
    finding = FindingText(FindingKind.DEFECT, Consequence.ERROR, text, text, text)
    texts = ClauseText(text, text, text, (text, f"{text} https://example.org/{text}"), text)
    numbers = (1.0, math.inf, -2.0, math.nan, 4.0)
    curves = {"loss": numbers, "exact": (1.0, 2.0, 3.0), "spread": (0.5, 0.0, (text and 1.0) or 2.0)}
    return Record(
        Suite(text, (text,), (text,), text, {text: text}),
        Series(text, text, text, text),
        Variant(text, {text: text}, {text: text}, {text: text}, (text,)),
        text,
        0,
        text,
        {clause: texts, FORMATS: texts, "a-rule": texts},
        text,
        1.0,
        "interrupted",
        verdicts,
        (
            Observation(clause, text, "", {text: [text, None, {text: text}]}),
            Observation("a-rule", text, f"test_x[{text}]", text),
            Observation(FORMATS, text, "test_x", {text: text, "matmul": "float16 / float16"}),
        ),
        (Measurement(clause, text, text, text, numbers), Measurement(clause, f"{text}2", "", text, (1.0, 2.0, 9.0))),
        (Trace(text, "", {**curves, text: numbers}), Trace("scale", text, {"scale": numbers})),
        notes=(text, text),
        findings={text: finding} if text else {},
    )


@cache
def infected_page() -> str:
    """A report of hostile records, one of them with a message of ten megabytes."""
    long = HOSTILE[1] * (MEGABYTES * 2**20 // 40)
    records = [make_infected_record(text) for text in HOSTILE] + [make_infected_record(HOSTILE[0], long)]
    comparisons = [
        Comparison(records[0], records[i], (Change(ChangeKind.ADDED, text, text, text, text, text, text),), 1, (text,))
        for i, text in enumerate((*HOSTILE, long))
    ]
    return render(records, Comparisons(tuple(comparisons), (*HOSTILE, long)))
