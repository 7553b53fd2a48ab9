"""Observed values and measured costs, one row each and a column for each framework; and curves of the runs."""

import re
from collections.abc import Iterator, Mapping, Sequence
from math import isfinite
from statistics import median
from typing import Any

from results.record.model import Json, encode_number
from results.record.reading import Curves, Record
from results.report.matrix import Matrix, select_frameworks
from results.report.text import NAME, clean, format_value
from results.show.portability import ORACLE, Place, differ, leaves, parameters

FORMATS = "autocast.op-dtypes"
"""The clause whose observations are formats by operation."""

_RULES = re.compile(r"scaling\.paper-defaults|.+-rule")
_POINTS = 5000


def observations(matrix: Matrix, records: Sequence[Record]) -> list[dict[str, Any]]:
    """Return observed values in groups: defaults and rules, other differing values, formats, and equal values."""
    by_place: dict[Place, dict[int, Json]] = {}
    for run, record in enumerate(records):
        for location, value in leaves(record):
            by_place.setdefault(location, {})[run] = value
    compared = select_frameworks(records)
    groups: dict[str, list[dict[str, Any]]] = {
        "Defaults and rules": [],
        "Other observations that differ between frameworks": [],
        "Formats of operations under autocast": [],
        "The same in every framework, or an explanation in words": [],
    }
    rules, differing, formats, same = groups.values()
    for location in sorted(by_place):
        clause, key, case, way = location
        by_run = by_place[location]
        named = [(records[run].series.framework, value) for run, value in by_run.items()]
        differs = differ(location, [(name, value) for name, value in named if name in compared])
        name = " › ".join(part for part in (key, *way) if part)
        shown = {run: format_value(value, NAME) or "empty text" for run, value in by_run.items()}
        row = _row(matrix, clause, name, "" if case == key else case, shown, differs)
        group = differing if differs else same
        (rules if _RULES.fullmatch(clause) else formats if clause == FORMATS else group).append(row)
    return [
        {"title": title, "rows": sorted(rows, key=lambda row: not row["differs"])}
        for title, rows in groups.items()
        if rows
    ]


def costs(matrix: Matrix, records: Sequence[Record]) -> list[dict[str, Any]]:
    """Return the median of every measurement, with minimum and maximum where they differ."""
    rows: dict[tuple[str, str, str, str], dict[int, str]] = {}
    for run, record in enumerate(records):
        for one in record.measurements:
            samples = [sample for sample in one.samples if isfinite(sample)]
            if samples:
                span = min(samples), median(samples), max(samples)
                low, middle, high = (f"{value:,.4g}" if value % 1 else f"{value:,.0f}" for value in span)
                text = middle if low == high else f"{middle} ({low} to {high})"
                rows.setdefault((one.clause, one.key, parameters(one.case), one.unit), {})[run] = text
    return [
        _row(matrix, clause, f"{key}, in {unit}" if unit else key, case, shown)
        for (clause, key, case, unit), shown in sorted(rows.items())
    ]


def _row(
    matrix: Matrix, clause: str, name: str, case: str, shown: Mapping[int, str], differs: bool = False
) -> dict[str, Any]:
    """Texts of runs by framework: equal ones once, each with its runs where these are not all."""
    cells = []
    for column in matrix.frameworks:
        texts: dict[str, list[int]] = {}
        for run in column.runs:
            if run in shown:
                texts.setdefault(shown[run], []).append(run)
        cells.append([(text, _runs(matrix, runs) if len(texts) > 1 else "") for text, runs in texts.items()])
    return {"clause": clause, "name": name, "case": case, "cells": cells, "differs": differs}


def _runs(matrix: Matrix, runs: Sequence[int]) -> str:
    return ", ".join(matrix.runs[run].slug.removeprefix(f"{matrix.runs[run].framework}-") for run in runs)


def curves(matrix: Matrix, records: Sequence[Record]) -> dict[str, Any]:
    """The document from which the page draws: the runs, and the lines of each trace that has a loss or a scale.

    A line of losses has its own oracle where it differs from the trace's, which is that of the reference's own record
    if there is one.
    """
    slugs = [column.framework for column in matrix.frameworks]
    traces = [{(trace.key, trace.case): trace.curves for trace in record.traces} for record in records]
    dashes = [run.runs[0] - matrix.frameworks[slugs.index(run.framework)].runs[0] for run in matrix.runs]
    return {
        "runs": [
            {"label": run.label, "colour": slugs.index(run.framework), "dash": dash}
            for run, dash in zip(matrix.runs, dashes, strict=True)
        ],
        "losses": list(_losses(records, traces)),
        "scales": [{"name": name, "lines": lines} for name, _, lines in _by_trace(traces, "scale")],
    }


_Name = tuple[str, str]
_Traces = Sequence[Mapping[_Name, Curves]]


def _by_trace(traces: _Traces, series: str) -> list[tuple[str, _Name, list[dict[str, Any]]]]:
    """Return title, name and lines of each trace, the traces with most runs and updates first."""
    lines: dict[_Name, list[dict[str, Any]]] = {}
    for run, named in enumerate(traces):
        for name, trace in named.items():
            if trace.get(series):
                lines.setdefault(name, []).append({"run": run, "points": _numbers(trace[series])})
    order = sorted(lines, key=lambda name: (-len(lines[name]), -max(len(li["points"]) for li in lines[name]), name))
    return [(_title(traces, name, series), name, lines[name]) for name in order]


def _title(traces: _Traces, name: _Name, series: str) -> str:
    longest = max(len(named.get(name, {}).get(series, ())) for named in traces)
    cut = f" (the first {_POINTS} of {longest} updates)" if longest > _POINTS else ""
    key, case = name
    return clean("/".join(filter(None, ("" if key == series else key, case)))) + cut


def _losses(records: Sequence[Record], traces: _Traces) -> Iterator[dict[str, Any]]:
    for title, name, lines in _by_trace(traces, "loss"):
        base = _oracle(_base(records, traces, name))
        for line in lines:
            own = _oracle(traces[line["run"]][name])
            if own["exact"] and own != base:
                line["own"] = own
        yield {"name": title, "lines": lines, **base}


def _base(records: Sequence[Record], traces: _Traces, name: _Name) -> Curves:
    """Return the oracle's curves: from its own record if there is one, else from the first record that has them."""
    oracles = [record.series.framework == ORACLE for record in records]
    order = sorted(range(len(records)), key=lambda run: not oracles[run])
    for run in order:
        if traces[run].get(name, {}).get("exact"):
            return traces[run][name]
    own = [traces[run][name] for run in order if oracles[run] and name in traces[run]]
    return {"exact": own[0].get("loss", ())} if own else {}


def _oracle(trace: Curves) -> dict[str, list[Any]]:
    return {"exact": _numbers(trace.get("exact", ())), "spread": _numbers(trace.get("spread", ()))}


def _numbers(points: Sequence[float]) -> list[Any]:
    return [encode_number(float(f"{point:.9g}")) for point in points[:_POINTS]]
