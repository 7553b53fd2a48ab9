"""Laws over drawn programs: any verbs, on any model, under any recipe, and other ways to come to the same."""

from __future__ import annotations

import pytest

from conformance.judging.kit import Subject, Verdict, clause, need
from conformance.laws import drawing_operations
from conformance.laws import drawing_variations as drawing
from conformance.laws.holding import Excluded, explore
from frameworks.contract import Capability

PARTS = 8
"""Tests of the law that takes most of the programs, so that several processes share them."""


@clause("laws.programs")
@pytest.mark.parametrize("part", range(PARTS))
def test_any_program_does_what_the_oracle_does(
    subject: Subject, verdict: Verdict, excluded: Excluded, part: int
) -> None:
    explore(subject, verdict, excluded, drawing.programs, part, share=1 / PARTS)


@clause("laws.recomputation")
@pytest.mark.parametrize("part", range(2))
def test_any_program_is_the_same_with_recomputation(
    subject: Subject, verdict: Verdict, excluded: Excluded, part: int
) -> None:
    need(subject, Capability.RECOMPUTE)
    explore(subject, verdict, excluded, drawing.recomputed, 10 + part, share=1 / 16)


@clause("laws.scales")
def test_any_program_is_the_same_under_any_scale(subject: Subject, verdict: Verdict, excluded: Excluded) -> None:
    need(subject, Capability.DYNAMIC_SCALING)
    explore(subject, verdict, excluded, drawing.scaled, 20, share=1 / 16)


@clause("laws.restores")
@pytest.mark.parametrize("part", range(2))
def test_any_program_goes_on_from_anywhere(subject: Subject, verdict: Verdict, excluded: Excluded, part: int) -> None:
    need(subject, Capability.CHECKPOINT)
    explore(subject, verdict, excluded, drawing.resumed, 30 + part, share=1 / 16)


@clause("laws.second-run")
@pytest.mark.parametrize("part", range(2))
def test_any_program_may_come_second(subject: Subject, verdict: Verdict, excluded: Excluded, part: int) -> None:
    explore(subject, verdict, excluded, drawing.second_runs, 40 + part, share=1 / 16)


@clause("laws.windows")
def test_any_window_may_be_cut_otherwise(subject: Subject, verdict: Verdict, excluded: Excluded) -> None:
    need(subject, Capability.ACCUMULATION)
    explore(subject, verdict, excluded, drawing.cuts, 50, share=1 / 64)


@clause("laws.operations")
@pytest.mark.parametrize("part", range(2))
def test_any_operation_heeds_the_innermost_scope_alone(
    subject: Subject, verdict: Verdict, excluded: Excluded, part: int
) -> None:
    need(subject, Capability.AUTOCAST_SCOPE)
    explore(subject, verdict, excluded, drawing_operations.scoped, 60 + part, share=1 / 4)


@clause("laws.calls")
def test_any_recomputed_call_is_the_plain_one(subject: Subject, verdict: Verdict, excluded: Excluded) -> None:
    need(subject, Capability.RECOMPUTE_CASES)
    explore(subject, verdict, excluded, drawing_operations.calls, 70, share=1 / 16)


@clause("laws.processes")
def test_any_program_is_the_same_in_another_process(subject: Subject, verdict: Verdict, excluded: Excluded) -> None:
    explore(subject, verdict, excluded, drawing.elsewhere, 80, share=0.0)
