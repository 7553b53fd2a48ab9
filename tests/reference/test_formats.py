"""Rounding, narrow formats, scales of quantizers, their table in the docs, 8-bit moments, and quantized layers."""

import math
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from conformance.techniques import formats
from conformance.techniques.eight_bit_state import MomentBeforeEncoding, block_maxima, paper_values
from conformance.techniques.post_training import MIXED, make_mixed_model, quantized_layers, small_layers
from conformance.techniques.quantized_models import large_enough
from fixtures.arrays import CODES, FORMATS, NARROW, Array
from fixtures.model import Activation, Dense, Flatten, Head, Heads, Layer, Model
from fixtures.models import exact_linear
from fixtures.recipe import Adam, Offload, Ranks, Recipe
from frameworks.contract import Capability, EightBitRule, QuantRule, needs
from frameworks.reference import ReferenceFramework
from frameworks.reference.core.primitives import contract
from frameworks.reference.core.rounding import Exact, Nearest, Stochastic
from frameworks.reference.quantization.post_training import RULES
from results.record.model import Outcome, TestVerdict
from tests.support.recorded import record
from tools.docs.blocks import ROWS, format_blocks

each_narrow = pytest.mark.parametrize("name", ["float32", "float16", "bfloat16"])
values = arrays(np.float64, st.integers(1, 20), elements=st.floats(width=64))
each_signed_format = pytest.mark.parametrize(
    "name", sorted(name for name, number_format in NARROW.items() if number_format.signed)
)
P, K, U, N, F = Outcome.PASS, Outcome.KNOWN, Outcome.UNSUPPORTED, Outcome.NOT_OFFERED, Outcome.FAIL
ENTRIES = 4300
ENTRY_MODEL = exact_linear(1, ENTRIES)
RECIPE = Recipe(Adam(state_bits=8))
FEWEST = 1024
RULE = replace(RULES["dynamic-int8"], smallest=FEWEST)


class TestRounding:
    @each_narrow
    @given(values)
    def test_nearest_is_astype(self, name: str, x: Array) -> None:
        with np.errstate(all="ignore"):
            expected = x.astype(FORMATS[name].dtype).astype(np.float64)
        np.testing.assert_array_equal(Nearest().round(x, name), expected)

    @each_narrow
    @given(values, st.integers(0, 2**32))
    def test_stochastic_takes_a_neighbour(self, name: str, x: Array, seed: int) -> None:
        rounded = Stochastic(np.random.default_rng(seed)).round(x, name)
        nearest = Nearest().round(rounded, name)
        np.testing.assert_array_equal(rounded, nearest, "the result is a number of the format")
        np.testing.assert_array_equal(np.signbit(rounded), np.signbit(np.where(np.isnan(x), rounded, x)))
        finite = np.abs(x) <= FORMATS[name].largest
        spacing = np.maximum(np.abs(x) * 2.0 ** (1 - FORMATS[name].bits), FORMATS[name].smallest_subnormal)
        assert (np.abs(rounded[finite] - x[finite]) < spacing[finite] * (1 + 1e-9)).all()
        assert (np.isnan(rounded) == np.isnan(x)).all()
        assert np.isinf(rounded[np.isinf(x)]).all()

    @each_narrow
    @given(values, st.integers(0, 2**32))
    def test_round_of_numbers_of_the_format_is_the_identity(self, name: str, x: Array, seed: int) -> None:
        given_values = Nearest().round(x, name)
        for rounding in (Nearest(), Stochastic(np.random.default_rng(seed)), Exact()):
            np.testing.assert_array_equal(rounding.round(given_values, name), given_values)

    def test_stochastic_rounds_equal_values_of_a_call_alike(self) -> None:
        rounding = Stochastic(np.random.default_rng(5))
        calls = [rounding.round(np.full(100, 1.0 + 2.0**-24), "float32") for _ in range(50)]
        assert all(len(np.unique(call)) == 1 for call in calls)
        assert {call[0] for call in calls} == {1.0, 1.0 + 2.0**-23}

    def test_stochastic_rounds_unequal_values_independently(self) -> None:
        values = 1.0 + np.arange(1, 20_001) * 2.0**-44
        errors = Stochastic(np.random.default_rng(6)).round(values, "float32") - values
        assert abs(errors.mean()) < 4 * errors.std() / np.sqrt(values.size)

    @each_narrow
    @pytest.mark.parametrize("where", ["normal", "subnormal"])
    def test_stochastic_has_no_bias(self, name: str, where: str) -> None:
        target = FORMATS[name]
        low, step = (1.0, 2.0 ** (1 - target.bits)) if where == "normal" else (0.0, target.smallest_subnormal)
        count = 10_000
        rounding = Stochastic(np.random.default_rng(3))
        for share in (0.1, 0.5, 0.9):
            rounded = np.array([rounding.round(np.array(low + share * step), name) for _ in range(count)])
            up = np.mean(rounded > low)
            assert set(np.unique(rounded)) == {low, low + step}
            assert abs(up - share) < 5 * math.sqrt(share * (1 - share) / count)

    @each_narrow
    def test_stochastic_beyond_the_largest_value_is_infinite(self, name: str) -> None:
        largest = FORMATS[name].largest
        beyond = np.array([largest, -largest, 2.0 * largest, largest * (1 + 2.0 ** -(FORMATS[name].bits + 1))])
        rounded = np.array([Stochastic(np.random.default_rng(s)).round(beyond, name) for s in range(200)])
        assert (rounded[:, 0] == largest).all()
        assert (rounded[:, 1] == -largest).all()
        assert np.isinf(rounded[:, 2]).all()
        assert set(rounded[:, 3]) == {largest, math.inf}

    def test_round_to_float64_is_the_identity(self) -> None:
        x = np.array([1 / 3, 1e300, 5e-324])
        for rounding in (Nearest(), Stochastic(np.random.default_rng(0))):
            assert rounding.round(x, "float64") is x
        assert Exact().round(x, "float16") is x
        with pytest.raises(ValueError, match="unknown"):
            Nearest().round(x, "float8")


