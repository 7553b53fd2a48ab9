"""Eight-bit formats and quantizers: tables, the oracle and the reference against an independent implementation."""

import ml_dtypes
import numpy as np
import pytest

from conformance.techniques.formats import expected_casts, expected_codes
from fixtures.narrow import CODES, NARROW
from frameworks.contract import Capability, NumberFormats, QuantRule
from frameworks.reference import ReferenceFramework
from results.record.model import TestVerdict
from results.record.outcomes import Outcome
from tests.support.reporting import baselines, record
from tests.support.suite_runs import ROOT
from tools.docs.formats import HOLDS, OTHER_MODES, ROWS, blocks

each_format = pytest.mark.parametrize("name", sorted(NARROW))
each_rounding_format = pytest.mark.parametrize("name", sorted(name for name, each in NARROW.items() if each.signed))


@each_format
def test_values_of_a_format_are_those_of_ml_dtypes(name: str) -> None:
    known = CODES.view(getattr(ml_dtypes, name)).astype(np.float64)
    values = NARROW[name].values()
    np.testing.assert_array_equal(values, known)
    numbers = ~np.isnan(known)
    assert np.array_equal(np.signbit(values[numbers]), np.signbit(known[numbers]))


@each_rounding_format
@pytest.mark.parametrize("source", ["float32", "float16", "bfloat16"])
def test_nearest_is_that_of_ml_dtypes(name: str, source: str) -> None:
    values = expected_casts.hard_values(NARROW[name], source)
    known = values.astype(getattr(ml_dtypes, name)).astype(np.float64)
    np.testing.assert_array_equal(expected_casts.nearest(values, NARROW[name]), known)


@each_rounding_format
def test_encode_of_the_reference_is_that_of_ml_dtypes(name: str) -> None:
    narrow = NARROW[name]
    values = np.concatenate([expected_casts.hard_values(narrow, "float32"), expected_casts.beyond_values(narrow)])
    values = np.concatenate([values, np.array([np.inf, -np.inf, np.nan], np.float32)])
    codes = ReferenceFramework("cpu").rule(NumberFormats).encode(values, name)
    known = values.astype(getattr(ml_dtypes, name)).astype(np.float64)
    np.testing.assert_array_equal(narrow.values()[codes], known)


def test_nearest_of_a_float64_just_above_half_way_rounds_up() -> None:
    value = np.array([1.0625 + 2.0**-40])
    assert expected_casts.nearest(value, NARROW["float8_e4m3fn"]) == 1.125
    assert value.astype(np.float32).astype(ml_dtypes.float8_e4m3fn).astype(float) == 1.0


@each_rounding_format
def test_hard_values_have_every_middle(name: str) -> None:
    narrow = NARROW[name]
    middles = (narrow.positive[:-1] + narrow.positive[1:]) / 2
    assert set(middles) <= set(expected_casts.hard_values(narrow, "float64"))


@pytest.mark.parametrize(
    ("ties", "expected"), [("even", [-2, -2, 0, 0, 2]), ("up", [-2, -1, 0, 1, 2]), ("away", [-3, -2, -1, 1, 2])]
)
def test_rounded_of_ties_follows_the_rule(ties: expected_codes.Ties, expected: list[int]) -> None:
    assert expected_codes.rounded(np.array([-2.5, -1.5, -0.5, 0.5, 1.5]), ties).tolist() == expected


@pytest.mark.parametrize(
    ("rule", "scales"),
    [
        (QuantRule(-1, 1, 1.0), [4.0] * 6),
        (QuantRule(-1, 1, 1.0, axis=1), [3.0, 3.0, 3.0, 4.0, 4.0, 4.0]),
        (QuantRule(-1, 1, 1.0, axis=0), [4.0, 2.0, 3.0, 4.0, 2.0, 3.0]),
        (QuantRule(-1, 1, 1.0, axis=1, group=2), [2.0, 2.0, 3.0, 4.0, 4.0, 1.0]),
        (QuantRule(0, 1, 1.0, symmetric=False), [7.0] * 6),
        (QuantRule(-1, 1, 2.0, epsilon=1.0, smallest_scale=2.25), [2.5] * 6),
    ],
    ids=["tensor", "row", "column", "group", "affine", "epsilon"],
)
def test_scale_of_a_rule_is_that_by_hand(rule: QuantRule, scales: list[float]) -> None:
    values = np.array([[1.0, -2.0, 3.0], [-4.0, 0.5, 1.0]], np.float32)
    assert expected_codes.scale_of(values, rule).ravel().tolist() == scales


