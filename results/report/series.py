"""Charts: traces, measurements and formats of the records as compact JSON, and Vega-Lite specifications by Altair.

The specifications have no text of a record: the page adds rows with these columns. `x` step or value, `y` value, `lo`
and `hi` a band, `p` the part of the drawing, `r` a run, `c` its colour, `o` order, `g` a row's label, `h` a column's
label, `k` a category, `w` the text of a cell, `t` the text of a tooltip.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from math import isfinite
from statistics import median
from typing import Any

import altair as alt

from results.record.reading import Curves, Record
from results.record.values import Json, encode_number
from results.report.porting import FORMATS
from results.report.runs import COLOURS, DASHES, SHAPES, RunColumn
from results.report.text import clean, described
from results.show.observations import parameters
from results.show.portability import ORACLE

LOSS, SCALE, EXACT, SPREAD = "loss", "scale", "exact", "spread"
"""Names of the drawn series of a trace: the run's loss and scale, the oracle's loss, the spread around it."""

_POINTS = 5000
_WIDE = ("float32", "float64")
_LOW = ("float16", "bfloat16", "float8")

CATEGORIES = ("low", "follows", "wide", "other")
"""Output formats of an operation: low precision, same as the input, float32 or wider, or something else."""

_KEYS = [str(index) for index in range(COLOURS)]
_FONT = "system-ui, sans-serif"


def payload(records: Sequence[Record], runs: Sequence[RunColumn]) -> dict[str, Any]:
    """The document from which the page's script draws.

    Lists of lists, one entry of the outer list for each choice of the reader:
        losses: [name, oracle's losses, spreads, [[run, losses, its own oracle's losses and spreads or None], ...]].
        scales: [name, [[run, scales], ...]].
        costs: [clause, unit, [[measurement, run, minimum, median, maximum, samples], ...]].
        formats: [name, [[operation, [[run, formats, category], ...]], ...]].
    """
    curves = [{(trace.key, trace.case): trace.curves for trace in record.traces} for record in records]
    return {
        "runs": [[run.label, run.short, run.colour] for run in runs],
        "losses": _losses(records, curves),
        "scales": [[_title(curves, name, SCALE), here] for name, here in _by_trace(curves, SCALE)],
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


_Name = tuple[str, str]
"""Key and case of a trace."""


def _by_trace(curves: Sequence[Mapping[_Name, Curves]], series: str) -> list[tuple[_Name, list[list[Any]]]]:
    lines: dict[_Name, list[list[Any]]] = {}
    for run, named in enumerate(curves):
        for name, trace in named.items():
            if trace.get(series):
                lines.setdefault(name, []).append([run, _numbers(trace[series])])
    return sorted(lines.items(), key=lambda item: (-len(item[1]), -max(len(points) for _, points in item[1]), item[0]))


def _losses(records: Sequence[Record], curves: Sequence[Mapping[_Name, Curves]]) -> list[list[Any]]:
    charts = []
    for name, lines in _by_trace(curves, LOSS):
        base = _oracle(_base(records, curves, name))
        for line in lines:
            own = _oracle(curves[line[0]][name])
            line.append(own if own != base and own[0] else None)
        charts.append([_title(curves, name, LOSS), *base, lines])
    return charts


def _title(curves: Sequence[Mapping[_Name, Curves]], name: _Name, series: str) -> str:
    longest = max(len(named.get(name, {}).get(series, ())) for named in curves)
    cut = f" (the first {_POINTS} of {longest} updates)" if longest > _POINTS else ""
    key, case = name
    return clean("/".join(filter(None, ("" if key == series else key, case)))) + cut


def _oracle(trace: Curves) -> list[Any]:
    return [_numbers(trace.get(EXACT, ())), _numbers(trace.get(SPREAD, ()))]


def _base(records: Sequence[Record], curves: Sequence[Mapping[_Name, Curves]], name: _Name) -> Curves:
    """The oracle's curves: from its own record if there is one, else from the first record that has them."""
    oracles = [record.series.framework == ORACLE for record in records]
    having = [place for place, named in enumerate(curves) if named.get(name, {}).get(EXACT)]
    having.sort(key=lambda place: not oracles[place])
    if having:
        return curves[having[0]][name]
    own = [named[name] for named, oracle in zip(curves, oracles, strict=True) if oracle and name in named]
    return {EXACT: own[0].get(LOSS, ())} if own else {}


def _costs(records: Sequence[Record]) -> list[list[Any]]:
    lines: dict[tuple[str, str], list[list[Any]]] = {}
    for run, record in enumerate(records):
        for one in record.measurements:
            samples = [sample for sample in one.samples if isfinite(sample)]
            if samples:
                case = parameters(one.case)
                label = f"{clean(one.key)} [{clean(case, 80)}]" if case else clean(one.key)
                spread = _numbers([min(samples), median(samples), max(samples)])
                lines.setdefault((one.clause, one.unit), []).append([label, run, *spread, len(samples)])
    return [
        [clean(clause), clean(unit, 24), sorted(each, key=lambda line: line[:2])]
        for (clause, unit), each in sorted(lines.items())
    ]


