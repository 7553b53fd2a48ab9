"""The blocks of README and docs that are made from committed records, and the tables of number formats."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache

from conformance.runner.baselines import BASELINES
from conformance.scenarios.definitions import FOLDER, SCENARIOS
from conformance.scenarios.definitions import markdown as scenario_table
from conformance.techniques import load_techniques
from conformance.techniques.low_precision import LOW_PRECISION
from results.record.folders import list_records, read
from results.record.model import UNJUDGED, Outcome, TestVerdict
from results.record.reading import Record, load
from results.show.clauses import outcome
from results.show.table import list_slowest, list_times, plain, seconds, seconds_by_clause
from tools.docs.generate import table
from tools.docs.promises import PROMISES, parameters
from tools.docs.promises import table as promise_table

WIDTH = 118
"""Width of the records' table in characters."""

COSTLIEST = 25
"""Number of clauses in the table of seconds."""

RANK_MODES = {
    "reference": ("ranks",),
    "torch": ("ddp", "fsdp", "fsdp1", "deepspeed"),
    "jax": ("sharded",),
    "tf": ("mirrored",),
    "paddle": ("data-parallel",),
}
"""The modes that train every recipe with two ranks, by framework."""

RANK_FAMILIES = ("accumulation", "composition", "master", "recompute", "resume", "scaling", "sharding")


@cache
def read_committed_records() -> tuple[Record, ...]:
    """Every committed record; of two records of a series, from different processors, the one with more judged tests."""

    def count_judged(record: Record) -> int:
        return sum(verdict.outcome not in UNJUDGED for verdict in record.verdicts)

    records = read([BASELINES])
    fullest = {record.series: record for record in sorted(records, key=count_judged)}
    return tuple(record for record in records if fullest[record.series] is record)


def _has_ranks(record: Record) -> bool:
    return record.series.mode in RANK_MODES.get(record.series.framework, ())


@cache
def baselines() -> tuple[Record, ...]:
    """The committed records that later ones are compared with, without those of modes with ranks."""
    return tuple(record for record in read_committed_records() if not _has_ranks(record))


def _of_processors() -> list[Record]:
    return [record for record in baselines() if record.series.device == "cpu"]


@cache
def load_scenarios() -> Mapping[str, list[Record]]:
    """The committed records of each scenario."""
    return {name: [load(path) for path in list_records(FOLDER / name)] for name in SCENARIOS}


def formats() -> Mapping[str, str]:
    """The formats and quantizers of frameworks on a CPU, and whether they follow their rules."""
    return format_blocks(_of_processors())


def ranks() -> Mapping[str, str]:
    """The outcomes of each family's tests with several ranks."""
    chosen = [record for record in read_committed_records() if _has_ranks(record)]
    counts = [Counter((v.clause.partition(".")[0], v.outcome) for v in record.verdicts) for record in chosen]
    rows = [
        (family, *(" · ".join(f"{count[family, o]} {o}" for o in Outcome if count[family, o]) for count in counts))
        for family in RANK_FAMILIES
    ]
    return {"ranks": table(("family", *(f"{r.series.framework} `{r.series.mode}`" for r in chosen)), rows)}


def records() -> str:
    """The outcomes of each family in every committed record, as a Markdown page."""
    return f"# Records\n\n```text\n{plain(read_committed_records(), WIDTH).strip(chr(10))}\n```\n"


def times_taken() -> Mapping[str, str]:
    """The seconds that the baselines of CPUs took."""
    records = _of_processors()
    return {
        "seconds by family": list_times(records, seconds),
        "seconds by clause": list_times(records, seconds_by_clause, COSTLIEST),
        "slowest tests": "\n".join(("```text", *list_slowest(records), "```")),
    }


def promises() -> Mapping[str, str]:
    """A table for each published promise."""
    return {name: promise_table(promise, baselines(), load_scenarios()) for name, promise in PROMISES.items()}


def scenarios() -> Mapping[str, str]:
    """A table of each scenario's records."""
    return {f"scenario {name}": scenario_table(SCENARIOS[name], records) for name, records in load_scenarios().items()}


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


def format_blocks(records: Sequence[Record]) -> dict[str, str]:
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
