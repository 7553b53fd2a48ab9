"""Promises of publications and guides next to the records' values: a Markdown table for each promise.

A row is one quantity: a count or a time of a clause of cost (`results.compare.ratio`), or a figure of a scenario.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from conformance.scenarios.definitions import NONE, SCENARIOS, markdown_table, rows
from results.compare.ratio import ratio
from results.record.reading import Measurement, Record
from results.show.clauses import title


@dataclass(frozen=True)
class Promise:
    """One promise.

    Attributes:
        costs: the document's figure, by a regular expression that "CLAUSE KEY" of a measurement matches.
        scenarios: scenarios with published quantities of the promise.
        quantities: regular expression for the names of those quantities.
    """

    costs: Mapping[str, str] = field(default_factory=dict)
    scenarios: tuple[str, ...] = ()
    quantities: str = ""


PROMISES: Mapping[str, Promise] = {
    "mixed precision's bytes": Promise({"cost.mixed-bytes .*": "0.5"}, ("sincos", "opt-levels"), "bytes"),
    "mixed precision's time": Promise(
        {r"cost.mixed-speed seconds a step, O1-\w+(, products, TF32 \w+)?": "0.5 or less"}, ("sincos",), "time"
    ),
    "recomputation": Promise(
        {"cost.recompute-bytes .*, 4 segments": "0.4 to 0.5", "cost.recompute-time .*": "1.15 to 1.25"},
        ("segments",),
        "bytes|time",
    ),
    "accumulation": Promise(
        {f"cost.accumulation-bytes .* of {k} micro-batches .*": f"{1 / k:g}" for k in (2, 8)}, ("digits-accumulation",)
    ),
    "sharded bytes": Promise(scenarios=("fsdp", "shard-grad-op"), quantities="bytes"),
    "offloaded bytes": Promise(scenarios=("cpu-offload", "disk-offload"), quantities="bytes"),
    "quantized bytes": Promise(
        scenarios=("dynamic-int8", "static-int8", "weight-only", "int8-load", "qat", "adam-8bit"), quantities="bytes"
    ),
}
"""The promises by the names of their blocks."""


def table(promise: Promise, baselines: Sequence[Record], trained: Mapping[str, Sequence[Record]]) -> str:
    """The table of a promise's quantities; records with equal values share a row.

    Args:
        trained: records of each scenario.
    """
    names: dict[tuple[str, str, str], list[str]] = {}
    for quantity, document, record, text in (*_costs(promise, baselines), *_find_published_cells(promise, trained)):
        names.setdefault((quantity, document, text), []).append(" ".join(title(record)))
    lines = [(quantity, document, "; ".join(records), text) for (quantity, document, text), records in names.items()]
    return markdown_table(("quantity", "document", "record", "counted or measured"), sorted(lines))


def _costs(promise: Promise, records: Sequence[Record]) -> Iterator[tuple[str, str, Record, str]]:
    for record in records:
        for cost in record.measurements:
            for pattern, document in promise.costs.items():
                if re.fullmatch(pattern, f"{cost.clause} {cost.key}"):
                    yield f"{cost.key} ({parameters(cost.case)})", document, record, _text(cost)


def _find_published_cells(
    promise: Promise, trained: Mapping[str, Sequence[Record]]
) -> Iterator[tuple[str, str, Record, str]]:
    for name in promise.scenarios:
        for row in rows(SCENARIOS[name], trained[name]):
            for record, cell in zip(trained[name], row.cells, strict=True):
                if row.document and cell != NONE and re.search(promise.quantities, row.quantity):
                    yield f"{name}, {row.side}: {row.quantity}", row.document, record, cell


def _text(cost: Measurement) -> str:
    """A count, or the interval of a time over its control."""
    if not cost.control:
        return f"{cost.samples[0]:.3g}"
    interval = ratio(cost.control, cost.samples)
    if interval.judged:
        return f"{interval.low:.2f} to {interval.high:.2f}"
    return f"{interval.new / interval.old:.2g} of {interval.pairs} pairs" if interval.pairs and interval.old else NONE


def parameters(case: str) -> str:
    """The parameters of a test's case, "" without any."""
    return case.partition("[")[2].removesuffix("]")
