"""The blocks of README and docs: committed records, number formats, ways, drawn programs, and the page of clauses."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import groupby

from conformance.cli.spec import WAYS_HEADER, ways_rows
from conformance.generative import coverage
from conformance.known_failures.reading import load_known
from conformance.runner.baselines import BASELINES
from conformance.scenarios.definitions import FOLDER, SCENARIOS, markdown_table
from conformance.scenarios.definitions import markdown as scenario_table
from conformance.spec.clauses import Clause, Level, load_clauses
from conformance.techniques import load_techniques
from conformance.techniques.low_precision import LOW_PRECISION
from frameworks.registry import built_in
from frameworks.registry import load as load_framework
from results.record.folders import list_records, read
from results.record.model import UNJUDGED, Outcome, TestVerdict
from results.record.reading import Record, load
from results.show.clauses import is_url, outcome
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


def page(clauses: Mapping[str, Clause] | None = None) -> str:
    """Clauses, by default the suite's, as a Markdown page with a table for each family and an anchor by clause."""
    return "\n".join(_lines(clauses or load_clauses())) + "\n"


def _lines(clauses: Mapping[str, Clause]) -> Iterator[str]:
    counts = {level: sum(clause.level is level for clause in clauses.values()) for level in Level}
    yield "# Clauses"
    yield ""
    yield f"{len(clauses)} clauses: " + ", ".join(f"{n} {level}" for level, n in counts.items() if n) + "."
    yield "MUST, SHOULD and MAY are judged. An OBSERVATION is a legitimate difference, recorded and compared; a"
    yield "MEASUREMENT is a cost. In formulas `S` is the loss scale, `k` the number of micro-batches in a window and"
    yield "`u` the unit roundoff of a format."
    for family, members in groupby(clauses.values(), key=lambda clause: clause.family):
        yield from ("", f"## {family}", "")
        yield "| clause | level | requirement | observed by | source | broken before |"
        yield "|---|---|---|---|---|---|"
        for clause in members:
            history = "<br>".join(f"[{i.thread}]({i.url}): {_clause_cell(i.what)}" for i in clause.history)
            cells = (clause.requirement, clause.observed_by, clause.source)
            anchor = f'<a id="{clause.id}"></a>`{clause.id}`'
            yield f"| {anchor} | {clause.level} | {' | '.join(map(_clause_cell, cells))} | {history} |"


def _clause_cell(text: str) -> str:
    return text.replace("|", "\\|")


@cache
def blocks() -> Mapping[str, str]:
    """The texts of the blocks of tables, by name."""
    reference = load_framework("reference", "cpu")
    return {
        "drawn": coverage.table(coverage.draw_cases(reference), reference),
        "left out of drawing": exclusions(),
        "beyond drawing": ", ".join(f"[{clause}](clauses.md#{clause})" for clause in coverage.beyond_drawing()),
    }


def exclusions() -> str:
    """Every exclusion as a row: where, under which condition, and what goes wrong there."""
    rows = []
    for name in built_in():
        for entry in load_known([name]).exclusions:
            link = entry.finding.text.link
            finding = f"[{entry.finding.id}]({link})" if is_url(link) else f"`{entry.finding.id}`"
            rows.append((name, entry.mode, " and ".join(f"`{feature}`" for feature in entry.when), finding))
    return table(("framework", "mode", "a program that has", "finding"), rows)


def ways() -> Mapping[str, str]:
    """The block "ways": a table for each adapter that declares any."""
    parts = []
    for name in built_in():
        if rows := [(f"`{way}`", f"`{calls}`", limits) for way, calls, limits in ways_rows(name)]:
            parts.append(f"**{name}**\n\n{markdown_table(WAYS_HEADER, rows)}")
    return {"ways": "\n\n".join(parts)}
