"""The movement of a test's numbers between two records: none, by rounding, or further.

A test's numbers are its losses by update, the fingerprints of its arrays, and its errors with a bound. Only numbers
in both records are compared. Costs are compared elsewhere (see `results.compare.verdicts`).
"""

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice, zip_longest
from typing import Self

from results.compare.changes import Change, ChangeKind
from results.record.model import Fingerprint, Json, same
from results.record.reading import CheckResult, Curves, Record, TestVerdict

TRIPLED = 3.0
"""Factor by which an error must grow to count as moved: errors of one ensemble's members differ by less."""

TELLING_SHARE = 0.5
"""Share of its bound that an error must exceed to count as moved. A bound is four times the largest deviation in the
ensemble, so half of it is twice the deviation of any randomly rounded run."""

ORACLE_DIGITS = 1e-6
"""Relative difference up to which two float64 references are equal: linear algebra libraries change last digits."""

ARRAY_SHARE = 0.02
"""Relative change of an array's norm or sampled values beyond which the array counts as moved."""

ARRAY_ROUNDING = 2.0**-8
"""Smallest change that counts, as a share of the largest norm of its kind: the unit roundoff of bfloat16. A gradient
that is zero except for rounding can change by any factor. Of one test in records of PyTorch 2.6 and 2.13, or on a CPU
and a GPU, no array moved by more than both shares."""

JUDGED_CURVES = frozenset({"loss", "exact", "spread", "bound"})
"""Curves that are compared by their bounds, or by the reference; all others, such as loss scales, are compared exactly.
"""

ANOTHER_VALUE = "another expected value"

CHAOTIC = 0.1
"""Share of the first loss beyond which a spread judges nothing, if the record does not name the judged updates."""

KINDS = ("layers", "first")
"""Kinds of fingerprints of a test, the most informative first: every layer's arrays, or only the first gradients."""

_NUMBER = re.compile(r"\d+(?:\.\d+)?(?:e[-+]?\d+)?")


class Movement(StrEnum):
    """The movement of a test's numbers between two records, the smallest first.

    IDENTICAL: losses, arrays and errors are equal bit for bit. ROUNDING: they differ, but neither drift nor fail.
    DRIFT: an error at least tripled and passes `TELLING_SHARE` of its bound, a loss moved by more than its bound, an
    array by more than rounding explains, or a loss scale at all.
    FAILING: the verdict fails, and passed or failed differently before.
    """

    IDENTICAL = "identical"
    ROUNDING = "rounding"
    DRIFT = "drift"
    FAILING = "failing"


@dataclass(frozen=True)
class MovedNumbers:
    """The movement of one test's numbers between two records.

    Attributes:
        detail: the largest difference, in one sentence, or "".
        tensor: the first array that differs, in the order of the computation; "" if none does or none is recorded.
        old, new: both values of the number that drifted furthest, else "".
    """

    test: str
    clause: str
    movement: Movement
    detail: str = ""
    tensor: str = ""
    old: str = ""
    new: str = ""
    repro: str = ""

    @property
    def where(self) -> str:
        """The first array that differs, as a sentence, or ""."""
        return f"first tensor that differs: {self.tensor}" if self.tensor else ""

    def change(self) -> Change:
        """A drift as one of the changes of a comparison."""
        detail = "; ".join(filter(None, (self.detail, self.where)))
        return Change(ChangeKind.DRIFT, self.clause, self.test, self.old, self.new, detail, self.repro)


@dataclass(frozen=True)
class _Drift:
    """A number that moved, and its movement in multiples of the limit that rounding explains."""

    excess: float
    old: str
    new: str
    detail: str


@dataclass(frozen=True)
class Courses:
    """The curves of a record's runs by case, and their fingerprints by kind and case."""

    curves: Mapping[str, Curves]
    arrays: Mapping[tuple[str, str], Sequence[Fingerprint]]

    @classmethod
    def of(cls, record: Record) -> Self:
        """Return the curves and fingerprints of a record."""
        curves: dict[str, dict[str, tuple[float, ...]]] = {}
        for trace in record.traces:
            curves.setdefault(trace.case, {}).update(trace.curves)
        return cls(curves, {(tensor.key, tensor.case): tensor.arrays for tensor in record.tensors})


