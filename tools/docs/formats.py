"""Table of each framework's formats and quantizers, and whether they keep their rules, from the committed records."""

import re
from collections.abc import Mapping, Sequence

from conformance.techniques import load_techniques
from conformance.techniques.low_precision import LOW_PRECISION
from results.record.model import UNJUDGED, Outcome, TestVerdict
from results.record.reading import Record
from results.show.clauses import outcome
from tools.docs.generate import table
from tools.docs.promises import parameters

FAMILIES = ("formats", "quantization")
_Cells = Mapping[str, Sequence[TestVerdict]]
HOLDS = "pass"
"""The cell of a technique whose tests all pass."""

OTHER_MODES: Mapping[tuple[str, str], str] = {
    ("tf", "static-int8"): "tflite",
    ("torch", "weight-int8"): "torchao",
    ("torch", "weight-int4"): "torchao",
    ("torch", "load-int8"): "transformers",
    **{("torch", name): "torchao" for name in LOW_PRECISION.rows},
}
"""Techniques that are judged in another mode, which has no committed record, and that mode."""

_LIBRARY = re.compile(r"(.+?)(?: is|:) not installed")

ROWS = {name: text for technique in load_techniques() for name, text in technique.rows.items()}
"""The table's rows: text of a technique by the parameter or the clause that identifies its tests."""


def blocks(records: Sequence[Record]) -> dict[str, str]:
    """The block "formats", techniques down and frameworks across."""
    columns = {f"{r.series.framework} `{r.series.mode}`": _cells(r) for r in records if any(map(_family, r.verdicts))}
    columns = {name: cells for name, cells in columns.items() if any(map(_select_judged, cells.values()))}
    rows = [(text, *(_cell(name, row, cells[row]) for name, cells in columns.items())) for row, text in ROWS.items()]
    return {"formats": table(("technique", *columns), rows)}


def _family(verdict: TestVerdict) -> bool:
    return verdict.clause.partition(".")[0] in FAMILIES


def _cells(record: Record) -> _Cells:
    """The verdicts of each row's tests."""
    cells: dict[str, list[TestVerdict]] = {name: [] for name in ROWS}
    for verdict in filter(_family, record.verdicts):
        if name := _technique(verdict):
            cells[name].append(verdict)
    return cells


def _select_judged(verdicts: Sequence[TestVerdict]) -> list[Outcome]:
    return [verdict.outcome for verdict in verdicts if verdict.outcome not in UNJUDGED]


def _cell(column: str, technique: str, verdicts: Sequence[TestVerdict]) -> str:
    """The cell of a technique."""
    outcomes = _select_judged(verdicts)
    if not outcomes:
        return _summarize_unjudged(column.partition(" ")[0], technique, verdicts)
    if set(outcomes) - {Outcome.PASS, Outcome.KNOWN}:
        return "fails"
    known = outcomes.count(Outcome.KNOWN)
    return f"{known} of {len(outcomes)} known not to" if known else HOLDS


def _summarize_unjudged(framework: str, technique: str, verdicts: Sequence[TestVerdict]) -> str:
    """The reason why no test of a technique was judged."""
    if mode := OTHER_MODES.get((framework, technique)):
        return f"mode `{mode}`"
    reasons = (verdict.reason for verdict in verdicts if verdict.outcome is Outcome.UNSUPPORTED)
    if library := next(filter(None, map(_LIBRARY.match, reasons)), None):
        return f"needs {library[1]}"
    return str(outcome(verdicts)) if verdicts else "no test"


def _technique(verdict: TestVerdict) -> str:
    """The row of a test, "" if there is none."""
    if row := next(filter(None, (technique.row_of(verdict.clause) for technique in load_techniques())), ""):
        return row
    return max((name for name in ROWS if f"-{name}-" in f"-{parameters(verdict.case)}-"), key=len, default="")
