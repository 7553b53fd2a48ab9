"""Registry of properties: those of generated programs, and those of techniques."""

from __future__ import annotations

from collections.abc import Mapping

from conformance.generative import masks, operations
from conformance.generative.programs import variation_strategies
from conformance.search.properties import Property
from conformance.techniques.registry import TECHNIQUES
from frameworks.contract import Capability

LAWS: Mapping[str, Property] = {
    "laws.programs": Property(0, variation_strategies.programs, 8, 1.0),
    "laws.recomputation": Property(
        1, variation_strategies.recomputed, 2, 1 / 8, (Capability.RECOMPUTE,), always=frozenset({"recompute"})
    ),
    "laws.scales": Property(2, variation_strategies.scaled, 1, 1 / 16, (Capability.DYNAMIC_SCALING,)),
    "laws.restores": Property(3, variation_strategies.resumed, 2, 1 / 8, (Capability.CHECKPOINT,)),
    "laws.second-run": Property(4, variation_strategies.second_runs, 2, 1 / 8),
    "laws.windows": Property(5, variation_strategies.cuts, 1, 1 / 64, (Capability.ACCUMULATION,)),
    "laws.operations": Property(6, operations.scoped, 2, 1.0, (Capability.AUTOCAST_SCOPE,)),
    "laws.calls": Property(7, operations.calls, 1, 1 / 16, (Capability.RECOMPUTE_CASES,)),
    "laws.masks": Property(9, masks.masked, 1, 1 / 8),
    **{clause: test for technique in TECHNIQUES for clause, test in technique.properties.items()},
    "laws.processes": Property(8, variation_strategies.elsewhere, 1, 0.0, (), variation_strategies.handfuls),
}
"""Properties by clause id."""