def compare_numbers(
    old: Courses, new: Courses, before: TestVerdict, after: TestVerdict, failing: bool
) -> MovedNumbers | None:
    """Return how far the numbers of one test moved; None if the records do not share any.

    Args:
        before, after: the test's verdicts, by the same code.
        failing: whether the newer verdict fails, and the older one passed or failed differently.
    """
    from results.record.arrays import first_difference  # takes NumPy

    case = after.case
    errors = tuple(_errors(before, after))
    traces = old.curves.get(case, {}), new.curves.get(case, {})
    curves = all("loss" in trace for trace in traces)
    scales = sorted(traces[0].keys() & traces[1].keys() - JUDGED_CURVES)
    kinds = [kind for kind in KINDS if (kind, case) in old.arrays and (kind, case) in new.arrays]
    if not (errors or curves or scales or kinds):
        return None
    named = after.test, after.clause
    arrays = [(old.arrays[kind, case], new.arrays[kind, case]) for kind in kinds]
    tensor = next(filter(None, (first_difference(*pair) for pair in arrays)), "")
    texts = tuple(_differences(errors, traces if curves else None, arrays))
    if failing:
        return MovedNumbers(*named, Movement.FAILING, "; ".join(texts), tensor, repro=after.repro)
    drifts = [
        *_drifted_errors(errors),
        *(islice(_drifted_losses(*traces, before, after), 1) if curves else ()),
        *(_Drift(math.inf, "", "", f"curve {name!r}") for name in scales if not same(*(one[name] for one in traces))),
        *(drift for pair in arrays for drift in _drifted_arrays(*pair)),
    ]
    if drifts:
        worst = max(drifts, key=lambda drift: drift.excess)
        return MovedNumbers(*named, Movement.DRIFT, worst.detail, tensor, worst.old, worst.new, after.repro)
    return MovedNumbers(*named, Movement.ROUNDING if texts else Movement.IDENTICAL, "; ".join(texts), tensor)


def _differences(
    errors: Sequence[tuple[CheckResult, float, float]],
    traces: tuple[Curves, Curves] | None,
    arrays: Sequence[tuple[Sequence[Fingerprint], Sequence[Fingerprint]]],
) -> Iterator[str]:
    from results.record.arrays import differs  # takes NumPy

    if traces is not None:
        pairs = enumerate(zip_longest(traces[0]["loss"], traces[1]["loss"]))
        first = next((update for update, (a, b) in pairs if not same(a, b)), None)
        if first is not None:
            yield f"losses differ from update {first} on"
    if any(differs(*pair) for pair in arrays):
        yield "arrays differ"
    count = sum(not (same(a, b) or math.isclose(a, b, rel_tol=ORACLE_DIGITS)) for _, a, b in errors)
    if count:
        yield f"{count} of {len(errors)} errors differ"


def _errors(before: TestVerdict, after: TestVerdict) -> Iterator[tuple[CheckResult, float, float]]:
    """Yield for each check of an error against a bound in both verdicts the newer check and both errors."""
    former = index_checks(check for check in before.checks if as_float(check.bound) is not None)
    for key, check in index_checks(check for check in after.checks if as_float(check.bound) is not None).items():
        if key in former:
            a, b = as_float(former[key].measured), as_float(check.measured)
            if a is not None and b is not None:
                yield check, a, b


def _has_tripled(old: float, new: float, bound: float) -> bool:
    return not same(old, new) and new >= TRIPLED * old and new > TELLING_SHARE * bound


def _drifted_errors(errors: Sequence[tuple[CheckResult, float, float]]) -> Iterator[_Drift]:
    for check, old, new in errors:
        bound = as_float(check.bound)
        if bound is not None and _has_tripled(old, new, bound):
            share = new / bound if bound else math.inf
            detail = f"{check.what}: {_growth(old, new)}, {share:.4g} of its bound"
            yield _Drift(share, _error_text(old, bound), _error_text(new, bound), detail)


def _error_text(error: float, bound: float) -> str:
    return f"{error:.4g} of {bound:.4g}"


def _growth(old: float, new: float) -> str:
    return f"{new / old:.3g} times as large" if old else "0 before"


def _drifted_arrays(old: Sequence[Fingerprint], new: Sequence[Fingerprint]) -> Iterator[_Drift]:
    former, later = ({one.name: one for one in side} for side in (old, new))
    if (order := [name for name in former if name in later]) != [name for name in later if name in former]:
        yield _Drift(0.0, "", "", f"the order of {len(order)} arrays")
    largest: dict[str, float] = {}
    for one in (*old, *new):
        kind = one.name.partition("/")[0]
        largest[kind] = max(largest.get(kind, 0.0), one.norm if math.isfinite(one.norm) else 0.0)
    for name in order:
        before, after = former[name], later[name]
        if before == after:
            continue
        moved, what = _move(before, after)
        size, least = max(before.norm, after.norm), ARRAY_ROUNDING * largest[name.partition("/")[0]]
        limit = ORACLE_DIGITS * size if before.digest == after.digest else max(ARRAY_SHARE * size, least)
        if moved and not moved <= limit:
            yield _Drift(moved / least if least else math.inf, f"{before.norm:.6g}", f"{after.norm:.6g}", what)


