"""What all ranks of a company have alike."""

from __future__ import annotations

from conformance.judging.verdict import same_bits, shown
from frameworks.contract import Company

OWN = ("random/", "buffer/", "accumulator/")
"""Beginnings of the names of what ranks may have each for itself."""


def apart(company: Company) -> str:
    """The first part of the state in which a rank is not as rank 0 is, in words; "" if there is none."""
    first, *others = company.states()
    for rank, state in enumerate(others, 1):
        for name in sorted(first.keys() | state.keys()):
            if name.startswith(OWN):
                continue
            if name not in first or name not in state:
                return f"{name} of rank {0 if name in first else rank} alone"
            if not same_bits(state[name], first[name]):
                return f"{name} of rank {rank} as {shown(state[name])}, of rank 0 as {shown(first[name])}"
    return ""
