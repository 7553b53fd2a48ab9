"""Inputs with outliers, and the bound of an int8 layer's distance from the float32 layer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np

from conformance.techniques.formats import expected_codes
from conformance.techniques.post_training.expected_models import cast, outlying, random_inputs, ranged, step_of
from fixtures.arrays import Array
from frameworks.contract import LinearRule

USUAL = 6.0
"""The threshold of a rule that has none: Dettmers et al. 2022, arXiv:2208.07339, section 3.2."""
_COLUMN = 20


def threshold(rule: LinearRule) -> float:
    """The outlier threshold."""
    return rule.outliers if np.isfinite(rule.outliers) else USUAL


def below(rule: LinearRule) -> float:
    """The largest value of the operands' format below the outlier threshold."""
    return float(np.nextafter(np.dtype(rule.operands).type(threshold(rule)), np.dtype(rule.operands).type(0.0)))


def _plain(rows: int, width: int, rule: LinearRule, seed: int) -> Array:
    return random_inputs(rows, width, rule.inputs, None, seed, step_of(rule))


def _with_column(rows: int, width: int, rule: LinearRule, seed: int, outlier: float) -> Array:
    """One row has the outlier; what others have in its column is none, and three times as large as all else of theirs.

    A row's codes are certain whether or not its range takes that in: a third of what is 0.4 of a code from an integer
    is no half.
    """
    quarter = threshold(rule) / 4
    rest = random_inputs(rows, width - 1, rule.inputs, None, seed, step_of(rule, quarter))
    column = 3 * quarter * 2.0 ** -(np.arange(rows) % 4) * (-1.0) ** np.arange(rows)
    column[rows // 2] = outlier
    return np.insert(rest, min(_COLUMN, width - 1), column.astype(np.float32), axis=1)


def _one(rows: int, width: int, rule: LinearRule, seed: int) -> Array:
    return _with_column(rows, width, rule, seed, 20.0 * threshold(rule))


def _negative(rows: int, width: int, rule: LinearRule, seed: int) -> Array:
    return _with_column(rows, width, rule, seed, -20.0 * threshold(rule))


def _at(rows: int, width: int, rule: LinearRule, seed: int) -> Array:
    return _with_column(rows, width, rule, seed, threshold(rule))


def _below(rows: int, width: int, rule: LinearRule, seed: int) -> Array:
    """The largest value below the threshold, with both signs."""
    values = random_inputs(rows, width, rule.inputs, None, seed, step_of(rule, below(rule)))
    values[rows // 2 :] *= -1.0
    return values


def _all(rows: int, width: int, rule: LinearRule, seed: int) -> Array:
    """Each column has an outlier in a different row."""
    rng = np.random.default_rng([seed, 8])
    values = _plain(rows, width, rule, seed)
    places = np.arange(width)
    signs = np.where(places % 2, -1.0, 1.0)
    values[places % rows, places] = signs * rng.uniform(1.0, 3.0, width) * threshold(rule)
    return values


CASES: Mapping[str, Callable[[int, int, LinearRule, int], Array]] = MappingProxyType(
    {"none": _plain, "below": _below, "at": _at, "one": _one, "negative": _negative, "all": _all}
)
"""Which columns of a float32 matrix (rows, width) reach the threshold; all that has codes has certain ones."""


def from_float(inputs: Array, weight: Array, bias: Array, rule: LinearRule) -> tuple[Array, Array]:
    """The float32 layer's output, and the bound of an int8 layer's distance from it, both float64.

    A weight is off by half a code and its cast, |w|·2⁻¹¹ in float16; so are inputs that have codes. Of inputs that have
    none that is ‖x‖₁·amax·(1/254 + 2⁻¹¹) for each output. What float32 rounds comes on top.
    """
    x, w, added = (each.astype(np.float64) for each in (inputs, weight, bias))
    narrow, off_x = cast(weight, rule), np.zeros(inputs.shape)
    off_w = expected_codes.scale_of(narrow, rule.weight) / 2 + np.abs(narrow - w)
    if rule.inputs is not None:
        code = expected_codes.scale_of(ranged(inputs, rule), rule.inputs)
        off_x = np.where(outlying(inputs, rule), 0.0, code / 2 + np.abs(cast(inputs, rule) - x))
    rounding = (len(w) + 8) * expected_codes.U * ((np.abs(x) + off_x) @ (np.abs(w) + off_w) + np.abs(added))
    return x @ w + added, np.abs(x) @ off_w + off_x @ (np.abs(w) + off_w) + rounding
