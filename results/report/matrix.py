"""The matrix: clauses by family down, frameworks across, each opened into its runs; sentences, and values."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from statistics import median
from typing import Any
from urllib.parse import urlencode

from results.compare.comparison import Comparisons
from results.record.model import Json, Outcome, encode_number
from results.record.reading import ClauseText, Curves, Record, TestVerdict
from results.report.text import NAME, TextPart, clean, format_value
from results.show.clauses import FAILURE_OUTCOMES, by_clause, is_inferred, number, outcome
from results.show.portability import ORACLE, Place, Portability, Word, differ, leaves, parameters, words

FAILING, UNEXPECTED = "any failure", "unexpected failure"
CHOICES = {FAILING: FAILURE_OUTCOMES, UNEXPECTED: FAILURE_OUTCOMES - {Outcome.KNOWN}}
"""The outcomes of each filter choice that stands for several."""

DISAGREE, SPLIT, ALONE = "frameworks disagree", "passes in one, fails in another", "fails in only one framework"
"""Choices of clauses across frameworks: the first includes the second, and the clauses that differ."""

_PART = 48
"""Largest number of characters of a part of a label or an address."""
_UNSAFE = re.compile(r"[^A-Za-z0-9._+-]")
_SLUG = re.compile(r"[A-Za-z][A-Za-z0-9._-]{0,79}")


@dataclass(frozen=True)
class Column:
    """All runs of a framework, or one of them; a framework with one run has one column.

    Attributes:
        slug: its name in addresses: framework and mode, and more only where these are not unique.
        framework: the slug of its framework.
        runs: indices of the records.
        title, detail: framework, and version, mode and device, as cleaned texts.
        status: of a run that is not complete, else "".
    """

    slug: str
    framework: str
    runs: tuple[int, ...]
    title: str
    detail: str
    status: str = ""
    opened: bool = False

    @property
    def label(self) -> str:
        """Its name in one line."""
        return f"{self.title} {self.detail}".strip()


@dataclass(frozen=True)
class Cell:
    """A clause in the runs of a column that judge it: its outcome, runs by outcome, tests by outcome."""

    outcome: Outcome
    runs: Counter[Outcome]
    tests: Counter[Outcome]
    unconfirmed: int


@dataclass(frozen=True)
class ClauseRow:
    """A clause across the columns.

    Attributes:
        word: its word across frameworks, "" if no run of the newest versions judges it; `kind` is its style.
        choices: the filter choices across frameworks that it belongs to.
        verdicts: of each run, the gravest first.
        cells: one for each column, None where no run has a test.
    """

    number: int
    anchor: str
    name: str
    text: ClauseText
    word: str
    kind: str
    choices: tuple[str, ...]
    verdicts: tuple[tuple[TestVerdict, ...], ...]
    cells: tuple[Cell | None, ...]


@dataclass(frozen=True)
class Family:
    """The clauses of a family; `totals` counts those of each column by outcome."""

    name: str
    rows: tuple[ClauseRow, ...]
    totals: tuple[Counter[Outcome], ...]


@dataclass(frozen=True)
class Matrix:
    """The content of the page's matrix; `choices` are filter choices across frameworks, `runs` the runs' names."""

    columns: tuple[Column, ...]
    runs: tuple[Column, ...]
    families: tuple[Family, ...]
    choices: tuple[str, ...]

    @property
    def rows(self) -> list[ClauseRow]:
        """Every row."""
        return [row for family in self.families for row in family.rows]

    @property
    def frameworks(self) -> list[Column]:
        """The columns of frameworks."""
        return [column for column in self.columns if not column.opened]


def by_framework(records: Sequence[Record]) -> list[Record]:
    """Return the records with those of one framework next to each other, otherwise in the same order."""
    names = list(dict.fromkeys(record.series.framework for record in records))
    return sorted(records, key=lambda record: names.index(record.series.framework))


def select_frameworks(records: Sequence[Record]) -> frozenset[str]:
    """The frameworks that are compared: all but the oracle, unless fewer than two are left."""
    names = frozenset(record.series.framework for record in records)
    others = names - {ORACLE}
    return others if len(others) > 1 else names


def columns(records: Sequence[Record]) -> tuple[list[Column], list[Column]]:
    """Return the columns of records in the order of `by_framework`, and the column of each run."""
    groups: dict[str, list[int]] = {}
    for index, record in enumerate(records):
        groups.setdefault(record.series.framework, []).append(index)
    names, slugs = _slugs(records, list(groups))
    labels = _labels(records)
    result, runs = [], []
    for (name, indices), slug in zip(groups.items(), names, strict=True):
        title, several = clean(name, _PART), len(indices) > 1
        if several:
            own = (clean(records[index].variant.framework_version, _PART) for index in indices)
            versions = list(dict.fromkeys(version.partition("+")[0] for version in own))
            detail = f"{len(indices)} runs of {', '.join(versions[:3])}{' …' if len(versions) > 3 else ''}"
            result.append(Column(slug, slug, tuple(indices), title, detail, _status(records, indices)))
        for index in indices:
            detail = labels[index].removeprefix(title).strip()
            run = Column(slugs[index], slug, (index,), title, detail, _status(records, [index]), several)
            result.append(run)
            runs.append(run)
    return result, runs


def _labels(records: Sequence[Record]) -> list[str]:
    """Return a unique name of each run: framework, version, mode and device, and its start where these are equal."""
    labels = []
    for record in records:
        parts = record.series.framework, record.variant.framework_version, record.series.mode_and_device
        labels.append(" ".join(filter(None, (clean(part, _PART) for part in parts))))
    dated = [f"{label}, {clean(record.started, _PART)}" for label, record in zip(labels, records, strict=True)]
    return _make_unique(labels, dated, [f"{label} ({index + 1})" for index, label in enumerate(dated)])


def _status(records: Sequence[Record], indices: Sequence[int]) -> str:
    """The status of the runs that stopped early, or that ran some tests only."""
    statuses = {records[index].status for index in indices}
    return next((status for status in ("interrupted", "partial") if status in statuses), "")


def _slugs(records: Sequence[Record], frameworks: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return unique names of frameworks and of runs for addresses."""

    def parts(count: int) -> list[str]:
        return names + ["-".join(fields[:count]) for fields in series]

    names = [_UNSAFE.sub("_", name[:_PART]) for name in frameworks]
    series = [
        [
            _UNSAFE.sub("_", word[:_PART])
            for word in (r.series.framework, r.series.mode, r.series.device, r.variant.framework_version)
        ]
        for r in records
    ]
    numbered = [f"~~{i + 1}" for i in range(len(names))] + [f"~{i + 1}" for i in range(len(records))]
    result = _make_unique(parts(2), parts(3), parts(4), numbered)
    return result[: len(names)], result[len(names) :]


