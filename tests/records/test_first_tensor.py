"""The first array that differs between two records, and what cannot be said of it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from results.compare.first_tensor import differs, first_difference
from results.record.arrays import fingerprint
from results.record.fingerprints import Fingerprint

VALUES = np.linspace(1.0, 1.9, 5, dtype=np.float32)
BOTH = (fingerprint("output/a", VALUES), fingerprint("gradient/a", VALUES))


def later(**changes: object) -> tuple[Fingerprint, ...]:
    """The two with the second one changed."""
    return BOTH[0], replace(BOTH[1], **changes)  # type: ignore[arg-type]


def test_the_same_arrays_do_not_differ() -> None:
    assert not differs(BOTH, BOTH)
    assert first_difference(BOTH, BOTH) == ""


def test_the_first_in_the_order_of_the_computation_is_named() -> None:
    moved = fingerprint("output/a", np.nextafter(VALUES, np.float32(0)))
    both = (moved, fingerprint("gradient/a", 2 * VALUES))
    assert differs(BOTH, both)
    assert first_difference(BOTH, both) == "output/a (float32), by 1 unit in the last place of its sampled values"


@pytest.mark.parametrize(
    ("new", "message"),
    [
        (later(digest="0" * 16), "gradient/a (float32), outside the sampled values"),
        (later(format="float16"), "gradient/a, float32[5] before and float16[5] now"),
        (later(shape=(1, 5)), "gradient/a, float32[5] before and float32[1, 5] now"),
        (later(digest="0" * 16, sample="AAAA"), "gradient/a (float32), with unreadable sampled values"),
        (later(digest="0" * 16, sample="A"), "gradient/a (float32), with unreadable sampled values"),
        (later(name="gradient/b"), "gradient/b (float32), only in the new record"),
        (BOTH[:1], "gradient/a (float32), only in the old record"),
        (BOTH[::-1], "the order of the same arrays"),
    ],
)
def test_whatever_differs_is_told(new: tuple[Fingerprint, ...], message: str) -> None:
    assert first_difference(BOTH, new) == message


def test_a_value_that_is_no_number_any_more_is_told() -> None:
    broken = VALUES.copy()
    broken[0] = np.inf
    assert "finite in only one record" in first_difference(BOTH, (fingerprint("output/a", broken), BOTH[1]))


def test_formats_that_have_no_last_place_are_told_without_one() -> None:
    old, new = (fingerprint("output/a", np.array([value])) for value in (1, 2))
    assert first_difference((old,), (new,)) == "output/a (int64), with unreadable sampled values"
