"""Casts in blocks, dynamic scales, stochastic rounding: stored scales, edge cases, extents, and chance."""

import numpy as np
import pytest

from conformance.checks.api import Bound, Subject, Verdict, clause, need_rule
from conformance.techniques.formats import example, find_differences, values_up_to
from conformance.techniques.low_precision import (
    BLOCK_CASTS,
    DYNAMIC_RECIPES,
    STEPS,
    cast_blocks,
    find_smallest,
    list_amaxes,
    make_operands,
    multiply_dynamic,
    need_cast,
    need_recipe,
)
from frameworks.contract import Capability, StochasticRounding

SPECIAL = {"zeros": 0, "zero-tensor": 0, "far": 3.4e38, "tiny": 2.0**-120, "maximum-480": 480, "maximum-600": 600}
ROW, COLUMN = 1, 3
"""The place of a special value in the first block of its row."""
DRAWS = 65_536

each_cast = pytest.mark.parametrize("name", BLOCK_CASTS)
each_recipe = pytest.mark.parametrize("name", DYNAMIC_RECIPES)


@clause("formats.block-scale")
@each_cast
def test_block_scale_follows_rule(subject: Subject, verdict: Verdict, name: str) -> None:
    casts, rule = need_cast(subject, name)
    amaxes = list_amaxes(STEPS[rule.element][-1])
    values = values_up_to((len(amaxes), rule.block), 0.5, subject.seed) * amaxes[:, None]
    values[np.arange(len(amaxes)), np.arange(len(amaxes)) % rule.block] = amaxes * np.resize([1, -1], len(amaxes))
    measured, expected = casts.cast(name, values)[0][:, 0], cast_blocks(values, rule)[0][:, 0]
    wrong = find_differences(measured, expected)
    mismatch = example(wrong, amaxes, measured, expected)
    verdict.holds(not wrong.any(), "stored scale by the block's largest magnitude", mismatch, "all", "scale")


@clause("formats.block-edge-cases")
@each_cast
@pytest.mark.parametrize("case", SPECIAL)
def test_finite_edge_case_is_cast_by_rule(subject: Subject, verdict: Verdict, name: str, case: str) -> None:
    casts, rule = need_cast(subject, name)
    values = values_up_to((4, 2 * rule.block), 2.0, subject.seed)
    values[ROW, : rule.block] = 0.0
    values[ROW, COLUMN] = SPECIAL[case]
    if case == "zero-tensor":
        values[:] = 0.0
    measured, expected = casts.cast(name, values)[1], cast_blocks(values, rule)[1]
    wrong = find_differences(measured, expected)
    verdict.holds(not wrong.any(), "cast values", example(wrong, values, measured, expected), "all", "values")


@clause("formats.block-edge-cases")
@each_cast
@pytest.mark.parametrize("special", [np.nan, np.inf, -np.inf], ids=["nan", "infinity", "minus-infinity"])
def test_non_finite_value_stays_so(subject: Subject, verdict: Verdict, name: str, special: float) -> None:
    casts, rule = need_cast(subject, name)
    values = values_up_to((4, 2 * rule.block), 2.0, subject.seed)
    ordinary = casts.cast(name, values)[1]
    values[ROW, COLUMN] = special
    measured = casts.cast(name, values)[1]
    result = float(measured[ROW, COLUMN])
    if not np.isnan(special):
        verdict.holds(not np.isfinite(result), "an infinity is cast", result, "no finite number", "finite")
    becomes = special if rule.infinity_becomes == "infinity" else np.nan
    verdict.equal(result, becomes, f"{special} is cast as declared", "other-special")
    if rule.levels == 1:
        others = np.ones(values.shape, bool)
        others[ROW, : rule.block] = False
        verdict.equal(measured[others], ordinary[others], "values of other blocks", "other-blocks")