class TestProducts:
    def test_contract_of_dyadic_numbers_is_exact(self) -> None:
        rng = np.random.default_rng(0)
        a, b = (rng.integers(-8, 9, shape) / 8.0 for shape in ((3, 100), (100, 4)))
        for rounding in (Nearest(), Stochastic(rng)):
            np.testing.assert_array_equal(contract(a, b, rounding, "float32"), a @ b)
            empty = contract(np.zeros((2, 0)), np.zeros((0, 3)), rounding, "float32")
            np.testing.assert_array_equal(empty, np.zeros((2, 3)))

    def test_contract_of_an_ensemble_spreads_as_accumulation_does(self) -> None:
        rng = np.random.default_rng(1)
        a, b = (
            Nearest().round(rng.standard_normal((1, 2048)), "float32"),
            Nearest().round(rng.standard_normal((2048, 50)), "float32"),
        )
        error = contract(a, b, Stochastic(rng), "float32") - a @ b
        unit = 2.0**-24 * np.sqrt(2048)
        assert 0.5 * unit < np.sqrt(np.mean(error**2)) < 16 * unit


@pytest.mark.parametrize("name", sorted(NARROW))
def test_values_of_a_format_are_those_of_ml_dtypes(name: str) -> None:
    known = CODES.view(getattr(ml_dtypes, name)).astype(np.float64)
    values = NARROW[name].values()
    np.testing.assert_array_equal(values, known)
    numbers = ~np.isnan(known)
    assert np.array_equal(np.signbit(values[numbers]), np.signbit(known[numbers]))


@each_signed_format
@pytest.mark.parametrize("source", ["float32", "float16", "bfloat16"])
def test_nearest_of_hard_values_is_that_of_ml_dtypes(name: str, source: str) -> None:
    values = formats.hard_values(NARROW[name], source)
    known = values.astype(getattr(ml_dtypes, name)).astype(np.float64)
    np.testing.assert_array_equal(formats.nearest(values, NARROW[name]), known)


