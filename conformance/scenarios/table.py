"""The table of a scenario's records: sides and quantities by framework."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from conformance.scenarios.scenario import (
    MODEL,
    OFFLOADED,
    REDUCED,
    SAVED,
    Scenario,
    Side,
    here_bytes,
    offloaded_bytes,
    rank_bytes,
    share_of,
)
from results.compare.ratio import ratio
from results.record.files import one_line
from results.record.outcomes import Outcome
from results.record.reading import Measurement, Record, TestVerdict
from results.show.marks import title

NONE = "–"
DOCUMENT = "document"
SECONDS = "seconds a round"

_COUNTED = (
    (SAVED, "bytes held", "bytes", SAVED),
    (MODEL, MODEL, MODEL, MODEL),
    *((name, name, name, name) for name in map(rank_bytes, ("parameter", "gradient", "optimizer"))),
    *((offloaded_bytes(kind), offloaded_bytes(kind), offloaded_bytes(kind), here_bytes(kind)) for kind in OFFLOADED),
)
"""Byte quantities: name in a record, name in the table, name of the share of the first side, and name of the first
side's quantity in a record."""


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
    base = scenario.sides[0].label
    for side in scenario.sides:
        columns = [dict(_quantities(record, side, base)) for record in records]
        names = list(dict.fromkeys(name for column in columns for name in column))
        names += [name for label, name in scenario.published if label == side.label and name not in names]
        for name in names:
            document = scenario.published.get((side.label, name), "")
            result.append(QuantityRow(side.label, name, document, tuple(column.get(name, NONE) for column in columns)))
    return result


def reasons(records: Sequence[Record]) -> list[str]:
    """Why a side has no numbers or failed, one line for each reason."""
    result: dict[str, list[str]] = {}
    for record in records:
        for verdict in record.verdicts:
            if verdict.outcome is not Outcome.PASS:
                said = verdict.reason or verdict.message
                result.setdefault(f"{_name(record)}, {verdict.outcome}: {said}", []).append(verdict.case)
    return [one_line(f"{'; '.join(sides)}: {reason}") for reason, sides in result.items()]


def noted(records: Sequence[Record]) -> list[str]:
    """Notes of the records, one line each, with their frameworks."""
    result: dict[str, list[str]] = {}
    for record in records:
        for note in record.notes:
            result.setdefault(note, []).append(_name(record))
    return [one_line(f"{', '.join(frameworks)}: {note}") for note, frameworks in result.items()]


def _name(record: Record) -> str:
    return " ".join((record.series.framework, record.series.mode))


def _quantities(record: Record, side: Side, base: str) -> Iterator[tuple[str, str]]:
    verdict = next((verdict for verdict in record.verdicts if verdict.case == side.label), None)
    if verdict is None:
        return
    yield "outcome", verdict.outcome.value
    yield from _checked(verdict)
    trace = next((trace for trace in record.traces if trace.case == side.label), None)
    scale = trace.curves.get("scale", ()) if trace else ()
    if scale:
        yield "loss scale at the end", f"{scale[-1]:,.0f}"
    for quantity, heading, share, beside in _COUNTED:
        plain = sides_of(record, beside).get(base) if side.label != base else None
        yield from _bytes(sides_of(record, quantity).get(side.label), plain, heading, share_of(share, base))
    reduced = sides_of(record, REDUCED).get(side.label)
    if reduced is not None:
        yield REDUCED, f"{reduced.samples[0]:.0f}"
    rounds = sides_of(record, SECONDS)
    times = rounds.get(side.label)
    if times is not None:
        yield share_of("time", base), _times(times)
    own = times.samples if times is not None else ()
    if side.label == base:  # the control of the others
        own = next((one.control for one in rounds.values()), ())
    if own:
        yield SECONDS, f"{median(own):.3g}"


def _bytes(
    counted: Measurement | None, plain: Measurement | None, heading: str, share: str
) -> Iterator[tuple[str, str]]:
    """Counted bytes of a side, and as a share of the first side's."""
    if counted is None:
        return
    yield heading, f"{counted.samples[0]:,.0f}"
    if plain is not None:
        yield share, f"{counted.samples[0] / plain.samples[0]:.3g}" if plain.samples[0] else NONE


def sides_of(record: Record, quantity: str) -> dict[str, Measurement]:
    """The measurements of a quantity by side."""
    return {one.case: one for one in record.measurements if one.key == quantity}


def _checked(verdict: TestVerdict) -> Iterator[tuple[str, str]]:
    for check in verdict.checks:
        if not isinstance(check.measured, int | float):
            continue
        if check.what == "loss" and isinstance(check.bound, int | float):
            yield check.what, f"{check.bound:.3g} → {check.measured:.3g}"
        elif check.what == "skipped updates":
            yield check.what, f"{check.measured:.0f} {check.expected}"
        else:
            yield check.what, f"{check.measured:.3g}"


def _times(times: Measurement) -> str:
    result = ratio(times.control, times.samples)
    if result.judged:
        return f"{math.sqrt(result.low * result.high):.3g} ({result.low:.3g}–{result.high:.3g})"
    return f"{result.new / result.old:.2g}, too few rounds" if result.pairs and result.old else NONE


def draw(scenario: Scenario, records: Sequence[Record], console: Console) -> None:
    """Prints the table, the reasons and the notes."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 2, 0, 0))
    for heading in ("side", "quantity", DOCUMENT, *("\n".join(title(record)) for record in records)):
        table.add_column(Text(heading), overflow="fold")
    console.print(Text(scenario.title, style="bold"))
    before = ""
    for row in rows(scenario, records):
        if before and row.side != before:
            table.add_section()
        cells = ("" if row.side == before else row.side, row.quantity, row.document, *row.cells)
        table.add_row(*map(Text, cells))
        before = row.side
    console.print(table)
    for line in (*reasons(records), *noted(records)):
        console.print(Text(line), soft_wrap=True)


def markdown(scenario: Scenario, records: Sequence[Record]) -> str:
    """The same as Markdown."""
    headings = ["side", "quantity", DOCUMENT, *(" ".join(title(record)) for record in records)]
    lines, before = [], ""
    for row in rows(scenario, records):
        side = "" if row.side == before else f"**{row.side}**"
        lines.append([side, row.quantity, row.document, *row.cells])
        before = row.side
    notes = [f"- {line}" for line in (*reasons(records), *noted(records))]
    return "\n".join((markdown_table(headings, lines), "", *notes))


def durations(by_scenario: Mapping[str, Sequence[Record]]) -> str:
    """Seconds of each scenario in each framework, as Markdown."""
    names = sorted({record.series.framework for records in by_scenario.values() for record in records})
    took = {
        scenario: [sum(one.duration_s for one in records if one.series.framework == name) for name in names]
        for scenario, records in by_scenario.items()
    }
    sums = [sum(column) for column in zip(*took.values(), strict=True)]
    lines = [
        (scenario, *(f"{one:.0f}" if one else NONE for one in (*seconds, sum(seconds))))
        for scenario, seconds in (*took.items(), ("all", sums))
    ]
    return markdown_table(("seconds", *names, "together"), lines, right=len(names) + 1)


def markdown_table(header: Sequence[str], lines: Iterable[Sequence[str]], right: int = 0) -> str:
    """A Markdown table of which the last `right` columns are aligned to the right."""
    rule = ["---"] * (len(header) - right) + ["--:"] * right
    safe = ([cell.replace("|", r"\|") for cell in row] for row in (header, rule, *lines))
    return "\n".join(f"| {' | '.join(row)} |" for row in safe)