@clause("formats.stochastic-is-unbiased")
@pytest.mark.parametrize("exponent", [0, -100, 100])
@pytest.mark.parametrize("share", [0.25, 0.75, 2.0**-8, -0.25])
def test_stochastic_rounding_is_unbiased(subject: Subject, verdict: Verdict, share: float, exponent: int) -> None:
    rounding = need_rule(subject, Capability.STOCHASTIC_ROUNDING, StochasticRounding)
    towards_zero = np.copysign(np.float32(2.0**exponent), share)
    away = towards_zero * np.float32(1 + 2.0**-7)
    value = towards_zero * np.float32(1 + abs(share) * 2.0**-7)
    results = rounding(np.full(DRAWS, value, np.float32))
    others = results[(results != towards_zero) & (results != away)]
    verdict.equal(others.tolist(), [], f"results of {value} that are no neighbour", "no-neighbour")
    probability = abs(share)
    bound = 6 * float(np.sqrt(DRAWS * probability * (1 - probability)))
    derivation = {"method": "six standard deviations of a binomial", "n": DRAWS, "p": probability}
    excess = abs(int((results == away).sum()) - DRAWS * probability)
    verdict.within(excess, Bound(bound, derivation), f"distance from {DRAWS} · {probability} draws", "biased")


@clause("formats.stochastic-is-unbiased")
def test_stochastic_rounding_keeps_representable_values(subject: Subject, verdict: Verdict) -> None:
    rounding = need_rule(subject, Capability.STOCHASTIC_ROUNDING, StochasticRounding)
    every = (np.arange(1 << 16, dtype=np.uint32) << 16).view(np.float32)
    every = every[~np.isnan(every)]
    verdict.equal(rounding(every), every, "numbers of bfloat16, infinities included", "moved")


@clause("formats.stochastic-is-unbiased")
@pytest.mark.parametrize("code", [0x7FC00000, 0x7FFFFFFF, 0xFFFFFFFF], ids=hex)
def test_stochastic_rounding_keeps_nan(subject: Subject, verdict: Verdict, code: int) -> None:
    rounding = need_rule(subject, Capability.STOCHASTIC_ROUNDING, StochasticRounding)
    results = rounding(np.full(1000, code, np.uint32).view(np.float32))
    verdict.equal(results[~np.isnan(results)].tolist(), [], "numbers among 1000 draws of NaN", "number")


@clause("formats.dynamic-scale")
@each_recipe
@pytest.mark.parametrize("operands", ["one-term", "exact-sums"])
def test_dynamic_scale_follows_rule(subject: Subject, verdict: Verdict, name: str, operands: str) -> None:
    products, rule = need_recipe(subject, name)
    arrays = make_operands(operands, subject.seed)
    measured, expected = products.multiply(name, *arrays), multiply_dynamic(*arrays, rule)
    for part, wanted in vars(expected).items():
        verdict.holds(bool(np.any(wanted)), f"{part} has values", signature="zeros")
        verdict.equal(getattr(measured, part) + 0.0, wanted + 0.0, part, part.replace("_", "-"))


@clause("formats.declared-extent")
@each_recipe
@pytest.mark.parametrize("others", ["three-times", "absent"])
def test_row_depends_on_others_as_declared(subject: Subject, verdict: Verdict, name: str, others: str) -> None:
    products, rule = need_recipe(subject, name)
    inputs, kernel, gradient = make_operands("exact-sums", subject.seed)
    small = np.where(np.arange(len(inputs)) == 0, 2.0**-14, 1).astype(np.float32)[:, None]
    whole = products.multiply(name, small * inputs, kernel, small * gradient)
    factor = np.where(small < 1, small, 3)
    if others == "absent":
        inputs, gradient, factor = inputs[:1], gradient[:1], factor[:1]
    inputs, gradient = factor * inputs, factor * gradient
    changed = products.multiply(name, inputs, kernel, gradient)
    for part in ("output", "input_gradient"):
        same = np.array_equal(getattr(whole, part)[0], getattr(changed, part)[0])
        want = "the same" if rule.scale_extent == "row" else "other bits"
        verdict.equal("the same" if same else "other bits", want, f"{part} of row 0, other rows {others}", "extent")


@clause("formats.small-gradients")
@pytest.mark.parametrize("name", [*BLOCK_CASTS, *DYNAMIC_RECIPES])
def test_smallest_gradient(subject: Subject, verdict: Verdict, name: str) -> None:
    eye = np.eye(32, dtype=np.float32)
    if name in BLOCK_CASTS:
        casts, _ = need_cast(subject, name)
        smallest = find_smallest(lambda scale: casts.cast(name, scale * eye[:1])[1])
    else:
        products, _ = need_recipe(subject, name)
        smallest = find_smallest(lambda scale: products.multiply(name, eye, eye, scale * eye).input_gradient)
    verdict.observe("smallest power of two", smallest)