def test_nearest_of_a_float64_just_above_half_way_rounds_up() -> None:
    value = np.array([1.0625 + 2.0**-40])
    assert formats.nearest(value, NARROW["float8_e4m3fn"]) == 1.125
    assert value.astype(np.float32).astype(ml_dtypes.float8_e4m3fn).astype(float) == 1.0


@each_signed_format
def test_hard_values_have_every_middle(name: str) -> None:
    narrow = NARROW[name]
    middles = (narrow.positive[:-1] + narrow.positive[1:]) / 2
    assert set(middles) <= set(formats.hard_values(narrow, "float64"))


@pytest.mark.parametrize(
    ("ties", "expected"), [("even", [-2, -2, 0, 0, 2]), ("up", [-2, -1, 0, 1, 2]), ("away", [-3, -2, -1, 1, 2])]
)
def test_rounded_of_ties_follows_the_rule(ties: formats.Ties, expected: list[int]) -> None:
    assert formats.round_quotient(np.array([-2.5, -1.5, -0.5, 0.5, 1.5]), ties).tolist() == expected


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
    assert formats.scale_of(values, rule).ravel().tolist() == scales


def test_rows_have_every_technique() -> None:
    declared = {str(capability).partition(".")[2] for capability in Capability if str(capability).startswith("quant")}
    narrow = {str(capability).partition(".")[2] for capability in Capability if str(capability).startswith("formats.")}
    assert declared | {"adam-8bit"} | narrow - {"int8"} == set(ROWS)


def cells(framework: str, *outcomes: tuple[str, Outcome, str]) -> dict[str, str]:
    """The cells of a record's table by row; a test has a technique, an outcome and a reason."""
    verdicts = [
        TestVerdict(f"quantization.codes/test[{name}-{i}]", "quantization.codes", outcome, reason=reason)
        for i, (name, outcome, reason) in enumerate((("int8-row", P, ""), *outcomes))
    ]
    lines = format_blocks([record(framework, {"quantization.codes": P}, verdicts=tuple(verdicts))])[
        "formats"
    ].splitlines()[2:]
    return {line.split(" | ")[0].removeprefix("| "): line.split(" | ")[1].removesuffix(" |") for line in lines}


@pytest.mark.parametrize(
    ("framework", "row", "outcomes", "expected"),
    [
        ("tf", "8-bit Adam", [("adam-8bit", U, "there are no such moments")], "unsupported"),
        ("tf", "8-bit Adam", [("adam-8bit", U, "bits is not installed: pip install bits")], "needs bits"),
        ("tf", "8-bit Adam", [("adam-8bit", U, ""), ("adam-8bit", N, "")], "not offered"),
        ("tf", "8-bit Adam", [("adam-8bit", F, ""), ("adam-8bit", K, "")], "fails"),
        ("tf", "8-bit Adam", [], "no test"),
        ("tf", "static int8 quantization", [("static-int8", N, "")], "mode `tflite`"),
        ("tf", "static int8 quantization", [("static-int8", P, "")], "pass"),
        ("jax", "weight-only int8", [("weight-int8", K, ""), ("weight-int8", P, "")], "1 of 2 known not to"),
    ],
)
def test_blocks_of_formats_say_what_was_judged(
    framework: str, row: str, outcomes: list[tuple[str, Outcome, str]], expected: str
) -> None:
    assert cells(framework, *outcomes)[row] == expected


def gradients(seed: int) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    return {
        name: rng.standard_normal(shape).astype(np.float32) for name, shape in ENTRY_MODEL.parameter_shapes().items()
    }


def state_after(recipe: Recipe, updates: int = 3) -> dict[str, Array]:
    trainer = ReferenceFramework("cpu").trainer(ENTRY_MODEL, recipe)
    for update in range(updates):
        trainer.apply_gradients(gradients(update))
    return trainer.optimizer_state()


def test_adam_of_other_bits_or_blocks_is_refused() -> None:
    for settings in ({"state_bits": 4}, {"state_bits": 8, "block": 0}):
        with pytest.raises(ValueError, match="8 or 32 bits"):
            Adam(**settings)  # type: ignore[arg-type]


