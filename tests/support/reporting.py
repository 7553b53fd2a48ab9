"""What the tests of the report draw: the committed records, small ones, and hostile ones."""

import math
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from results.compare.changes import Change, ChangeKind
from results.compare.comparison import Comparison
from results.compare.pairing import Comparisons
from results.record.folders import listed
from results.record.model import CheckResult, Measurement, Observation, RunSetup, Series, Suite
from results.record.reading import ClauseText, Outcome, Record, TestVerdict, Trace, Variant, load
from results.record.texts import Consequence, FindingKind, FindingText
from results.record.values import Json
from results.report import render
from results.report.values import FORMATS

BASELINES = Path(__file__).parents[2] / "results" / "baselines"
DATE = "2026-01-02T03:04:05+00:00"
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
    return tuple(load(path) for path in listed(BASELINES) if _is_main(path.name))


def _is_main(name: str) -> bool:
    series, _, mode = name.removesuffix(".json.gz").rpartition("-cpu-")
    return (series.partition("-")[0], mode) in MAIN


@cache
def page() -> str:
    """Their report."""
    return render(baselines())


def record(framework: str, outcomes: dict[str, Outcome], **changes: Any) -> Record:
    """A record with one test a clause."""
    clauses = {name: ClauseText("MUST", "…", "", (), name.partition(".")[0]) for name in outcomes}
    verdicts = tuple(TestVerdict(f"{name}/t", name, outcome) for name, outcome in outcomes.items())
    series = Series(framework, "cpu", "", "m")
    whole = Record(Suite("1"), series, Variant("1"), DATE, 0, "", clauses, DATE, 1.0, "complete", verdicts)
    return replace(whole, **changes).sorted()


def infected(text: str, message: str | None = None) -> Record:
    """A record every string of which is `text`, but for those that an enumeration limits."""
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
    records = [infected(text) for text in HOSTILE] + [infected(HOSTILE[0], long)]
    comparisons = [
        Comparison(records[0], records[i], (Change(ChangeKind.ADDED, text, text, text, text, text, text),), 1, (text,))
        for i, text in enumerate((*HOSTILE, long))
    ]
    return render(records, Comparisons(tuple(comparisons), (*HOSTILE, long)))
