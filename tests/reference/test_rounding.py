"""The reference's rounding and its products: IEEE's nearest, unbiased when random, exact where few bits allow it."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fixtures.arrays import FORMATS, Array
from frameworks.reference.core.products import contract
from frameworks.reference.core.rounding import Exact, Nearest, Stochastic

NARROW = ("float32", "float16", "bfloat16")
each_narrow = pytest.mark.parametrize("name", NARROW)
values = arrays(np.float64, st.integers(1, 20), elements=st.floats(width=64))


class TestRounding:
    @each_narrow
    @given(values)
    def test_nearest_is_astype(self, name: str, x: Array) -> None:
        with np.errstate(all="ignore"):
            expected = x.astype(FORMATS[name].dtype).astype(np.float64)
        np.testing.assert_array_equal(Nearest().round(x, name), expected)

    @each_narrow
    @given(values, st.integers(0, 2**32))
    def test_random_rounding_takes_a_neighbour(self, name: str, x: Array, seed: int) -> None:
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
    def test_numbers_of_the_format_stay(self, name: str, x: Array, seed: int) -> None:
        given_values = Nearest().round(x, name)
        for rounding in (Nearest(), Stochastic(np.random.default_rng(seed)), Exact()):
            np.testing.assert_array_equal(rounding.round(given_values, name), given_values)

    def test_equal_values_are_rounded_alike_within_a_call_and_anew_in_the_next(self) -> None:
        rounding = Stochastic(np.random.default_rng(5))
        calls = [rounding.round(np.full(100, 1.0 + 2.0**-24), "float32") for _ in range(50)]
        assert all(len(np.unique(call)) == 1 for call in calls)
        assert {call[0] for call in calls} == {1.0, 1.0 + 2.0**-23}

    def test_unequal_values_are_rounded_independently(self) -> None:
        values = 1.0 + np.arange(1, 20_001) * 2.0**-44
        errors = Stochastic(np.random.default_rng(6)).round(values, "float32") - values
        assert abs(errors.mean()) < 4 * errors.std() / np.sqrt(values.size)

    def test_a_sum_of_no_terms_is_rounded_as_one_of_a_single_term(self) -> None:
        values = 1.0 + np.arange(100) * 2.0**-30
        none, one = (Stochastic(np.random.default_rng(7)).round(values, "float32", terms) for terms in (0, 1))
        assert np.array_equal(none, one)
        assert Stochastic(np.random.default_rng(7)).round(np.float64(0.0), "float32", 0) == 0.0

    @each_narrow
    @pytest.mark.parametrize("where", ["normal", "subnormal"])
    def test_random_rounding_has_no_bias(self, name: str, where: str) -> None:
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
    def test_beyond_the_largest_value(self, name: str) -> None:
        largest = FORMATS[name].largest
        beyond = np.array([largest, -largest, 2.0 * largest, largest * (1 + 2.0 ** -(FORMATS[name].bits + 1))])
        rounded = np.array([Stochastic(np.random.default_rng(s)).round(beyond, name) for s in range(200)])
        assert (rounded[:, 0] == largest).all()
        assert (rounded[:, 1] == -largest).all()
        assert np.isinf(rounded[:, 2]).all()
        assert set(rounded[:, 3]) == {largest, math.inf}

    def test_float64_and_exact_are_the_identity(self) -> None:
        x = np.array([1 / 3, 1e300, 5e-324])
        for rounding in (Nearest(), Stochastic(np.random.default_rng(0))):
            assert rounding.round(x, "float64") is x
        assert Exact().round(x, "float16") is x
        with pytest.raises(ValueError, match="unknown"):
            Nearest().round(x, "float8")


class TestProducts:
    def test_dyadic_products_are_exact_in_float32(self) -> None:
        rng = np.random.default_rng(0)
        a, b = (rng.integers(-8, 9, shape) / 8.0 for shape in ((3, 100), (100, 4)))
        for rounding in (Nearest(), Stochastic(rng)):
            np.testing.assert_array_equal(contract(a, b, rounding, "float32"), a @ b)
            empty = contract(np.zeros((2, 0)), np.zeros((0, 3)), rounding, "float32")
            np.testing.assert_array_equal(empty, np.zeros((2, 3)))

    def test_the_ensemble_spreads_as_accumulation_does(self) -> None:
        rng = np.random.default_rng(1)
        a, b = (
            Nearest().round(rng.standard_normal((1, 2048)), "float32"),
            Nearest().round(rng.standard_normal((2048, 50)), "float32"),
        )
        error = contract(a, b, Stochastic(rng), "float32") - a @ b
        unit = 2.0**-24 * np.sqrt(2048)
        assert 0.5 * unit < np.sqrt(np.mean(error**2)) < 16 * unit