def test_needs_of_8_bit_adam_are_its_capability() -> None:
    assert needs(RECIPE) == (Capability.ADAM_8BIT,)
    assert needs(Recipe(Adam())) == ()


@pytest.mark.parametrize(
    "changes",
    [{"groups": 2}, {"optimizers": 2}, {"offload": Offload(("optimizer",), "disk")}, {"ranks": Ranks(2)}],
    ids=["groups", "optimizers", "disk", "ranks"],
)
def test_eight_bit_codes_of_a_combination_are_those_without_it(changes: dict[str, Any]) -> None:
    measured, expected = state_after(RECIPE.replace(**changes)), state_after(RECIPE)
    names = [name for name in expected if name.startswith(("codes/", "absmax/"))]
    assert len(names) == 8
    for name in names:
        np.testing.assert_array_equal(measured[name], expected[name], name)


def test_paper_values_are_those_of_the_reference() -> None:
    assert block_maxima(np.array([1.0, -3.0, 2.0, 0.0, -5.0]), 2).tolist() == [3.0, 2.0, 5.0]
    rule = ReferenceFramework("cpu").rule(EightBitRule)
    for values, signed in ((rule.first_codes, True), (rule.second_codes, False)):
        expected = paper_values(signed)
        assert len(expected) == 256
        np.testing.assert_allclose(values, expected, rtol=2.0**-23)


def test_code_error_of_codes_next_to_the_nearest_is_above_one() -> None:
    values = np.array([-1.0, 0.0, 0.5, 1.0], np.float32)
    moment = MomentBeforeEncoding(np.array([1.0, 0.25, 0.4, 0.0]), np.array([1.0, 0.25, 0.4, 0.0]))
    largest = np.ones(1, np.float32)
    for codes in ([3, 2, 2, 1], [3, 1, 2, 1]):
        assert moment.code_error(np.array(codes), largest, values, 4) <= 1.0
    for codes in ([2, 2, 2, 1], [3, 2, 1, 1], [3, 2, 2, 2]):
        assert moment.code_error(np.array(codes), largest, values, 4) > 1.0
    zeros, values, zero = MomentBeforeEncoding(np.zeros(2), np.zeros(2)), values[[0, 1, 3]], np.zeros(1, np.float32)
    assert (zeros.code_error(np.array([1, 2]), zero, values, 2), zeros.absmax_error(zero, 2)) == (0.0, 0.0)
    assert not zeros.code_error(np.array([1, 2]), largest, values, 2) <= 1.0
    assert not zeros.absmax_error(largest, 2) <= 1.0


@pytest.mark.parametrize("fewest", [1, 33, 1024, 1000, 5000])
def test_make_mixed_model_has_quantized_layers_and_a_small_one(fewest: int) -> None:
    assert make_mixed_model(RULES["dynamic-int8"]) is MIXED
    rule = replace(RULE, smallest=fewest)
    model = make_mixed_model(rule)
    quantized = quantized_layers(model, rule)
    assert {"0.weight", "3.weight", "5.output.weight"} <= set(quantized)
    if fewest >= 64:
        assert list(small_layers(model, rule)) == ["5.small.weight"]
    if fewest == FEWEST:
        assert np.prod(quantized["5.output.weight"]) == fewest


@pytest.mark.parametrize(
    ("sample", "layers", "first"),
    [((2,), (Dense(3), Activation("relu")), "0.weight"), ((3, 5), (Flatten(), Dense(8, bias=False)), "1.weight")],
    ids=["rows", "matrices"],
)
def test_large_enough_model_has_codes(sample: tuple[int, ...], layers: tuple[Layer, ...], first: str) -> None:
    model = Model("drawn", (*layers, Heads((Head("a", 2),))), sample, (("a", "squared_error"),))
    assert large_enough(model, 0) is model
    larger = large_enough(model, FEWEST)
    assert first in quantized_layers(larger, RULE)
    assert [type(layer) for layer in larger.layers] == [type(layer) for layer in model.layers]
    assert large_enough(larger, FEWEST) is larger
