"""When two results count as the same to the bit."""

import ml_dtypes
import numpy as np
import pytest

from conformance.checks.evidence import same_bits
from fixtures.arrays import Array


def of_bits(bits: list[int], format_name: str) -> Array:
    dtype = np.dtype(getattr(ml_dtypes, format_name, format_name))
    return np.array(bits, f"uint{8 * dtype.itemsize}").view(dtype)


@pytest.mark.parametrize(
    ("format_name", "quiet", "other"),
    [
        ("float32", 0x7FC00000, 0xFFFFFFFF),
        ("float16", 0x7E00, 0xFFFF),
        ("bfloat16", 0x7FC0, 0xFFFF),
        ("float8_e5m2", 0x7E, 0xFF),
    ],
)
def test_same_bits_takes_any_nan_for_any_other(format_name: str, quiet: int, other: int) -> None:
    """A processor and a GPU make NaN of other bits of the same operation."""
    assert same_bits(of_bits([quiet, 1], format_name), of_bits([other, 1], format_name))
    assert not same_bits(of_bits([quiet, 1], format_name), of_bits([other, 2], format_name))
    assert not same_bits(of_bits([quiet, 1], format_name), of_bits([1, quiet], format_name))


def test_same_bits_tells_signs_of_zero_and_integers_apart() -> None:
    for dtype in ("float32", "float64"):
        assert not same_bits(np.array([0.0, np.nan], dtype), np.array([-0.0, np.nan], dtype))
    assert same_bits(np.arange(3), np.arange(3))
    assert not same_bits(np.arange(3), np.arange(1, 4))
    assert not same_bits(np.arange(3, dtype=np.int8), np.arange(3, dtype=np.int16))
