"""Whose a failure is where several frameworks train by one library, such as Keras on TensorFlow, JAX and PyTorch.

A test that fails in every framework that trains by the library and judged the test is the library's; one that passes in
some of them belongs to the library's backends in which it fails.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from packaging.version import InvalidVersion, Version

from results.record.outcomes import UNJUDGED
from results.record.reading import Record
from results.show.clauses import FAILURE_OUTCOMES


@dataclass(frozen=True, order=True)
class Owner:
    """Whose a failure is; `frameworks` are the backends that fail, none if all do."""

    library: str
    frameworks: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.library} on {', '.join(self.frameworks) or 'every backend'}"


def libraries(version: str) -> frozenset[str]:
    """Libraries that a framework's version names in its local label: keras in "2.13.0+cpu.keras.3.15.1"."""
    try:
        parts = (Version(version).local or "").split(".")
    except InvalidVersion:
        return frozenset()
    return frozenset(name for name, number in pairwise(parts) if name.isalpha() and number.isdigit())


def owners(records: Iterable[Record]) -> dict[str, tuple[Owner, ...]]:
    """Owners of the failures of each clause, by its name; a library that one framework trains by owns none."""
    sharing: dict[str, list[Record]] = {}
    for record in records:
        for library in libraries(record.variant.framework_version):
            sharing.setdefault(library, []).append(record)
    result: dict[str, set[Owner]] = {}
    for library, runs in sharing.items():
        for clause, owner in _of(library, runs):
            result.setdefault(clause, set()).add(owner)
    return {clause: tuple(sorted(each)) for clause, each in result.items()}


def _of(library: str, runs: Sequence[Record]) -> Iterable[tuple[str, Owner]]:
    """Clauses of the tests that fail under a library, each with its owner."""
    judged: dict[tuple[str, str], set[str]] = {}
    failing: dict[tuple[str, str], set[str]] = {}
    for run in runs:
        for verdict in run.verdicts:
            key, framework = (verdict.clause, verdict.test), run.series.framework
            if verdict.outcome not in UNJUDGED:
                judged.setdefault(key, set()).add(framework)
            if verdict.outcome in FAILURE_OUTCOMES:
                failing.setdefault(key, set()).add(framework)
    for key, frameworks in failing.items():
        if len(judged.get(key, ())) > 1:
            yield key[0], Owner(library, () if frameworks == judged[key] else tuple(sorted(frameworks)))