def test_wrong_codes_counts_each() -> None:
    rule = QuantRule(-127, 127, 127.0)
    values, one, none = np.array([[0.4, 1.6, -300.0]]), np.ones((1, 3)), np.zeros((1, 3))
    assert expected_codes.wrong_codes(values, np.array([[0, 2, -127]]), one, none, rule) == 0
    assert expected_codes.wrong_codes(values, np.array([[1, 1, -128]]), one, none, rule) == 3


def test_every_technique_is_a_row_of_the_page() -> None:
    declared = {str(capability).partition(".")[2] for capability in Capability if str(capability).startswith("quant")}
    narrow = {str(capability).partition(".")[2] for capability in Capability if str(capability).startswith("formats.")}
    assert declared | {"adam-8bit"} | narrow - {"int8"} == set(ROWS)


def test_the_reference_keeps_every_technique() -> None:
    own = [r for r in baselines() if r.series.framework == "reference" and r.series.mode == "emulated"]
    heading, _, *rows = blocks(own)["formats"].splitlines()
    assert heading == "| technique | reference `emulated` |"
    assert {row.split(" | ")[1].removesuffix(" |") for row in rows} == {HOLDS}


P, K, U, N, F = Outcome.PASS, Outcome.KNOWN, Outcome.UNSUPPORTED, Outcome.NOT_OFFERED, Outcome.FAIL


def cells(framework: str, *outcomes: tuple[str, Outcome, str]) -> dict[str, str]:
    """The table of one record, by the technique, outcome and reason of each of its tests."""
    verdicts = [
        TestVerdict(f"quantization.codes/test[{name}-{i}]", "quantization.codes", outcome, reason=reason)
        for i, (name, outcome, reason) in enumerate((("int8-row", P, ""), *outcomes))
    ]
    lines = blocks([record(framework, {"quantization.codes": P}, verdicts=tuple(verdicts))])["formats"].splitlines()[2:]
    return {line.split(" | ")[0].removeprefix("| "): line.split(" | ")[1].removesuffix(" |") for line in lines}


@pytest.mark.parametrize(
    ("framework", "row", "outcomes", "said"),
    [
        ("tf", "8-bit Adam", [("adam-8bit", N, "")], "not offered"),
        ("tf", "8-bit Adam", [("adam-8bit", U, "there are no such moments")], "unsupported"),
        ("tf", "8-bit Adam", [("adam-8bit", U, "bits is not installed: pip install bits")], "needs bits"),
        ("tf", "8-bit Adam", [("adam-8bit", U, "a, b: not installed: pip install a b")], "needs a, b"),
        ("tf", "8-bit Adam", [("adam-8bit", U, ""), ("adam-8bit", N, "")], "not offered"),
        ("tf", "8-bit Adam", [("adam-8bit", Outcome.ABSTAIN, "")], "abstain"),
        ("tf", "8-bit Adam", [("adam-8bit", F, ""), ("adam-8bit", K, "")], "fails"),
        ("tf", "8-bit Adam", [], "no test"),
        ("tf", "static int8 quantization", [("static-int8", N, "")], "mode `tflite`"),
        ("tf", "static int8 quantization", [("static-int8", P, "")], "pass"),
        ("jax", "static int8 quantization", [("static-int8", N, "")], "not offered"),
        ("jax", "weight-only int8", [("weight-int8", K, ""), ("weight-int8", P, "")], "1 of 2 known not to"),
    ],
)
def test_blocks_cell_says_what_was_judged_or_why_not(
    framework: str, row: str, outcomes: list[tuple[str, Outcome, str]], said: str
) -> None:
    assert cells(framework, *outcomes)[row] == said


@pytest.mark.parametrize(("place", "mode"), OTHER_MODES.items())
def test_a_technique_is_judged_in_the_mode_that_its_cell_names(place: tuple[str, str], mode: str) -> None:
    framework, technique = place
    offering = (ROOT / "frameworks" / framework / "quantization" / f"{mode}_models.py").read_text("utf-8")
    assert f'"{technique}": LinearRule(' in offering or f'_TECHNIQUE = "{technique}"' in offering
    assert not [r for r in baselines() if (r.series.framework, r.series.mode) == (framework, mode)], (
        "its record says it"
    )
