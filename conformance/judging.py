"""What the suites import: the clause mark and the shared helpers."""

from __future__ import annotations

import pytest

from conformance.automaton import Scale
from conformance.layers import naming_the_layer
from conformance.subject import Subject, full, need, need_device, spiked
from conformance.verdict import Bound, Verdict

__all__ = [
    "Bound",
    "Scale",
    "Subject",
    "Verdict",
    "clause",
    "full",
    "naming_the_layer",
    "need",
    "need_device",
    "spiked",
]


def clause(identifier: str) -> pytest.MarkDecorator:
    """Marks a test as a test of one clause of the specification."""
    return pytest.mark.clause(identifier)
