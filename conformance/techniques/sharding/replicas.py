"""State that all ranks of a run share."""

from __future__ import annotations

from conformance.checks.evidence import difference
from frameworks.contract import RankGroup

OWN = ("random/", "buffer/", "accumulator/")
"""Prefixes of state that may differ between ranks."""


def apart(rank_group: RankGroup) -> str:
    """How the first rank that differs from rank 0 does so, in words; "" if all agree."""
    shared = [{name: v for name, v in state.items() if not name.startswith(OWN)} for state in rank_group.states()]
    for rank, state in enumerate(shared[1:], 1):
        if differs := difference(state, shared[0]):
            return f"rank {rank} differs from rank 0: {differs}"
    return ""
