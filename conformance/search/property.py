"""A property that generated cases must have: generator, number of tests, and share of an adapter's cases."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from hypothesis.strategies import SearchStrategy

from conformance.known_failures.entries import Exclusion
from conformance.search.adapter_settings import GenerativeSettings
from frameworks.contract import Capability, Framework

ATTEMPTS = 8
"""Largest number of attempts to generate a single instance that can be judged."""


@dataclass(frozen=True)
class Property:
    """One law.

    Attributes:
        number: distinguishes its random stream from those of other laws.
        draw: the strategy of its instances, for a framework.
        parts: tests that share the work.
        share: of an adapter's number of programs, for all parts together; 0 for a single one.
        needs: capabilities that the framework must declare.
        together: instances of what is drawn and allowed, where a test takes several at once.
        always: features that every instance has.
    """

    number: int
    draw: Callable[[Framework], SearchStrategy[Any]]
    parts: int
    share: float
    needs: tuple[Capability, ...] = ()
    together: Callable[[SearchStrategy[Any], Callable[[Any], bool]], SearchStrategy[Any]] = SearchStrategy.filter
    always: frozenset[str] = frozenset()

    def leaves_nothing(self, excluded: Collection[Exclusion]) -> bool:
        """Whether an exclusion leaves every instance out, so that none need be drawn to find that."""
        return any(entry.leaves_out(self.always) for entry in excluded)

    def instances(self, framework: Framework, excluded: Collection[Exclusion]) -> SearchStrategy[Any]:
        """The strategy of the law's instances, without known defects."""

        def allowed(instance: Any) -> bool:
            words = instance.words() if excluded else frozenset()
            return not any(entry.leaves_out(words) for entry in excluded)

        return self.together(self.draw(framework), allowed)

    def count(self, laws: GenerativeSettings) -> int:
        """Examples of one part."""
        return max(1, round(laws.programs * self.share / self.parts)) if self.share else ATTEMPTS

    @property
    def enough(self) -> float:
        """Largest number of judged examples."""
        return math.inf if self.share else 1

    def seed(self, seed: int, part: int) -> int:
        """Seed of a part."""
        return 10_000 * seed + 10 * self.number + part
