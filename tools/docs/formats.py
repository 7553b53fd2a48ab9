"""Which formats and quantizers each framework has, and whether they keep their rules, from the committed records."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import chain

from conformance.techniques.registry import TECHNIQUES
from fixtures.narrow import NARROW
from results.record.model import TestVerdict
from results.record.outcomes import UNJUDGED, Outcome
from results.record.reading import Record
from results.show.clauses import outcome
from tools.docs.figures import parameters
from tools.docs.generate import table

FAMILIES = ("formats", "quantization")
_Cells = Mapping[str, Sequence[TestVerdict]]
HOLDS = "pass"
"""The cell of a technique of which every test passes."""

OTHER_MODES: Mapping[tuple[str, str], str] = {
    ("tf", "static-int8"): "tflite",
    ("torch", "weight-int8"): "torchao",
    ("torch", "weight-int4"): "torchao",
    ("torch", "load-int8"): "transformers",
}
"""Techniques that a framework is judged for in another mode, of which no record is committed, and that mode."""

_LIBRARY = re.compile(r"(.+?)(?: is|:) not installed")

_TEXTS = {name: text for technique in TECHNIQUES for name, text in technique.rows.items()}

_QUANTIZERS = ("int8-tensor", "int8-row", "int8-column", "uint8-tensor", "int4-group")
SHORT: dict[str, tuple[str, ...]] = {
    "casts, quantized matmul": (*NARROW, "integer-products", "float8-products", "delayed-scaling"),
    "quantizers, packed int4": (*_QUANTIZERS, "int4-packing"),
    "fake quantization": tuple(name for name in _TEXTS if name.startswith("fake-")),
    "post-training int8, dynamic": ("dynamic-int8",),
    "post-training int8, static": ("static-int8",),
    "weight-only int8 and int4, 8-bit loading": ("weight-int8", "weight-int4", "load-int8"),
    "float8 training, QAT, conversion": ("float8-training", "aware", "convert"),
    "8-bit Adam": ("adam-8bit",),
}
"""Rows that the short table joins."""
ROWS = {name: _TEXTS[name] for name in (*chain(*SHORT.values()), *_TEXTS)}
"""What a test is about, by the parameter that names it, or by its clause, and how it is called in a table."""


def blocks(records: Sequence[Record]) -> dict[str, str]:
    """The block "formats", techniques down and frameworks across, and "formats in short", the same joined."""
    columns = {f"{r.series.framework} `{r.series.mode}`": _cells(r) for r in records if any(map(_family, r.verdicts))}
    rows = {
        name: {row: _said(name, {row: verdicts}) for row, verdicts in cells.items()}
        for name, cells in columns.items()
        if any(map(_judged, cells.values()))
    }
    joined = {
        name: {row: _said(name, {part: cells[part] for part in parts}) for row, parts in SHORT.items()}
        for name, cells in _widest(columns).items()
    }
    return {"formats": _table(ROWS, rows), "formats in short": _table(dict(zip(SHORT, SHORT, strict=True)), joined)}


def _table(rows: Mapping[str, str], columns: Mapping[str, Mapping[str, str]]) -> str:
    lines = [(text, *(cells[row] for cells in columns.values())) for row, text in rows.items()]
    return table(("technique", *columns), lines)


def _widest(columns: Mapping[str, _Cells]) -> dict[str, _Cells]:
    """Of each framework the mode in which most is judged, of several the one with the shortest name."""
    result: dict[str, str] = {}
    for name in sorted(columns, key=lambda name: (-sum(map(len, map(_judged, columns[name].values()))), len(name))):
        result.setdefault(name.partition(" ")[0], name)
    return {result[framework]: columns[result[framework]] for framework in sorted(result)}


def _family(verdict: TestVerdict) -> bool:
    return verdict.clause.partition(".")[0] in FAMILIES


def _cells(record: Record) -> _Cells:
    """The verdicts of the tests that are about each row."""
    cells: dict[str, list[TestVerdict]] = {name: [] for name in ROWS}
    for verdict in filter(_family, record.verdicts):
        if name := _technique(verdict):
            cells[name].append(verdict)
    return cells


def _judged(verdicts: Sequence[TestVerdict]) -> list[Outcome]:
    return [verdict.outcome for verdict in verdicts if verdict.outcome not in UNJUDGED]


def _said(column: str, cells: _Cells) -> str:
    """One cell about these techniques."""
    judged = [_judged(verdicts) for verdicts in cells.values()]
    outcomes = list(chain(*judged))
    if not outcomes:
        framework = column.partition(" ")[0]
        return ", ".join(dict.fromkeys(_why_not(framework, *cell) for cell in cells.items()))
    known = outcomes.count(Outcome.KNOWN)
    said = f"{known} of {len(outcomes)} known not to" if known else HOLDS
    if set(outcomes) - {Outcome.PASS, Outcome.KNOWN}:
        said = "fails"
    return said if all(judged) else f"{said} ({sum(map(bool, judged))} of {len(cells)} techniques)"


def _why_not(framework: str, technique: str, verdicts: Sequence[TestVerdict]) -> str:
    """Why no test of a technique was judged."""
    if mode := OTHER_MODES.get((framework, technique)):
        return f"mode `{mode}`"
    reasons = (verdict.reason for verdict in verdicts if verdict.outcome is Outcome.UNSUPPORTED)
    if library := next(filter(None, map(_LIBRARY.match, reasons)), None):
        return f"needs {library[1]}"
    return str(outcome(verdicts)) if verdicts else "no test"


def _technique(verdict: TestVerdict) -> str:
    """The row that a test is about, "" if none."""
    if row := next(filter(None, (technique.row_of(verdict.clause) for technique in TECHNIQUES)), ""):
        return row
    return max((name for name in ROWS if f"-{name}-" in f"-{parameters(verdict.case)}-"), key=len, default="")