def _make_unique(names: Sequence[str], *longer: Sequence[str]) -> list[str]:
    """Return unique names: each name is replaced by its next longer form while another one equals it."""
    result = list(names)
    for others in longer:
        counts = Counter(result)
        result = [other if counts[name] > 1 else name for name, other in zip(result, others, strict=True)]
    return result


def matrix(records: Sequence[Record]) -> Matrix:
    """Return the matrix of records in the order of `by_framework`."""
    across, runs = columns(records)
    texts: dict[str, ClauseText] = {}
    for record in sorted(records, key=lambda one: one.started, reverse=True):
        for name, text in record.clauses.items():
            texts.setdefault(name, text)
    grouped = [by_clause(record) for record in records]
    words_by_clause, frameworks = words(records), select_frameworks(records)
    compared = [record.series.framework if record.series.framework in frameworks else "" for record in records]
    families, count = [], 0
    for family in sorted({text.family for text in texts.values()}):
        rows = []
        for name in sorted(name for name, text in texts.items() if text.family == family):
            verdicts = tuple(tuple(clauses.get(name, ())) for clauses in grouped)
            rows.append(_row(count, name, texts[name], verdicts, words_by_clause.get(name), compared, across))
            count += 1
        totals = [
            Counter(cell.outcome for cell in cells if cell) for cells in zip(*(row.cells for row in rows), strict=True)
        ]
        families.append(Family(clean(family), tuple(rows), tuple(totals)))
    used = {choice for family in families for row in family.rows for choice in row.choices}
    kinds = [DISAGREE, SPLIT, ALONE, *(kind.value for kind in Portability)]
    choices = [choice for choice in kinds if choice in used] + sorted(used - {*kinds})
    return Matrix(tuple(across), tuple(runs), tuple(families), tuple(choices))


def _row(
    index: int,
    name: str,
    text: ClauseText,
    verdicts: tuple[tuple[TestVerdict, ...], ...],
    word: Word | None,
    compared: Sequence[str],
    across: Sequence[Column],
) -> ClauseRow:
    failing, passing = _sides(compared, verdicts)
    choices = [word.kind.value, *(f"broken in {clean(one.framework, _PART)}" for one in word.broken)] if word else []
    if len(failing) == 1 and passing:
        choices.append(ALONE)
    if word and word.broken and passing:
        choices.append(SPLIT)
    if SPLIT in choices or Portability.DIFFERS.value in choices:
        choices.append(DISAGREE)
    return ClauseRow(
        index,
        f"clause-{name}" if _SLUG.fullmatch(name) else f"clause.{index}",
        clean(name),
        text,
        _word_text(word) if word else "",
        word.kind.value.replace(" ", "-") if word else "",
        tuple(choices),
        verdicts,
        tuple(_cell([verdicts[run] for run in column.runs]) for column in across),
    )


