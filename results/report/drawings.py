"""Vega-Lite specifications by Altair, without text of a record: the page adds rows with these columns.

`x` step or value, `y` value, `lo` and `hi` a band, `p` the part of the drawing, `r` a run, `c` its colour, `o` order,
`g` a row's label, `h` a column's label, `k` a category, `w` the text of a cell, `t` the text of a tooltip.
"""

from __future__ import annotations

from typing import Any

import altair as alt

from results.report.runs import COLOURS, DASHES, SHAPES

CATEGORIES = ("low", "follows", "wide", "other")
"""Output formats of an operation: low precision, same as the input, float32 or wider, or something else."""

_KEYS = [str(index) for index in range(COLOURS)]
_FONT = "system-ui, sans-serif"


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
