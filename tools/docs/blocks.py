"""The blocks of README and docs that are made from expectations and committed records."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from itertools import chain

from conformance.known_failures.reading import load_known
from conformance.runner.baselines import BASELINES
from conformance.scenarios import SCENARIOS
from conformance.scenarios.launching import FOLDER
from conformance.scenarios.table import durations
from conformance.scenarios.table import markdown as scenario_table
from results.record.folders import listed
from results.record.reading import Record, load
from results.show import times
from results.show.table import plain
from tools.docs import example_failure, findings, formats, ranks
from tools.docs.promises import PROMISES, table

WIDTH = 118
"""Columns of the baselines' table."""

COSTLIEST = 25
"""How many clauses the table of seconds has."""


@cache
def _committed() -> tuple[Record, ...]:
    return tuple(load(path) for path in listed(BASELINES))


@cache
def baselines() -> tuple[Record, ...]:
    """The committed records that later ones are compared with, those of modes with ranks left out."""
    return tuple(record for record in _committed() if not ranks.has_ranks(record))


def _of_processors() -> list[Record]:
    return [record for record in baselines() if record.series.device == "cpu"]


def of_formats() -> Mapping[str, str]:
    """Which formats and quantizers frameworks have, and keep, on a CPU."""
    return formats.blocks(_of_processors())


def with_ranks() -> Mapping[str, str]:
    """What the families say of runs of two ranks."""
    return ranks.blocks(_committed())


@cache
def trained() -> Mapping[str, list[Record]]:
    """The committed records of each scenario."""
    return {name: [load(path) for path in listed(FOLDER / name)] for name in SCENARIOS}


def failure() -> Mapping[str, str]:
    """A clause, its test, and what the test prints for a copy of the reference with one bug."""
    return {"failure": example_failure.block()}


def tables() -> Mapping[str, str]:
    """The baselines as a table, and where the time of those of CPUs went."""
    records = _of_processors()
    return {
        "baselines": f"```text\n{plain(baselines(), WIDTH).strip(chr(10))}\n```",
        "seconds by family": times.markdown(records, times.seconds),
        "seconds by clause": times.markdown(records, times.by_clause, COSTLIEST),
        "slowest tests": "\n".join(("```text", *times.listed(records, "test", times.SLOWEST), "```")),
    }


def known_failures() -> Mapping[str, str]:
    """The findings behind adapters' expectations, and the adapters' workarounds."""
    return findings.blocks(load_known())


def promises() -> Mapping[str, str]:
    """A table for each published promise."""
    records = [*baselines(), *chain.from_iterable(trained().values())]
    return {name: table(quantities, records) for name, quantities in PROMISES.items()}


def scenarios() -> Mapping[str, str]:
    """A table of each scenario's records, and one of the time that they took."""
    tables = {f"scenario {name}": scenario_table(SCENARIOS[name], records) for name, records in trained().items()}
    return {"scenario times": durations(trained()), **tables}
