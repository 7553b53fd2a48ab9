"""The names that the suites import: the clause mark and the shared helpers."""

# ruff: noqa: F401
import pytest

from conformance.checks.evidence import Verdict
from conformance.checks.failing_layer import naming_the_layer
from conformance.checks.subject import Subject, full, need, need_device, spike_gradients, supports
from conformance.oracle.automaton import Scale
from conformance.oracle.bound import Bound


def of_one_pass(subject: Subject, verdict: Verdict) -> None:
    """Abstain from a test of a single backward pass if the mode trains every recipe on several ranks.

    Raises:
        Abstention: the mode does; gradients of ranks are sums of several passes.
    """
    if subject.framework.ranks() is not None:
        verdict.abstain("gradients are sums over ranks here, which are wider than what one pass gives")


def clause(identifier: str) -> pytest.MarkDecorator:
    """Mark a test as a test of one clause of the specification."""
    return pytest.mark.clause(identifier)
