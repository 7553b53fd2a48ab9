"""The blocks of README and docs that are made from committed records."""

from collections import Counter
from collections.abc import Mapping
from functools import cache

from conformance.runner.baselines import BASELINES
from conformance.scenarios.definitions import FOLDER, SCENARIOS
from conformance.scenarios.definitions import markdown as scenario_table
from results.record.folders import list_records, read
from results.record.model import UNJUDGED, Outcome
from results.record.reading import Record, load
from results.show.table import list_slowest, list_times, plain, seconds, seconds_by_clause
from tools.docs.formats import blocks as format_blocks
from tools.docs.generate import table
from tools.docs.promises import PROMISES
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