def _formats(records: Sequence[Record]) -> list[list[Any]]:
    rows: dict[str, dict[str, list[list[Any]]]] = {}
    for run, record in enumerate(records):
        for one in record.observations:
            if one.clause == FORMATS and isinstance(one.value, Mapping):
                for operation, formats in one.value.items():
                    cell = [run, described(formats, 60), _category(formats)]
                    rows.setdefault(one.key, {}).setdefault(operation, []).append(cell)
    return [
        [clean(key), [[clean(operation, 60), cells] for operation, cells in sorted(operations.items())]]
        for key, operations in sorted(rows.items())
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


def _colour() -> alt.Color:
    scale = alt.Scale(domain=_KEYS, range=[f"var(--run-{key})" for key in _KEYS])
    return alt.Color("c:N", scale=scale, legend=None)


def _dash() -> alt.StrokeDash:
    dashes = [list(dash) or [1, 0] for dash in DASHES]
    return alt.StrokeDash("c:N", scale=alt.Scale(domain=_KEYS, range=dashes), legend=None)


def _shape() -> alt.Shape:
    return alt.Shape("c:N", scale=alt.Scale(domain=_KEYS, range=list(SHAPES)), legend=None)


def _rows() -> alt.NamedData:
    return alt.NamedData(name="rows")


def _steps(title: str) -> alt.X:
    return alt.X("x:Q", title=title, axis=alt.Axis(format="d"), scale=alt.Scale(nice=False, padding=12))


def curves(title: str, logarithmic: bool = False) -> dict[str, Any]:
    """Lines of the runs over the oracle's line and its band."""
    chart = alt.Chart(_rows())
    scale = alt.Scale(type="log", nice=False) if logarithmic else alt.Scale(zero=False)
    y = alt.Y("y:Q", title=title, scale=scale, axis=alt.Axis(tickCount=6))
    band = (
        chart.transform_filter("datum.p === 'band'")
        .mark_area(color="var(--band)", opacity=1)
        .encode(x=_steps("update"), y=alt.Y("lo:Q", title=title, scale=scale), y2="hi:Q")
    )
    base = (
        chart.transform_filter("datum.p === 'base'")
        .mark_line(color="var(--ink)", strokeWidth=1)
        .encode(x=_steps("update"), y=y)
    )
    lines = chart.transform_filter("datum.p === 'run'").encode(x=_steps("update"), y=y, color=_colour(), detail="r:N")
    marks = lines.mark_point(filled=True, size=50, opacity=1).encode(shape=_shape(), tooltip=alt.Tooltip("t:N"))
    return _finished(alt.layer(band, base, lines.mark_line(strokeWidth=1.5).encode(strokeDash=_dash()), marks))


def scales() -> dict[str, Any]:
    """The loss scale of the runs, update by update, on a logarithmic axis."""
    y = alt.Y("y:Q", title="loss scale", scale=alt.Scale(type="log", base=2, nice=False), axis=alt.Axis(format="~s"))
    lines = alt.Chart(_rows()).encode(x=_steps("update"), y=y, color=_colour(), detail="r:N")
    marks = lines.mark_point(filled=True, size=35, opacity=1).encode(shape=_shape(), tooltip=alt.Tooltip("t:N"))
    steps = lines.mark_line(interpolate="step-after", strokeWidth=1.5).encode(strokeDash=_dash())
    return _finished(alt.layer(steps, marks))


def costs() -> dict[str, Any]:
    """The median of every measurement and run, with minimum and maximum."""
    y = alt.Y("g:N", title=None, sort=alt.EncodingSortField("o", "min"), axis=alt.Axis(labelLimit=260, grid=True))
    offset = alt.YOffset("r:N", sort=alt.EncodingSortField("r", "min"))
    chart = alt.Chart(_rows()).encode(y=y, yOffset=offset, color=_colour())
    span = chart.mark_rule(strokeWidth=2).encode(x=alt.X("lo:Q", title=None, scale=alt.Scale(zero=True)), x2="hi:Q")
    middle = chart.mark_point(filled=True, size=70, opacity=1).encode(
        x=alt.X("x:Q", title=None, axis=alt.Axis(format="~s", tickCount=8)), shape=_shape(), tooltip=alt.Tooltip("t:N")
    )
    return _finished(alt.layer(span, middle))


def formats() -> dict[str, Any]:
    """Operations down, runs across, the output formats in each cell."""
    operations = alt.Axis(domain=False, ticks=False, labelLimit=200)
    runs = alt.Axis(domain=False, ticks=False, orient="top", labelAngle=0, labelLimit=150, labelOverlap=False)
    y = alt.Y("g:N", title=None, sort=alt.EncodingSortField("o", "min"), axis=operations)
    x = alt.X("h:N", title=None, sort=alt.EncodingSortField("r", "min"), axis=runs)
    colour = alt.Color(
        "k:N",
        scale=alt.Scale(domain=list(CATEGORIES), range=[f"var(--cast-{name})" for name in CATEGORIES]),
        legend=None,
    )
    chart = alt.Chart(_rows()).encode(x=x, y=y, tooltip=alt.Tooltip("t:N"))
    cells = chart.mark_rect(stroke="var(--paper)", strokeWidth=2).encode(color=colour)
    words = chart.mark_text(fontSize=11, color="var(--ink)", limit=170).encode(text="w:N")
    return _finished(alt.layer(cells, words))


def _finished(chart: alt.LayerChart | alt.FacetChart, height: int = 280) -> dict[str, Any]:
    configured = (
        chart.properties(width="container", height=height, background="transparent")
        .configure(font=_FONT, aria=False)
        .configure_view(stroke=None)
        .configure_axis(
            labelColor="var(--ink-2)",
            titleColor="var(--ink-2)",
            gridColor="var(--line)",
            domainColor="var(--line-2)",
            tickColor="var(--line-2)",
            labelFontSize=12,
            titleFontSize=12,
            titleFontWeight="normal",
        )
    )
    specification: dict[str, Any] = configured.to_dict()
    specification.pop("$schema")
    specification.setdefault("datasets", {})["rows"] = []
    return specification
