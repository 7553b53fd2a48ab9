"""What records observed, value by value, and where frameworks differ in it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping

from results.record.reading import Record
from results.record.values import Json, plain

_TEST = re.compile(r"/(test_\w+)(?:\[(.*)\])?$", re.DOTALL)
_LONGEST = 2000
_DEEPEST = 4
_LEAVES = 2000
_EXPLANATION = ("reason",)

Place = tuple[str, str, str, tuple[str, ...]]
"""Clause, key, the test's parameters, and the way down into the value."""


def split(observation: str) -> tuple[str, str, str]:
    """An observation's name taken apart: clause, key, the parameters of the test that saw it."""
    clause, _, rest = observation.partition("/")
    test = _TEST.search(rest) if len(rest) <= _LONGEST else None
    return (clause, rest[: test.start()], test[2] or "") if test else (clause, rest, "")


def leaves(record: Record) -> Iterator[tuple[Place, Json]]:
    """Every observed value by its place."""
    for name, value in record.observations.items():
        clause, key, case = split(name)
        for count, (way, leaf) in enumerate(_down(value, ())):
            if count == _LEAVES:
                break
            yield (clause, key, case, way), leaf


def _down(value: Json, way: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Json]]:
    if isinstance(value, Mapping) and value and len(way) < _DEEPEST:
        for key, item in value.items():
            yield from _down(item, (*way, key))
    else:
        yield way, value


def differ(place: Place, values: Iterable[tuple[str, Json]]) -> bool:
    """Whether two frameworks observed something else at a place; an explanation in words never differs.

    Args:
        values: framework and what one of its runs observed.
    """
    texts: dict[str, set[str]] = {}
    for framework, value in values:
        texts.setdefault(framework, set()).add(json.dumps(plain(value), sort_keys=True))
    return place[3][-1:] != _EXPLANATION and len({frozenset(each) for each in texts.values()}) > 1
