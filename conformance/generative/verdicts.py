"""The laws of generated cases by clause, and verdicts that name the clause that a failing case breaks."""

from collections.abc import Mapping

import numpy as np

from conformance.checks.evidence import Check, Verdict, Violation
from conformance.checks.subject import Profile, Subject, need
from conformance.generative import masks, operations
from conformance.generative.programs import variations
from conformance.generative.programs.variations import Instance
from conformance.known_failures.entries import Exclusion
from conformance.search import Failure, GenerativeSettings, Property, Search, generative_settings
from conformance.techniques import load_techniques
from frameworks.contract import Capability

Excluded = tuple[Exclusion, ...]

ALL_LEFT_OUT = "every generated case is excluded by a known defect"
_EVERY_CASE, _THIS_CASE = "the law holds for every drawn case", "the law holds for this case"


def explore(subject: Subject, verdict: Verdict, excluded: Excluded, law: Property, part: int = 0) -> None:
    """Check a law for instances generated for the framework.

    Args:
        excluded: known defects; instances that match one are not generated.
        part: number of the test among those of the law; each part has its own instances.
    Raises:
        Violation: the law is broken; the signature is the id of the clause that the failure breaks.
        Unsupported: the framework refused every instance.
        Abstention: the adapter's file says that this mode is not judged in the profile "ci".
    """
    __tracebackhide__ = True
    laws = generative_settings(subject.framework)
    profile = subject.profile
    need(subject, *law.needs)
    if profile == Profile() and (reason := laws.not_judged.get(subject.framework.mode)):
        verdict.abstain(reason)
    if any(entry.leaves_out(law.always) for entry in excluded):  # every instance would match, so draw none
        verdict.abstain(ALL_LEFT_OUT)
    before = subject.framework.global_state()

    def judge(instance: Instance) -> Failure | None:
        subject.framework.restore_global_state(before)
        with np.errstate(all="ignore"):
            return instance.failure(subject, laws)

    search: Search[Instance, Failure] = Search(judge, law.enough * profile.factor)
    chosen = subject.seed if profile.seed is None else profile.seed
    strategy = law.instances(subject.framework, excluded)
    search.run(strategy, law.count(laws) * profile.factor, law.seed(chosen, part), profile.shrinking_s)
    if search.smallest is not None:
        instance, failure = search.smallest
        clause, text = _record_failure(subject, verdict, laws, instance, failure, _EVERY_CASE)
        raise Violation(clause, f"{text}\n{as_test(law, instance)}")
    if not search.judged and search.refusal is not None:
        raise search.refusal
    if not search.judged:
        verdict.abstain(ALL_LEFT_OUT)
    what = f"{search.judged} drawn, {search.refused} refused"
    verdict.checks.append(Check(_EVERY_CASE, True, what, "all"))


def hold(subject: Subject, verdict: Verdict, instance: Instance) -> None:
    """Check a law for one instance.

    Raises:
        Violation: the law is broken.
    """
    __tracebackhide__ = True
    laws = generative_settings(subject.framework)
    with np.errstate(all="ignore"):
        failure = instance.failure(subject, laws)
    if failure is not None:
        raise Violation(*_record_failure(subject, verdict, laws, instance, failure, _THIS_CASE))
    verdict.checks.append(Check(_THIS_CASE, True, "1 case", "all"))


def _record_failure(
    subject: Subject, verdict: Verdict, laws: GenerativeSettings, instance: Instance, failure: Failure, what: str
) -> tuple[str, str]:
    """Add a failed check to the verdict; return the clause that the failure breaks, and the text."""
    with np.errstate(all="ignore"):
        clause, text = instance.clause(subject, laws, failure)
    verdict.checks.append(Check(what, False, text, "no difference"))
    return clause, text


def as_test(law: Property, instance: Instance) -> str:
    """Return a plain test of one instance of a law, to paste into a file of `conformance/suites`."""
    (clause,) = (clause for clause, other in LAWS.items() if other.number == law.number)
    return (
        "the smallest failing case, as a test of its own:\n\n"
        "from conformance.generative.paste import *\n\n"
        f'@clause("{clause}")\n'
        "def test_example(subject: Subject, verdict: Verdict) -> None:\n"
        f"    hold(subject, verdict, {instance!r})\n"
    )


LAWS: Mapping[str, Property] = {
    "laws.programs": Property(number=0, draw=variations.programs, parts=8, share=1.0),
    "laws.recomputation": Property(
        number=1,
        draw=variations.draw_recomputed_case,
        parts=2,
        share=1 / 8,
        needs=(Capability.RECOMPUTE,),
        always=frozenset({"recompute"}),
    ),
    "laws.scales": Property(
        number=2, draw=variations.draw_scaled_case, share=1 / 16, needs=(Capability.DYNAMIC_SCALING,)
    ),
    "laws.restores": Property(
        number=3, draw=variations.draw_resumed_case, parts=2, share=1 / 8, needs=(Capability.CHECKPOINT,)
    ),
    "laws.second-run": Property(number=4, draw=variations.draw_second_run, parts=2, share=1 / 8),
    "laws.windows": Property(
        number=5, draw=variations.draw_cut_windows, share=1 / 64, needs=(Capability.ACCUMULATION,)
    ),
    "laws.operations": Property(
        number=6, draw=operations.draw_scoped_operation, parts=2, share=1.0, needs=(Capability.AUTOCAST_SCOPE,)
    ),
    "laws.calls": Property(number=7, draw=operations.draw_calls, share=1 / 16, needs=(Capability.RECOMPUTE_CASES,)),
    "laws.masks": Property(number=9, draw=masks.draw_masked_case, share=1 / 8),
    **{clause: law for technique in load_techniques() for clause, law in technique.properties.items()},
    "laws.processes": Property(number=8, draw=variations.draw_elsewhere, share=0.0, together=variations.join_triples),
}
"""Laws by clause id."""