def _move(old: Fingerprint, new: Fingerprint) -> tuple[float, str]:
    """Return the larger change of norm or sampled values, in units of the norm, and a description."""
    import numpy as np

    from results.record.arrays import values

    norm = 0.0 if same(old.norm, new.norm) else abs(new.norm - old.norm)
    with suppress(ValueError, TypeError), np.errstate(all="ignore"):
        if (old.format, old.shape, len(old.sample)) != (new.format, new.shape, len(new.sample)):
            return math.inf, f"the format, shape or number of sampled values of {new.name}"
        a, b = values(old), values(new)
        alike = (a == b) | (np.isnan(a) & np.isnan(b))
        a, b = (np.where(alike & ~np.isfinite(a), 0.0, side) for side in (a, b))
        size = np.maximum(np.linalg.norm(a), np.linalg.norm(b))
        share = 0.0 if alike.all() else float(np.linalg.norm(b - a) / size)
        moved = share * max(old.norm, new.norm) if share else 0.0
        if not (moved <= norm or math.isnan(norm)):
            return moved, f"sampled values of {new.name} moved by {share:.3g} of their norm"
    return norm, f"the norm of {new.name} is {_growth(old.norm, new.norm)}"


def _drifted_losses(old: Curves, new: Curves, before: TestVerdict, after: TestVerdict) -> Iterator[_Drift]:
    """Yield the updates whose loss moved by more than rounding explains."""
    losses = [*zip(old["loss"], new["loss"], strict=False)]
    is_another_oracle = another_oracle(old, new)
    for update, bound in enumerate(_bounds(old, new, before, after)[: len(losses)]):
        a, b = losses[update]
        if same(a, b) or not math.isfinite(bound):
            continue
        if is_another_oracle:
            errors = abs(a - _at(old["exact"], update)), abs(b - _at(new["exact"], update))
            if _has_tripled(*errors, bound):
                detail = f"the oracle itself differs, so errors are compared: {_growth(*errors)} at update {update}"
                excess = errors[1] / bound if bound else math.inf
                yield _Drift(excess, _error_text(errors[0], bound), _error_text(errors[1], bound), detail)
        elif not abs(b - a) <= bound:
            excess = abs(b - a) / bound if bound else math.inf
            detail = (
                f"the loss at update {update} is the first that moved by more than rounding explains: "
                f"{abs(b - a):.3g}, {excess:.3g} times that"
            )
            yield _Drift(math.inf if math.isnan(excess) else excess, f"{a:.9g}", f"{b:.9g}", detail)


def _at(series: Sequence[float], index: int) -> float:
    return series[index] if index < len(series) else math.nan


def another_oracle(old: Curves, new: Curves, digits: float = ORACLE_DIGITS) -> bool:
    """Return whether the reference changed: one of its losses differs by more than `digits`, relatively."""
    if not ("exact" in old and "exact" in new):
        return False
    pairs = zip(old["exact"], new["exact"], strict=False)
    return not all(same(a, b) or math.isclose(a, b, rel_tol=digits) for a, b in pairs)


def _bounds(old: Curves, new: Curves, before: TestVerdict, after: TestVerdict) -> tuple[float, ...]:
    """Return the bound of each update's loss; infinite for updates that are not judged."""
    for trace, verdict in ((new, after), (old, before)):
        if "bound" in trace:
            return trace["bound"]
        multiplier = next(filter(None, (as_float(c.derivation.get("multiplier")) for c in verdict.checks)), None)
        if multiplier is not None and "spread" in trace:
            limit = CHAOTIC * abs(next(iter(trace.get("exact", trace["loss"])), math.inf))
            return tuple(multiplier * spread if spread <= limit else math.inf for spread in trace["spread"])
    return ()


def describe_check(check: CheckResult) -> str:
    """Return the description of a check without its numbers."""
    return _NUMBER.sub("#", check.what)


def index_checks(checks: Iterable[CheckResult]) -> Mapping[tuple[str, int], CheckResult]:
    """Return checks by their words and their index among checks with the same words."""
    placed: dict[tuple[str, int], CheckResult] = {}
    places: Counter[str] = Counter()
    for check in checks:
        what = describe_check(check)
        placed[what, places[what]] = check
        places[what] += 1
    return placed


def as_float(value: Json) -> float | None:
    """Return a number as a float; None for any other value."""
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def counts(numbers: Sequence[MovedNumbers]) -> Mapping[Movement, int]:
    """Return the number of tests by movement, without movements that no test has."""
    counted = Counter(one.movement for one in numbers)
    return {movement: counted[movement] for movement in Movement if counted[movement]}
