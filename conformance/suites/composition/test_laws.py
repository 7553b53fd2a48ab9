"""Property tests with generated programs: any calls, on any model, under any recipe; and equivalent runs."""

import pytest

from conformance.checks.api import Subject, Verdict, clause
from conformance.generative.verdicts import LAWS, Excluded, explore
from conformance.techniques.float8_training import DELAYED_SCALING
from conformance.techniques.formats import FORMATS
from conformance.techniques.quantized_models import QUANTIZED_MODELS


@clause("laws.programs")
@pytest.mark.parametrize("part", range(8))
def test_generated_program_matches_oracle(subject: Subject, verdict: Verdict, excluded: Excluded, part: int) -> None:
    explore(subject, verdict, excluded, LAWS["laws.programs"], part)


@clause("laws.recomputation")
@pytest.mark.parametrize("part", range(2))
def test_generated_program_with_recomputation(
    subject: Subject, verdict: Verdict, excluded: Excluded, part: int
) -> None:
    explore(subject, verdict, excluded, LAWS["laws.recomputation"], part)


@clause("laws.scales")
def test_generated_program_at_any_scale(subject: Subject, verdict: Verdict, excluded: Excluded) -> None:
    explore(subject, verdict, excluded, LAWS["laws.scales"])


@clause("laws.restores")
@pytest.mark.parametrize("part", range(2))
def test_generated_program_resumes_anywhere(subject: Subject, verdict: Verdict, excluded: Excluded, part: int) -> None:
    explore(subject, verdict, excluded, LAWS["laws.restores"], part)


@clause("laws.second-run")
@pytest.mark.parametrize("part", range(2))
def test_generated_program_as_second_run(subject: Subject, verdict: Verdict, excluded: Excluded, part: int) -> None:
    explore(subject, verdict, excluded, LAWS["laws.second-run"], part)


@clause("laws.windows")
def test_generated_window_splits(subject: Subject, verdict: Verdict, excluded: Excluded) -> None:
    explore(subject, verdict, excluded, LAWS["laws.windows"])


@clause("laws.operations")
@pytest.mark.parametrize("part", range(2))
def test_generated_operation_in_nested_scopes(
    subject: Subject, verdict: Verdict, excluded: Excluded, part: int
) -> None:
    explore(subject, verdict, excluded, LAWS["laws.operations"], part)


@clause("laws.calls")
def test_generated_recomputed_call(subject: Subject, verdict: Verdict, excluded: Excluded) -> None:
    explore(subject, verdict, excluded, LAWS["laws.calls"])


@clause("laws.masks")
def test_generated_dropout_masks(subject: Subject, verdict: Verdict, excluded: Excluded) -> None:
    explore(subject, verdict, excluded, LAWS["laws.masks"])


@clause("laws.codes")
@pytest.mark.parametrize("part", range(2))
def test_generated_quantized_values_match_rule(
    subject: Subject, verdict: Verdict, excluded: Excluded, part: int
) -> None:
    explore(subject, verdict, excluded, FORMATS.properties["laws.codes"], part)


@clause("laws.quantized-models")
def test_generated_quantized_model(subject: Subject, verdict: Verdict, excluded: Excluded) -> None:
    explore(subject, verdict, excluded, QUANTIZED_MODELS.properties["laws.quantized-models"])


@clause("laws.delayed-scales")
def test_generated_delayed_scales(subject: Subject, verdict: Verdict, excluded: Excluded) -> None:
    explore(subject, verdict, excluded, DELAYED_SCALING.properties["laws.delayed-scales"])


@clause("laws.processes")
def test_generated_program_in_new_process(subject: Subject, verdict: Verdict, excluded: Excluded) -> None:
    explore(subject, verdict, excluded, LAWS["laws.processes"])
