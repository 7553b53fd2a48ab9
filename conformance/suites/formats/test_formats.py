"""8-bit formats: values of codes, and results of casts."""

from typing import Literal

import numpy as np
import pytest

from conformance.checks.api import Subject, Verdict, clause, need
from conformance.techniques.formats import (
    PRODUCTS,
    SOURCES,
    WITHIN,
    beyond_values,
    cast_by_rule,
    example,
    find_differences,
    hard_values,
    nearest,
    product_and_bound,
    worst_share,
)
from fixtures.arrays import CODES, NARROW, Array, NarrowFormat
from frameworks.contract import Capability, NumberFormats

each_format = pytest.mark.parametrize("name", sorted(NARROW))
each_rounding_format = pytest.mark.parametrize("name", sorted(name for name, narrow in NARROW.items() if narrow.signed))
each_source = pytest.mark.parametrize("source", sorted(SOURCES))
INTEGERS = {"1.5": 1.5, "-1.5": -1.5, "2.5": 2.5, "300": 300.0, "-300": -300.0, "inf": np.inf, "-inf": -np.inf}
INTEGERS |= {"nan": np.nan, "127.9": 127.9, "-128.9": -128.9}


def require_format(subject: Subject, name: str) -> NarrowFormat:
    """Return the format; end the test unless the framework declares it."""
    need(subject, Capability(f"formats.{name}"))
    return NARROW[name]


def cast(subject: Subject, values: Array, name: str) -> Array:
    """Cast values in the framework; return its codes decoded by the format's specification, as float64."""
    codes = subject.framework.rule(NumberFormats).encode(values, name)
    return NARROW[name].values()[codes]


@clause("formats.decode")
@each_format
def test_every_code_decodes_to_its_value(subject: Subject, verdict: Verdict, name: str) -> None:
    narrow = require_format(subject, name)
    with np.errstate(invalid="ignore"):
        decoded = subject.framework.rule(NumberFormats).decode(CODES, name).astype(np.float64)
    expected = narrow.values()
    other = find_differences(decoded, expected)
    verdict.holds(not other.any(), f"codes of {name}", example(other, CODES, decoded, expected), "all", "decoded")


@clause("formats.round-to-nearest")
@each_rounding_format
@each_source
def test_casts_round_to_nearest(subject: Subject, verdict: Verdict, name: str, source: str) -> None:
    values = hard_values(require_format(subject, name), source)
    measured, expected = cast(subject, values, name), nearest(values, NARROW[name])
    other = find_differences(measured, expected)
    verdict.holds(
        not other.any(), f"casts from {source} to {name}", example(other, values, measured, expected), "all", "rounding"
    )


@clause("formats.overflow-as-declared")
@each_rounding_format
def test_out_of_range_values_are_cast_as_declared(subject: Subject, verdict: Verdict, name: str) -> None:
    narrow = require_format(subject, name)
    rule = subject.framework.rule(NumberFormats).casts()[name]
    values = np.concatenate([beyond_values(narrow), np.array([np.inf, -np.inf, np.nan], np.float32)])
    expected = cast_by_rule(values, narrow, rule)
    for length in (len(values), 33, 15, 1):
        parts = np.array_split(values, range(length, len(values), length))
        measured = np.concatenate([cast(subject, part, name) for part in parts])
        other = find_differences(measured, expected)
        mismatch = example(other, values, measured, expected)
        verdict.holds(not other.any(), f"casts to {name}, {length} at a time", mismatch, "all", "overflow")


@clause("formats.products")
@pytest.mark.parametrize("terms", [1, 33, 4096])
@pytest.mark.parametrize("names", PRODUCTS, ids=["-by-".join(names) for names in PRODUCTS])
def test_matmul_matches_dequantized_values(
    subject: Subject, verdict: Verdict, names: tuple[str, str], terms: int
) -> None:
    need(subject, Capability.FLOAT8_PRODUCTS)
    rng = np.random.default_rng(terms)
    shapes = ((5, terms), (terms, 7))
    finite = [CODES[np.isfinite(NARROW[name].values())] for name in names]
    codes = [rng.choice(choices, shape) for choices, shape in zip(finite, shapes, strict=True)]
    decoded = [NARROW[name].values()[own] for name, own in zip(names, codes, strict=True)]
    measured = subject.framework.rule(NumberFormats).float8_product(codes[0], codes[1], names)
    verdict.equal(str(measured.dtype), "float32", "the product's format", "format")
    expected, bound = product_and_bound(*decoded)
    verdict.within(worst_share(measured, expected, bound), WITHIN, f"products of {' and '.join(names)}", "value")


@clause("formats.packing")
@pytest.mark.parametrize("axis", [0, 1])
def test_packing_round_trips(subject: Subject, verdict: Verdict, axis: Literal[0, 1]) -> None:
    need(subject, Capability.INT4_PACKING)
    formats = subject.framework.rule(NumberFormats)
    every = np.arange(-8, 8, dtype=np.int8)
    pairs = np.stack(np.meshgrid(every, every), -1).reshape(-1, 2)
    matrices = [pairs, *(np.resize(np.roll(every, 3 * n), (n, 3)) for n in range(1, 10))]
    for codes in [matrix if axis == 0 else matrix.T for matrix in (*matrices, pairs.T)]:
        stored = formats.pack(np.ascontiguousarray(codes), axis)
        length = codes.shape[axis]
        halved = codes.size // length * ((length + 1) // 2)
        verdict.equal(stored.nbytes, halved, f"bytes of {codes.shape} along axis {axis}", "bytes")
        restored = formats.unpack(stored, length, axis)
        same = restored.shape == codes.shape and np.array_equal(restored, codes)
        verdict.holds(same, f"{codes.shape} along axis {axis}", restored, codes, "other-codes")


@clause("formats.integer-casts")
def test_casts_to_integers(subject: Subject, verdict: Verdict) -> None:
    need(subject, Capability.INTEGER_CASTS)
    codes = (
        subject.framework.rule(NumberFormats)
        .encode(np.array(list(INTEGERS.values()), np.float32), "int8")
        .view(np.int8)
    )
    verdict.observe("int8", dict(zip(INTEGERS, codes.tolist(), strict=True)))
