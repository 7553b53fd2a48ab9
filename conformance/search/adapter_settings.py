"""Settings of an adapter for generated tests: `[laws]` in `adapter.toml`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from conformance.search.arrays import REFERENCE_MOMENTS
from fixtures.recipe import Optimizer
from frameworks.contract import Framework
from frameworks.reference import ReferenceFramework
from frameworks.registry import AdapterFile, adapter_file, known

PROGRAMS = 96
"""Default number of programs in the profile "ci"."""

REFERENCE_PROGRAMS = 768
"""Number of programs for the reference, each of which takes a hundredth of a second."""

_KEYS = {"programs", "seed-bits", "moments", "not-compared", "not-judged", "not-drawn"}


@dataclass(frozen=True)
class GenerativeSettings:
    """The table `[laws]` of an adapter.

    Attributes:
        programs: how many programs the profile "ci" plays of each kind that needs an oracle.
        seed_bits: how many bits of a run's seed are documented to count, 32 or 64.
        moments: canonical slot ("momentum", "first_moment", "second_moment", "steps") by the framework's own, by the
            kind of optimizer.
        not_compared: reasons why parts of the state cannot be compared with the oracle's, by prefix.
        not_judged: reasons why the profile "ci" generates nothing in a mode, by mode.
        not_drawn: reasons why generated recipes lack a technique, by the recipe's field: "ranks", "offload" or
            "quantization".
    """

    programs: int = PROGRAMS
    seed_bits: int = 32
    moments: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    not_compared: Mapping[str, str] = field(default_factory=dict)
    not_judged: Mapping[str, str] = field(default_factory=dict)
    not_drawn: Mapping[str, str] = field(default_factory=dict)

    def slots(self, optimizer: Optimizer) -> Mapping[str, str]:
        """The canonical slot by the framework's own, for a recipe's optimizer."""
        return self.moments.get(type(optimizer).__name__, {})


def generative_settings(framework: Framework) -> GenerativeSettings:
    """The settings of a framework's adapter; the reference and its faults need none.

    Raises:
        ValueError: a key or value is not valid.
    """
    if isinstance(framework, ReferenceFramework):
        kinds = ("SGD", "Adam", "AdamW")
        return GenerativeSettings(REFERENCE_PROGRAMS, 64, dict.fromkeys(kinds, REFERENCE_MOMENTS))
    name = framework.name
    table: Mapping[str, Any] = (adapter_file(name) if name in known() else AdapterFile()).laws
    if unknown := sorted(table.keys() - _KEYS):
        raise ValueError(f"{name}: adapter.toml: [laws] has no key {unknown[0]!r}")
    return GenerativeSettings(
        table.get("programs", PROGRAMS),
        table.get("seed-bits", 32),
        table.get("moments", {}),
        table.get("not-compared", {}),
        table.get("not-judged", {}),
        table.get("not-drawn", {}),
    )
