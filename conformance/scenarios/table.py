"""The table of a scenario's records: sides and quantities by framework."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from conformance.scenarios.scenario import (
    MODEL,
    OFFLOADED,
    REDUCED,
    SAVED,
    SECONDS,
    Scenario,
    offloaded_bytes,
    rank_bytes,
    resident_bytes,
    share_of,
)
from results.compare.ratio import ratio
from results.record.files import one_line
from results.record.folders import WRITTEN
from results.record.model import Outcome
from results.record.reading import CheckResult, Measurement, Record
from results.show.clauses import title

FOLDER = WRITTEN / "scenarios"
"""Where the records of scenarios are, in a folder for each."""

NONE = "–"
"""Text of a cell without a value."""

_COUNTED = {
    SAVED: ("bytes held", "bytes", SAVED),
    MODEL: (MODEL, MODEL, MODEL),
    **{name: (name, name, name) for name in map(rank_bytes, ("parameter", "gradient", "optimizer"))},
    **{offloaded_bytes(kind): (*[offloaded_bytes(kind)] * 2, resident_bytes(kind)) for kind in OFFLOADED},
}
"""Byte quantities: name in the table, name of the share of the first side, and name of the first side's quantity."""


@dataclass(frozen=True)
class QuantityRow:
    """One quantity of one side: the document's figure, then a cell for each record."""

    side: str
    quantity: str
    document: str
    cells: tuple[str, ...]


def rows(scenario: Scenario, records: Sequence[Record]) -> list[QuantityRow]:
    """Quantities in at least one record or the document."""
    result: list[QuantityRow] = []
    for side in scenario.labels:
        columns = [dict(_quantities(record, side, scenario.labels[0])) for record in records]
        published = [name for label, name in scenario.published if label == side]
        for name in dict.fromkeys([*(name for column in columns for name in column), *published]):
            cells = tuple(column.get(name, NONE) for column in columns)
            result.append(QuantityRow(side, name, scenario.published.get((side, name), ""), cells))
    return result


def remarks(records: Sequence[Record]) -> list[str]:
    """Why a side has no numbers or failed, and the notes of the records, one line for each text."""
    reasons: dict[str, list[str]] = {}
    notes: dict[str, list[str]] = {}
    for record in records:
        name = f"{record.series.framework} {record.series.mode}"
        for verdict in record.verdicts:
            if verdict.outcome is not Outcome.PASS:
                text = f"{name}, {verdict.outcome}: {verdict.reason or verdict.message}"
                reasons.setdefault(text, []).append(verdict.case)
        for note in record.notes:
            notes.setdefault(note, []).append(name)
    return [
        *(one_line(f"{'; '.join(sides)}: {text}") for text, sides in reasons.items()),
        *(one_line(f"{', '.join(frameworks)}: {note}") for note, frameworks in notes.items()),
    ]


def _quantities(record: Record, side: str, base: str) -> Iterator[tuple[str, str]]:
    verdict = next((verdict for verdict in record.verdicts if verdict.case == side), None)
    if verdict is None:
        return
    yield "outcome", verdict.outcome.value
    for check in verdict.checks:
        if isinstance(check.measured, int | float):
            yield check.what, _check_text(check, check.measured)
    for trace in record.traces:
        if trace.case == side and trace.curves.get("scale"):
            yield "loss scale at the end", f"{trace.curves['scale'][-1]:,.0f}"
    for quantity, (heading, share, base_quantity) in _COUNTED.items():
        counted, plain = sides_of(record, quantity).get(side), sides_of(record, base_quantity).get(base)
        if counted is not None:
            yield heading, f"{counted.samples[0]:,.0f}"
        if counted is not None and plain is not None and side != base:
            text = f"{counted.samples[0] / plain.samples[0]:.3g}" if plain.samples[0] else NONE
            yield share_of(share, base), text
    if reduced := sides_of(record, REDUCED).get(side):
        yield REDUCED, f"{reduced.samples[0]:.0f}"
    times = sides_of(record, SECONDS)
    if side in times:
        yield share_of("time", base), _ratio_text(times[side])
        yield SECONDS, f"{median(times[side].samples):.3g}"
    elif side == base and times:  # the control of the others
        yield SECONDS, f"{median(next(iter(times.values())).control):.3g}"


def sides_of(record: Record, quantity: str) -> dict[str, Measurement]:
    """The measurements of a quantity by side."""
    return {measured.case: measured for measured in record.measurements if measured.key == quantity}


def _check_text(check: CheckResult, measured: float) -> str:
    if check.what == "loss" and isinstance(check.bound, int | float):
        return f"{check.bound:.3g} → {measured:.3g}"
    return f"{measured:.0f} {check.expected}" if check.what == "skipped updates" else f"{measured:.3g}"


def _ratio_text(times: Measurement) -> str:
    result = ratio(times.control, times.samples)
    if result.judged:
        return f"{math.sqrt(result.low * result.high):.3g} ({result.low:.3g}–{result.high:.3g})"
    return f"{result.new / result.old:.2g}, too few rounds" if result.pairs and result.old else NONE


def markdown(scenario: Scenario, records: Sequence[Record]) -> str:
    """The table, the reasons and the notes."""
    lines, side = [], ""
    for row in rows(scenario, records):
        heading = "" if row.side == side else f"**{row.side}**"
        lines.append([heading, row.quantity, row.document, *row.cells])
        side = row.side
    headings = ["side", "quantity", "document", *(" ".join(title(record)) for record in records)]
    return "\n".join((markdown_table(headings, lines), "", *(f"- {line}" for line in remarks(records))))


def markdown_table(header: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    rule = ["---"] * len(header)
    safe = [[cell.replace("|", r"\|") for cell in row] for row in (header, rule, *lines)]
    widths = [max(map(len, column)) for column in zip(*safe, strict=True)]
    padded = ([cell.ljust(width) for cell, width in zip(row, widths, strict=True)] for row in safe)
    return "\n".join(f"| {' | '.join(row)} |" for row in padded)
