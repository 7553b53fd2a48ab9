"""Registry of laws: generator, number of tests, and share of an adapter's programs of each."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from hypothesis.strategies import SearchStrategy

from conformance.generative import mask_strategies, operation_strategies
from conformance.generative.programs import variation_strategies
from conformance.generative.programs.instances import Instance
from conformance.known_failures.exclusions import Exclusion
from conformance.search.adapter_settings import GenerativeSettings
from conformance.techniques import quantized_models
from conformance.techniques.delayed_scaling import step_strategies
from conformance.techniques.formats import code_strategies
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

    def instances(self, framework: Framework, excluded: Collection[Exclusion]) -> SearchStrategy[Instance]:
        """The strategy of the law's instances, without known defects."""

        def allowed(instance: Instance) -> bool:
            return not any(entry.leaves_out(instance.words()) for entry in excluded)

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


LAWS: Mapping[str, Property] = {
    "laws.programs": Property(0, variation_strategies.programs, 8, 1.0),
    "laws.recomputation": Property(
        1, variation_strategies.recomputed, 2, 1 / 8, (Capability.RECOMPUTE,), always=frozenset({"recompute"})
    ),
    "laws.scales": Property(2, variation_strategies.scaled, 1, 1 / 16, (Capability.DYNAMIC_SCALING,)),
    "laws.restores": Property(3, variation_strategies.resumed, 2, 1 / 8, (Capability.CHECKPOINT,)),
    "laws.second-run": Property(4, variation_strategies.second_runs, 2, 1 / 8),
    "laws.windows": Property(5, variation_strategies.cuts, 1, 1 / 64, (Capability.ACCUMULATION,)),
    "laws.operations": Property(6, operation_strategies.scoped, 2, 1.0, (Capability.AUTOCAST_SCOPE,)),
    "laws.calls": Property(7, operation_strategies.calls, 1, 1 / 16, (Capability.RECOMPUTE_CASES,)),
    "laws.masks": Property(9, mask_strategies.masked, 1, 1 / 8),
    "laws.codes": Property(10, code_strategies.coded, 2, 1.0),
    "laws.quantized-models": Property(11, quantized_models.quantized, 1, 1 / 4),
    "laws.delayed-scales": Property(12, step_strategies.delayed, 1, 1 / 8, (Capability.DELAYED_SCALING,)),
    "laws.processes": Property(8, variation_strategies.elsewhere, 1, 0.0, (), variation_strategies.handfuls),
}
"""Laws by clause id."""
