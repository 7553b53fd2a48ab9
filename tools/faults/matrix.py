"""Measures which tests fail on each fault, without a stop at the first."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import cache

from conformance.runner.adapter_info import ask
from conformance.runner.baselines import nearest
from conformance.runner.recorder import SETTINGS
from conformance.test_ids.inventory import node_of
from results.record.reading import Outcome, TestVerdict, load
from tools.faults.catalogue import Fault
from tools.faults.engine import DETECTED, FIRST, LAWS, QUICK, RAISED, ROOT, Engine, RunError, first_failure

BASELINE = ROOT / "results" / "baselines" / "reference-1-cpu-emulated.json.gz"
"""Which tests pass on the reference, and how long each takes."""
QUICK_S = 0.2
"""Tests of a fault's families that are not about it are run if they take no longer."""


def measured(chosen: Sequence[Fault], workers: int) -> Iterator[tuple[Fault, list[str]]]:
    """Each fault with the tests that fail on it, as its runs end.

    The tests are those of the clauses about a fault, and of the reference also the quick ones of their families. Where
    none of them fails, the drawn programs run up to the first that does, the quickest first.
    """
    passed = [verdict for verdict in load(BASELINE).verdicts if verdict.outcome is Outcome.PASS]
    passed.sort(key=lambda verdict: verdict.duration_s)
    laws = [verdict for verdict in passed if verdict.clause.startswith(LAWS)]
    others = [verdict for verdict in passed if not verdict.clause.startswith(LAWS)]
    engine = Engine()

    def of_adapter(fault: Fault) -> list[str]:
        known = _passing(fault)
        nodes = [node for v in known if v.clause in fault.clauses if (node := node_of(v.test)) is not None]
        verdicts = engine.run(fault.name, fault.mode, nodes, QUICK)
        outcomes = RAISED if fault.raises else DETECTED
        failing = [v.test for v in verdicts if v.outcome in outcomes or v.leaks]
        if not failing:
            nodes = [node for v in known if v.clause.startswith(LAWS) if (node := node_of(v.test)) is not None]
            verdicts = engine.run(fault.name, fault.mode, nodes, FIRST)
            failing = [failed.test] if (failed := first_failure(verdicts)) else []
        return failing

    def killers(fault: Fault) -> list[str]:
        if fault.framework != "reference":
            return of_adapter(fault)
        outcomes = RAISED if fault.raises else DETECTED
        verdicts = _run(engine, fault, [v for v in others if _concerns(v, fault)], QUICK)
        failing = [v.test for v in verdicts if v.outcome in outcomes or v.leaks]
        if not failing and (failed := first_failure(_run(engine, fault, laws, FIRST))):
            failing.append(failed.test)
        return failing

    with ThreadPoolExecutor(workers) as pool:
        jobs = {pool.submit(killers, fault): fault for fault in chosen}
        for job in as_completed(jobs):
            try:
                yield jobs[job], job.result()
            except RunError as error:
                print(f"not measured: {error}", flush=True)


def _passing(fault: Fault) -> list[TestVerdict]:
    """The tests that pass in the baseline of a fault's adapter and mode, the quickest first."""
    path = nearest(fault.framework, fault.mode or _first_mode(fault.framework), "cpu")
    verdicts = load(path).verdicts if path is not None else ()
    return sorted((v for v in verdicts if v.outcome is Outcome.PASS), key=lambda v: v.duration_s)


@cache
def _first_mode(framework: str) -> str:
    answer = ask(framework, "cpu")
    if isinstance(answer, str):
        raise RunError(answer)
    return answer.modes[0]


def _concerns(verdict: TestVerdict, fault: Fault) -> bool:
    family = verdict.clause.partition(".")[0]
    if verdict.duration_s < QUICK_S and any(clause.partition(".")[0] == family for clause in fault.clauses):
        return True
    return verdict.clause in fault.clauses or (SETTINGS in fault.clauses and "scope" in verdict.test)


def _run(engine: Engine, fault: Fault, verdicts: Sequence[TestVerdict], words: Sequence[str]) -> Sequence[TestVerdict]:
    nodes = [node for verdict in verdicts if (node := node_of(verdict.test)) is not None]
    return engine.run(fault.name, fault.mode, nodes, words) if nodes else ()
