"""What an adapter's file says of itself for the laws: `[laws]` in `adapter.toml`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from conformance.laws.observing import REFERENCE_MOMENTS
from fixtures.recipe import Optimizer
from frameworks.adapter_file import AdapterFile, adapter_file
from frameworks.contract import Framework
from frameworks.reference import ReferenceFramework
from frameworks.registry import known

PROGRAMS = 96
"""Programs that the profile "ci" draws where an adapter does not say."""

REFERENCE_PROGRAMS = 768
"""Those of the reference, whose programs take a hundredth of a second."""

_KEYS = {"programs", "seed-bits", "moments", "not-compared", "not-judged", "not-drawn"}


@dataclass(frozen=True)
class LawsOfAdapter:
    """What an adapter's file says.

    Attributes:
        programs: how many programs the profile "ci" plays of each kind that needs an oracle.
        seed_bits: how many bits of a run's seed are documented to count, 32 or 64.
        moments: canonical slot ("momentum", "first_moment", "second_moment", "steps") by the framework's own, by the
            kind of optimizer.
        not_compared: why something of the state cannot be set against the oracle's, by the beginning of its name.
        not_judged: why the profile "ci" draws nothing in a mode, by the mode.
        not_drawn: why no recipe has a technique, by the recipe's field: "ranks", "offload" or "quantization".
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


def laws_of(framework: Framework) -> LawsOfAdapter:
    """What the file of a framework's adapter says; the oracle itself, and broken twins of it, need none.

    Raises:
        ValueError: it says something that is none of this.
    """
    if isinstance(framework, ReferenceFramework):
        kinds = ("SGD", "Adam", "AdamW")
        return LawsOfAdapter(REFERENCE_PROGRAMS, 64, dict.fromkeys(kinds, REFERENCE_MOMENTS))
    name = framework.name
    table: Mapping[str, Any] = (adapter_file(name) if name in known() else AdapterFile()).laws
    if unknown := sorted(table.keys() - _KEYS):
        raise ValueError(f"{name}: adapter.toml: [laws] has no key {unknown[0]!r}")
    return LawsOfAdapter(
        table.get("programs", PROGRAMS),
        table.get("seed-bits", 32),
        table.get("moments", {}),
        table.get("not-compared", {}),
        table.get("not-judged", {}),
        table.get("not-drawn", {}),
    )