def _word_text(word: Word) -> str:
    """Return a word across frameworks without versions and modes, which the columns show."""
    if not word.broken:
        return word.kind.value
    broken = (f"{one.framework} since {one.since}" if one.since else one.framework for one in word.broken)
    return f"broken in {', '.join(broken)}" + "".join(f"; {owner}" for owner in word.owners)


def _sides(frameworks: Sequence[str], verdicts: Sequence[Sequence[TestVerdict]]) -> tuple[set[str], set[str]]:
    """Return the frameworks that fail a clause in some run, and those that only pass it; "" does not count."""
    sides: dict[bool, set[str]] = {True: set(), False: set()}
    for framework, tests in zip(frameworks, verdicts, strict=True):
        outcomes = {verdict.outcome for verdict in tests}
        fails = bool(outcomes & FAILURE_OUTCOMES)
        if fails or Outcome.PASS in outcomes:
            sides[fails].add(framework)
    return sides[True] - {""}, sides[False] - sides[True] - {""}


def _cell(runs: Sequence[Sequence[TestVerdict]]) -> Cell | None:
    tests = [verdict for run in runs for verdict in run]
    if not tests:
        return None
    outcomes = Counter(outcome(run) for run in runs if run)
    return Cell(outcome(tests), outcomes, Counter(verdict.outcome for verdict in tests), sum(map(is_inferred, tests)))


Sentence = tuple[TextPart, ...]


def sentences(page: Matrix, comparisons: Comparisons) -> Iterator[Sentence]:
    """The first sentences of the page, in parts; a part with an address filters the matrix or leads to the changes."""
    records, tests = len(page.runs), sum(len(tests) for row in page.rows for tests in row.verdicts)
    counted = f"{number(records, 'record')} of {number(len(page.frameworks), 'framework')}"
    yield (TextPart(f"{counted}: {number(len(page.rows), 'clause')}, {tests:,} test{'s' if tests != 1 else ''}."),)
    failing = _failing(page, FAILING, "in at least one run")
    unexpected = _failing(page, UNEXPECTED, "unexpectedly") or (TextPart("every failure is a known one"),)
    yield (*failing, TextPart("; "), *unexpected, TextPart(".")) if failing else (TextPart("No clause fails."),)
    if len(page.frameworks) > 1:
        yield _disagreeing(page.rows)
    if comparisons.pairs:
        worse = sum(change.kind.worse for pair in comparisons.pairs for change in pair.changes)
        text = f"{number(worse, 'change')} for the worse" if worse else "no change for the worse"
        pairs = number(len(comparisons.pairs), "comparison")
        yield TextPart("Since the earlier records: "), TextPart(text, "#changes"), TextPart(f" in {pairs}.")


def _failing(page: Matrix, choice: str, how: str) -> Sentence:
    """Return how many clauses have an outcome of a choice, in all and in each framework; nothing if none has."""

    def count(runs: Sequence[int]) -> int:
        outcomes = ({v.outcome for run in runs for v in row.verdicts[run]} for row in page.rows)
        return sum(bool(CHOICES[choice] & own) for own in outcomes)

    total = count(range(len(page.runs)))
    if not total:
        return ()
    parts = [_filter(number(total, "clause"), outcome=choice), TextPart(f" {_verb('fail', total)} {how} (")]
    for column in page.frameworks:
        if failing := count(column.runs):
            parts.append(TextPart(f"{', ' if len(parts) > 2 else ''}{column.title} "))
            parts.append(_filter(str(failing), outcome=choice, run=column.slug))
    return (*parts, TextPart(")"))


def _disagreeing(rows: Sequence[ClauseRow]) -> Sentence:
    disagree, split, differing = (
        sum(choice in row.choices for row in rows) for choice in (DISAGREE, SPLIT, Portability.DIFFERS.value)
    )
    if not disagree:
        return (TextPart("The frameworks disagree on no clause."),)
    passing = f"{split} {_verb('pass', split)} in one framework and {_verb('fail', split)} in another"
    others = f"{differing} {_verb('differ', differing)} in support or in observed values"
    parts = [_filter(passing, across=SPLIT)] if split else []
    parts += [TextPart(", ")] if split and differing else []
    parts += [_filter(others, across=Portability.DIFFERS.value)] if differing else []
    linked = _filter(number(disagree, "clause"), across=DISAGREE)
    return (TextPart("The frameworks disagree on "), linked, TextPart(": "), *parts, TextPart("."))


def _verb(verb: str, count: int) -> str:
    return f"{verb}{'es' if verb.endswith('s') else 's'}" if count == 1 else verb


def _filter(text: str, **chosen: str) -> TextPart:
    return TextPart(text, f"#?{urlencode(chosen)}")


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
        row = _value_row(matrix, clause, name, "" if case == key else case, shown, differs)
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
        _value_row(matrix, clause, f"{key}, in {unit}" if unit else key, case, shown)
        for (clause, key, case, unit), shown in sorted(rows.items())
    ]


def _value_row(
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
