"""Observations of records, value by value, and differences between frameworks."""

import json
import re
from collections.abc import Iterable, Iterator
from itertools import islice

from results.record.model import EXPLANATIONS
from results.record.reading import Record
from results.record.values import Json, nested, plain

_PARAMETERS = re.compile(r"test_\w+(?:\[(.*)\])?", re.DOTALL)
_DEEPEST = 4
_LEAVES = 2000

Place = tuple[str, str, str, tuple[str, ...]]
"""Clause, key, the test's parameters, and the path inside the value."""


def parameters(case: str) -> str:
    """Of the case of a parametrized test what is in the brackets, "" of one without; any other case as it is."""
    test = _PARAMETERS.fullmatch(case)
    return test[1] or "" if test else case


def leaves(record: Record) -> Iterator[tuple[Place, Json]]:
    """Every observed value by its place."""
    for one in record.observations:
        case = parameters(one.case)
        for way, leaf in islice(nested(one.value, _DEEPEST), _LEAVES):
            yield (one.clause, one.key, case, way), leaf


def differ(place: Place, values: Iterable[tuple[str, Json]]) -> bool:
    """Whether two frameworks observed different values at a place; explanations in words never differ.

    Args:
        values: framework and what one of its runs observed.
    """
    texts: dict[str, set[str]] = {}
    for framework, value in values:
        texts.setdefault(framework, set()).add(json.dumps(plain(value), sort_keys=True))
    return not EXPLANATIONS.intersection(place[3][-1:]) and len({frozenset(each) for each in texts.values()}) > 1
