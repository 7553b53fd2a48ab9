"""What a record says of a promised quantity, by case: bytes and times, as ratios to those of the plain step."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence

from conformance.scenarios.scenario import SAVED
from conformance.scenarios.table import SECONDS, sides_of
from results.compare.ratio import ratio
from results.record.reading import Measurement, Record

NONE = "–"

Figures = Callable[[Record], Mapping[str, str]]
"""What a record says of a quantity, by case."""


def counted(key: str, begin: str = "") -> Figures:
    """The counted ratios whose keys are so, a regular expression, of cases whose parameters begin so."""
    return lambda record: {case: _share(one.samples[0]) for case, one in _measured(record, key, begin)}


def checked(clause: str, begin: str) -> Figures:
    """The ratios that the first checks of a clause measured, of cases whose parameters begin so."""
    return lambda record: {
        _label(verdict.case, begin): _share(float(str(verdict.checks[0].measured)))
        for verdict in record.verdicts
        if verdict.clause == clause and parameters(verdict.case).startswith(begin) and verdict.checks
    }


def timed(key: str, begin: str = "") -> Figures:
    """The times whose keys are so, a regular expression, of cases whose parameters begin so, over their controls."""
    return lambda record: {case: _interval(one) for case, one in _measured(record, key, begin)}


def side_bytes(base: str, *sides: str, quantity: str = SAVED, over: str = "") -> Figures:
    """Counted bytes of a scenario's sides over those of another, which are of the same name unless `over` is given."""

    def cases(record: Record) -> Mapping[str, str]:
        by_side = {side: sides_of(record, quantity).get(side) for side in sides}
        below = sides_of(record, over or quantity).get(base)
        texts = {
            side: _share(one.samples[0] / below.samples[0])
            for side, one in by_side.items()
            if one is not None and below is not None
        }
        return _cases(sides, texts)

    return cases


def side_times(*sides: str) -> Figures:
    """Seconds of a scenario's sides over those of its first one."""

    def cases(record: Record) -> Mapping[str, str]:
        rounds = sides_of(record, SECONDS)
        texts = {side: _interval(rounds[side]) for side in sides if side in rounds}
        return _cases(sides, texts)

    return cases


def joined(texts: Mapping[str, str]) -> str:
    """The text of each case, once for cases with the same text."""
    cases: dict[str, list[str]] = {}
    for case, text in texts.items():
        cases.setdefault(text, []).append(case)
    return "; ".join(f"{text} ({', '.join(names)})" if any(names) else text for text, names in cases.items())


def _measured(record: Record, key: str, begin: str) -> Iterator[tuple[str, Measurement]]:
    for one in record.measurements:
        if re.fullmatch(key, one.key) and parameters(one.case).startswith(begin):
            yield _label(one.case, begin), one


def parameters(case: str) -> str:
    """The parameters of a test's case, "" without any."""
    return case.partition("[")[2].removesuffix("]")


def _label(case: str, begin: str) -> str:
    label = parameters(case).removeprefix(begin).removeprefix("O1-")
    return "" if label == "default" else label


def _cases(sides: Sequence[str], texts: Mapping[str, str]) -> Mapping[str, str]:
    """By side; one that is asked for alone needs no name."""
    return texts if len(sides) > 1 else dict(zip([""], texts.values(), strict=False))


def _share(value: float) -> str:
    return f"{value:.3g}"


def _interval(times: Measurement) -> str:
    interval = ratio(times.control, times.samples)
    if interval.judged:
        return f"{interval.low:.2f} to {interval.high:.2f}"
    return f"{interval.new / interval.old:.2g} of {interval.pairs} pairs" if interval.pairs and interval.old else NONE
