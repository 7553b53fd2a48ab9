"""What is drawn: traces, measurements and formats of the records as compact JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from statistics import median
from typing import Any

from results.record.reading import Record, Trace, encode_number
from results.record.values import Json
from results.report.drawings import CATEGORIES, costs, curves, formats, scales
from results.report.porting import FORMATS
from results.report.runs import Run
from results.report.text import clean, told
from results.show.observations import split
from results.show.portability import ORACLE

LOSS, SCALE, EXACT, SPREAD = "loss", "scale", "exact", "spread"
"""Names of the series of a trace that are drawn: the run's loss and scale, the oracle's loss, the spread around it."""

_POINTS = 5000
_WIDE = ("float32", "float64")
_LOW = ("float16", "bfloat16", "float8")


def payload(records: Sequence[Record], runs: Sequence[Run]) -> dict[str, Any]:
    """The document that the page's script draws from.

    Lists of lists, the outer ones an entry a choice of the reader:
        losses: [name, oracle's losses, spreads, [[run, losses, its own oracle's losses and spreads or None], ...]].
        scales: [name, [[run, scales], ...]].
        costs: [clause, unit, [[measurement, run, least, middle, largest, samples], ...]].
        formats: [name, [[operation, [[run, formats, category], ...]], ...]].
    """
    return {
        "runs": [[run.label, run.short, run.colour] for run in runs],
        "losses": _losses(records),
        "scales": [[_title(records, name, SCALE), here] for name, here in _by_trace(records, SCALE)],
        "costs": _costs(records),
        "formats": _formats(records),
        "specifications": _specifications(),
        "categories": list(CATEGORIES),
    }


@cache
def _specifications() -> Mapping[str, Any]:
    """The drawings, which are the same for all records."""
    return {
        "loss": curves("loss"),
        "loss-log": curves("loss, logarithmic", logarithmic=True),
        "distance": curves("distance from the oracle, in spreads"),
        "scale": scales(),
        "cost": costs(),
        "format": formats(),
    }


def _numbers(points: Sequence[float]) -> list[Any]:
    return [encode_number(float(f"{point:.9g}")) for point in points[:_POINTS]]


def _by_trace(records: Sequence[Record], series: str) -> list[tuple[str, list[list[Any]]]]:
    found: dict[str, list[list[Any]]] = {}
    for run, record in enumerate(records):
        for name, trace in record.traces.items():
            if trace.get(series):
                found.setdefault(name, []).append([run, _numbers(trace[series])])
    return sorted(found.items(), key=lambda item: (-len(item[1]), -max(len(points) for _, points in item[1]), item[0]))


def _losses(records: Sequence[Record]) -> list[list[Any]]:
    found = []
    for name, lines in _by_trace(records, LOSS):
        base = _oracle(_base(records, name))
        for line in lines:
            own = _oracle(records[line[0]].traces[name])
            line.append(own if own != base and own[0] else None)
        found.append([_title(records, name, LOSS), *base, lines])
    return found


def _title(records: Sequence[Record], name: str, series: str) -> str:
    longest = max(len(record.traces.get(name, {}).get(series, ())) for record in records)
    cut = f" (the first {_POINTS} of {longest} updates)" if longest > _POINTS else ""
    return clean(name.removeprefix(f"{series}/")) + cut


def _oracle(trace: Trace) -> list[Any]:
    return [_numbers(trace.get(EXACT, ())), _numbers(trace.get(SPREAD, ()))]


def _base(records: Sequence[Record], name: str) -> Trace:
    """The oracle's line: from its own record if there is one, else from the first that carries it."""
    having = [record for record in records if record.traces.get(name, {}).get(EXACT)]
    having.sort(key=lambda record: record.series.framework != ORACLE)
    if having:
        return having[0].traces[name]
    own = [record.traces[name] for record in records if record.series.framework == ORACLE and name in record.traces]
    return {EXACT: own[0].get(LOSS, ())} if own else {}


def _costs(records: Sequence[Record]) -> list[list[Any]]:
    found: dict[tuple[str, str], list[list[Any]]] = {}
    for run, record in enumerate(records):
        for name, measurement in record.measurements.items():
            samples = [sample for sample in measurement.samples if isinstance(encode_number(sample), int | float)]
            if samples:
                _, key, case = split(f"/{name}")
                label = f"{clean(key)} [{clean(case, 80)}]" if case else clean(key)
                spread = _numbers([min(samples), median(samples), max(samples)])
                found.setdefault((measurement.clause, measurement.unit), []).append([label, run, *spread, len(samples)])
    rows = sorted(found.items())
    return [
        [clean(clause), clean(unit, 24), sorted(lines, key=lambda line: line[:2])] for (clause, unit), lines in rows
    ]


def _formats(records: Sequence[Record]) -> list[list[Any]]:
    found: dict[str, dict[str, list[list[Any]]]] = {}
    for run, record in enumerate(records):
        for name, value in record.observations.items():
            clause, key, _ = split(name)
            if clause == FORMATS and isinstance(value, Mapping):
                for operation, formats in value.items():
                    cell = [run, told(formats, 60), _category(formats)]
                    found.setdefault(key, {}).setdefault(operation, []).append(cell)
    return [
        [clean(key), [[clean(operation, 60), cells] for operation, cells in sorted(operations.items())]]
        for key, operations in sorted(found.items())
    ]


def _category(formats: Json) -> int:
    parts = [part.strip() for part in formats.split("/")] if isinstance(formats, str) else []
    if len(parts) == 2 and all(part in _LOW for part in parts):
        return CATEGORIES.index("low")
    if len(parts) == 2 and all(part in _WIDE for part in parts):
        return CATEGORIES.index("wide")
    if len(parts) == 2 and parts[0] in _WIDE and parts[1] in _LOW:
        return CATEGORIES.index("follows")
    return CATEGORIES.index("other")
