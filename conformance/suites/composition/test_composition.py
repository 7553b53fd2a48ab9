"""Techniques in combination: pairs of techniques match the oracle, and adapters' declarations are true."""

from dataclasses import replace
from importlib import metadata

import pytest

from conformance import declarations
from conformance.checks import combinations, reproducers
from conformance.checks.api import Subject, Verdict, clause
from conformance.checks.combinations import Row, list_covered_pairs, list_pairs, rows
from conformance.fingerprints.cases import JudgedKind
from conformance.fingerprints.run import run_package
from conformance.spec.clauses import Workaround
from frameworks.contract import Capability
from results.compare.fingerprints import find_disagreements


@clause("composition.pairs")
def test_combination_matches_oracle(subject: Subject, verdict: Verdict, row: Row) -> None:
    combinations.compare(subject, verdict, row)


@clause("composition.pairs")
def test_dropout_acts_in_combination(subject: Subject, verdict: Verdict, dropping_row: Row) -> None:
    row = dropping_row
    constant = row.recipe.replace(optimizer=replace(row.recipe.optimizer, learning_rate=0.0))
    trainer, window = subject.trainer(row.masked, constant), row.windows[0]
    first, second = (trainer.update(window).loss for _ in range(2))
    verdict.holds(first != second, "two masks give two losses of one window", second, f"not {first}", "mask-inert")


@clause("composition.coverage")
def test_covered_pairs(subject: Subject, verdict: Verdict) -> None:
    declared, covered = list_pairs(subject.framework), list_covered_pairs(rows(subject.framework))
    verdict.observe("pairs", f"{len(declared & covered)} of {len(declared)}")


@clause("composition.declarations-hold")
@pytest.mark.parametrize("capability", declarations.OTHERS, ids=str)
def test_every_declaration_holds(subject: Subject, verdict: Verdict, capability: Capability) -> None:
    declarations.compare(subject, verdict, capability)


@clause("composition.calls-agree")
def test_calls_that_must_agree(verdict: Verdict, judged_kind: JudgedKind) -> None:
    file, kind = judged_kind.file, judged_kind.kind
    count, failures = find_disagreements(run_package(file, metadata.version(judged_kind.distribution), kind))
    if not count:
        verdict.abstain("no call of this kind succeeds here")
    for name, arguments, variant, step in failures:
        call, signature = f"{name}({arguments})", name.rpartition(".")[2]
        verdict.holds(
            False, f"{call} {variant or 'with a default by name'}", step, "the plain call's result", signature
        )
    verdict.observe("calls", count)


@clause("composition.plain-way")
def test_documented_call_works(verdict: Verdict, workaround: Workaround) -> None:
    assert workaround.finding.program is not None
    result = reproducers.run(workaround.finding.program)
    verdict.observe(
        workaround.finding.id, {"instead": workaround.does, "kind": workaround.kind, "seen": result.observed}
    )
    verdict.holds(not result.present, workaround.finding.id, result.observed, result.expected, "plain-way-fails")
