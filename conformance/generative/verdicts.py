"""The laws of generated cases by clause, and verdicts that name the clause that a failing case breaks."""

from collections.abc import Mapping

import numpy as np

from conformance.checks.evidence import Check, Verdict, Violation
from conformance.checks.subject import Profile, Subject, need
from conformance.generative import masks, operations
from conformance.generative.programs import variations
from conformance.generative.programs.variations import Instance
from conformance.known_failures.entries import Exclusion
from conformance.search.properties import Failure, GenerativeSettings, Property, Search, generative_settings
from conformance.techniques import load_techniques
from frameworks.contract import Capability

Excluded = tuple[Exclusion, ...]

ALL_LEFT_OUT = "every generated case is excluded by a known defect"


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
        _raise_violation(subject, verdict, laws, instance, failure)
    if not search.judged and search.refusal is not None:
        raise search.refusal
    if not search.judged:
        verdict.abstain(ALL_LEFT_OUT)
    what = f"{search.judged} drawn, {search.refused} refused"
    verdict.checks.append(Check("the law holds for every drawn case", True, what, "all"))


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
        _raise_violation(subject, verdict, laws, instance, failure)
    verdict.checks.append(Check("the law holds for this case", True, "1 case", "all"))


def _raise_violation(
    subject: Subject, verdict: Verdict, laws: GenerativeSettings, instance: Instance, failure: Failure
) -> None:
    __tracebackhide__ = True
    with np.errstate(all="ignore"):
        clause, text = instance.clause(subject, laws, failure)
    verdict.checks.append(Check("the law holds for every drawn case", False, text, "no difference"))
    raise Violation(clause, f"{text}\n{as_test(instance)}")


def as_test(instance: Instance) -> str:
    """Return a plain test of one instance, to paste into a file of `conformance/suites`."""
    return (
        "the smallest failing case, as a test of its own:\n\n"
        "from conformance.generative.paste import *\n\n"
        '@clause("laws.programs")\n'
        "def test_example(subject: Subject, verdict: Verdict) -> None:\n"
        f"    hold(subject, verdict, {instance!r})\n"
    )


LAWS: Mapping[str, Property] = {
    "laws.programs": Property(0, variations.programs, 8, 1.0),
    "laws.recomputation": Property(
        1, variations.draw_recomputed_case, 2, 1 / 8, (Capability.RECOMPUTE,), always=frozenset({"recompute"})
    ),
    "laws.scales": Property(2, variations.draw_scaled_case, 1, 1 / 16, (Capability.DYNAMIC_SCALING,)),
    "laws.restores": Property(3, variations.draw_resumed_case, 2, 1 / 8, (Capability.CHECKPOINT,)),
    "laws.second-run": Property(4, variations.draw_second_run, 2, 1 / 8),
    "laws.windows": Property(5, variations.draw_cut_windows, 1, 1 / 64, (Capability.ACCUMULATION,)),
    "laws.operations": Property(6, operations.draw_scoped_operation, 2, 1.0, (Capability.AUTOCAST_SCOPE,)),
    "laws.calls": Property(7, operations.draw_calls, 1, 1 / 16, (Capability.RECOMPUTE_CASES,)),
    "laws.masks": Property(9, masks.draw_masked_case, 1, 1 / 8),
    **{clause: test for technique in load_techniques() for clause, test in technique.properties.items()},
    "laws.processes": Property(8, variations.draw_elsewhere, 1, 0.0, (), variations.join_triples),
}
"""Laws by clause id."""
