"""What a framework is declared to do against what its own call was seen to do."""

from __future__ import annotations

from conformance.judging.subject import Subject
from conformance.judging.verdict import Misdeclared, Verdict
from frameworks.contract import Capability, Unsupported

PRECISIONS = tuple(each for each in Capability if each.startswith("precision.O"))
REQUESTS = (*PRECISIONS, Capability.AUTOCAST_SCOPE, Capability.AUTOCAST_LISTS, Capability.DYNAMIC_SCALING)
"""What a request for mixed precision asks for."""

OTHERS = tuple(each for each in Capability if each not in REQUESTS)


def compare(subject: Subject, verdict: Verdict, capability: Capability) -> None:
    """Holds the declaration of a capability against its attempt.

    Raises:
        Misdeclared: the attempt shows otherwise.
        Violation: a refusal has no reason, or there was nothing to try.
        Unsupported: the refusal holds.
    """
    declared, acted = subject.framework.declares(capability), subject.framework.probe(capability)
    verdict.observe(str(capability), {"declared": declared.supported, "observed": acted, "reason": declared.reason})
    if acted is not None and acted != declared.supported:
        said = "supported, and was not seen to act" if declared.supported else "not supported, and was seen to act"
        raise Misdeclared("misdeclared", f"{capability} is declared as {said}")
    if not declared.supported:
        reason = declared.reason
        verdict.holds(bool(reason), "a refusal has a reason", reason, "a reason", "refused-without-reason")
        verdict.holds(acted is not None, "a refusal was tried", acted, "an attempt", "refused-untried")
        raise Unsupported(capability, reason)
