"""Checks of a test, matched between two records."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping

from results.record.reading import CheckResult
from results.record.values import Json

_NUMBER = re.compile(r"\d+(?:\.\d+)?(?:e[-+]?\d+)?")


def words(check: CheckResult) -> str:
    """The description of a check without its numbers."""
    return _NUMBER.sub("#", check.what)


def keyed(checks: Iterable[CheckResult]) -> Mapping[tuple[str, int], CheckResult]:
    """Checks by their words, and by their place among checks with the same words."""
    placed: dict[tuple[str, int], CheckResult] = {}
    places: Counter[str] = Counter()
    for check in checks:
        what = words(check)
        placed[what, places[what]] = check
        places[what] += 1
    return placed


def number(value: Json) -> float | None:
    """A number as such; None for anything else."""
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
