"""Compares what an adapter declares with the effect of the framework's own call."""

from conformance.checks.evidence import Misdeclared, Verdict
from conformance.checks.subject import Subject
from conformance.declarations.requests import request
from frameworks.contract import Capability, Unsupported

PRECISIONS = tuple(each for each in Capability if each.startswith("precision.O"))
REQUESTS = (*PRECISIONS, Capability.AUTOCAST_SCOPE, Capability.AUTOCAST_LISTS, Capability.DYNAMIC_SCALING)
"""Capabilities that a request for mixed precision may need."""

OTHERS = tuple(each for each in Capability if each not in REQUESTS)


def compare(subject: Subject, verdict: Verdict, capability: Capability) -> None:
    """Compares the declaration of a capability with its attempt; without one, a supported capability is asked for.

    Raises:
        Misdeclared: the attempt shows otherwise.
        Violation: a refusal has no reason, or there was nothing to try.
        Unsupported: the refusal holds, or what is declared as supported is refused.
    """
    declared, acted = subject.framework.declares(capability), subject.framework.probe(capability)
    if declared.supported and acted is None:
        request(subject.framework, capability)
        acted = True
    verdict.observe(str(capability), {"declared": declared.supported, "observed": acted, "reason": declared.reason})
    if acted is not None and acted != declared.supported:
        effect = "a direct call succeeded" if acted else "a direct call had no effect"
        said = "supported" if declared.supported else "unsupported"
        raise Misdeclared("misdeclared", f"adapter declares {capability} {said}, but {effect}")
    if not declared.supported:
        reason = declared.reason
        verdict.holds(bool(reason), "a refusal has a reason", reason, "a reason", "refused-without-reason")
        verdict.holds(acted is not None, "a refusal was tried", acted, "an attempt", "refused-untried")
        raise Unsupported(capability, reason)
