"""Property tests with generated programs: any verbs, on any model, under any recipe, and equivalent runs."""

from __future__ import annotations

import pytest

from conformance.checks.api import Subject, Verdict, clause
from conformance.generative.verdicts import Excluded, explore


@clause("laws.programs")
@pytest.mark.parametrize("part", range(8))
def test_any_program_does_what_the_oracle_does(
    subject: Subject, verdict: Verdict, excluded: Excluded, part: int
) -> None:
    explore(subject, verdict, excluded, "laws.programs", part)


@clause("laws.recomputation")
@pytest.mark.parametrize("part", range(2))
def test_any_program_is_the_same_with_recomputation(
    subject: Subject, verdict: Verdict, excluded: Excluded, part: int
) -> None:
    explore(subject, verdict, excluded, "laws.recomputation", part)


@clause("laws.scales")
def test_any_program_is_the_same_under_any_scale(subject: Subject, verdict: Verdict, excluded: Excluded) -> None:
    explore(subject, verdict, excluded, "laws.scales")


@clause("laws.restores")
@pytest.mark.parametrize("part", range(2))
def test_any_program_goes_on_from_anywhere(subject: Subject, verdict: Verdict, excluded: Excluded, part: int) -> None:
    explore(subject, verdict, excluded, "laws.restores", part)


@clause("laws.second-run")
@pytest.mark.parametrize("part", range(2))
def test_any_program_may_come_second(subject: Subject, verdict: Verdict, excluded: Excluded, part: int) -> None:
    explore(subject, verdict, excluded, "laws.second-run", part)


@clause("laws.windows")
def test_any_window_may_be_cut_otherwise(subject: Subject, verdict: Verdict, excluded: Excluded) -> None:
    explore(subject, verdict, excluded, "laws.windows")


@clause("laws.operations")
@pytest.mark.parametrize("part", range(2))
def test_any_operation_heeds_the_innermost_scope_alone(
    subject: Subject, verdict: Verdict, excluded: Excluded, part: int
) -> None:
    explore(subject, verdict, excluded, "laws.operations", part)


@clause("laws.calls")
def test_any_recomputed_call_is_the_plain_one(subject: Subject, verdict: Verdict, excluded: Excluded) -> None:
    explore(subject, verdict, excluded, "laws.calls")


@clause("laws.masks")
def test_any_mask_of_dropout_is_a_new_one_that_both_passes_use(
    subject: Subject, verdict: Verdict, excluded: Excluded
) -> None:
    explore(subject, verdict, excluded, "laws.masks")


@clause("laws.codes")
@pytest.mark.parametrize("part", range(2))
def test_any_code_is_the_one_of_its_rule(subject: Subject, verdict: Verdict, excluded: Excluded, part: int) -> None:
    explore(subject, verdict, excluded, "laws.codes", part)


@clause("laws.quantized-models")
def test_any_quantized_model_does_what_its_codes_say(subject: Subject, verdict: Verdict, excluded: Excluded) -> None:
    explore(subject, verdict, excluded, "laws.quantized-models")


@clause("laws.delayed-scales")
def test_any_scale_follows_the_steps_before(subject: Subject, verdict: Verdict, excluded: Excluded) -> None:
    explore(subject, verdict, excluded, "laws.delayed-scales")


@clause("laws.processes")
def test_any_program_is_the_same_in_another_process(subject: Subject, verdict: Verdict, excluded: Excluded) -> None:
    explore(subject, verdict, excluded, "laws.processes")
