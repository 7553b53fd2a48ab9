"""What all ranks of a company have alike."""

from __future__ import annotations

from conformance.judging.verdict import difference
from frameworks.contract import Company

OWN = ("random/", "buffer/", "accumulator/")
"""Beginnings of the names of what ranks may have each for itself."""


def apart(company: Company) -> str:
    """In what the first rank that is not as rank 0 is differs from it, in words; "" if all are alike."""
    shared = [{name: v for name, v in state.items() if not name.startswith(OWN)} for state in company.states()]
    for rank, state in enumerate(shared[1:], 1):
        if differs := difference(shared[0], state):
            return f"rank {rank} apart from rank 0: {differs}"
    return ""
