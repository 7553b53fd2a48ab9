"""A test's result for a clause: checks with measured and expected values, bounds and their derivations."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from conformance.oracle.bound import Bound
from fixtures.arrays import Array
from results.record.arrays import fingerprint
from results.record.model import Fingerprint

_MAX_LENGTH = 200
_FRAME = re.compile(r'^\s*File "[^"]*", line \d+.*(?:\n(?!\s*File ").*)?$', re.MULTILINE)
_FOLDER = re.compile(r"(?<![\w/.])(?:/[\w.+~-]+)+/(?=[\w.+-])")


class Violation(AssertionError):
    """The clause does not hold. `signature` is a stable slug that an expectation can name."""

    def __init__(self, signature: str, message: str) -> None:
        super().__init__(message)
        self.signature = signature


class Misdeclared(Violation):
    """The framework does not behave as its adapter declares."""


class Abstention(Exception):
    """A control failed, so the clause is not judged."""


@dataclass(frozen=True)
class Check:
    """One comparison inside a test."""

    what: str
    passed: bool
    measured: str | float
    expected: str
    bound: float | None = None
    derivation: Mapping[str, Any] = field(default_factory=dict)


def clean_message(text: str) -> str:
    """Return a framework's message without quoted stack frames and without this machine's paths."""
    lines = _FOLDER.sub("", _FRAME.sub("", text)).splitlines()
    return "\n".join(line.rstrip() for line in lines if line.strip())


def short_text(value: object) -> str:
    """Return a short text for a value: arrays by shape and first entries, floats in full precision."""
    if isinstance(value, np.ndarray):
        floating = value.dtype.kind in "fV" or value.dtype.name == "bfloat16"
        flat = value.astype(np.float64).ravel() if floating else value.ravel()
        head = ", ".join(repr(x.item()) for x in flat[:6])
        text = f"{value.dtype.name}{list(value.shape)}[{head}{', …' if flat.size > 6 else ''}]"
    elif isinstance(value, float | np.floating):
        text = repr(float(value))
    elif isinstance(value, Mapping):
        text = "{" + ", ".join(f"{k}: {short_text(v)}" for k, v in value.items()) + "}"
    elif isinstance(value, list | tuple):
        text = "[" + ", ".join(short_text(v) for v in value) + "]"
    else:
        text = clean_message(str(value))
    return text if len(text) <= _MAX_LENGTH else text[: _MAX_LENGTH - 1] + "…"


def same_bits(a: object, b: object) -> bool:
    """Return whether two values have equal types and bits; any NaN equals any other, 0 and -0 in arrays differ."""
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return a.keys() == b.keys() and all(same_bits(a[k], b[k]) for k in a)
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        first, second = np.asarray(a), np.asarray(b)
        return first.dtype == second.dtype and first.shape == second.shape and _same_bytes(first, second)
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(same_bits(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, float | np.floating) and isinstance(b, float | np.floating):
        return float(a) == float(b) or (np.isnan(a) and np.isnan(b))
    return bool(a == b)


def _same_bytes(first: Array, second: Array) -> bool:
    """Compare arrays of one dtype and shape. Sign and payload of a NaN are ignored: they differ by processor."""
    if first.tobytes() == second.tobytes():
        return True
    if first.dtype.kind != "f" and "float" not in first.dtype.name:
        return False
    blank = np.isnan(first) & np.isnan(second)
    empty = np.zeros((), first.dtype)
    return np.where(blank, empty, first).tobytes() == np.where(blank, empty, second).tobytes()


def difference(measured: Mapping[str, Array], expected: Mapping[str, Array]) -> str:
    """Return the first three entries in which two mappings of arrays differ, as `NAME got X, want Y`; "" for none."""
    parts: list[str] = []
    for name in sorted(measured.keys() | expected.keys()):
        if name not in measured or name not in expected:
            parts.append(f"{name} is {'missing' if name not in measured else 'unexpected'}")
        elif not same_bits(measured[name], expected[name]):
            parts.append(f"{name} {got_want(measured[name], expected[name])}")
    return "; ".join(parts[:3]) + (f"; and {len(parts) - 3} more" if len(parts) > 3 else "")


def got_want(measured: Array, expected: Array) -> str:
    """Return where two unequal arrays differ most, as `got X, want Y at [i, j] (N of M elements differ)`."""
    if (measured.dtype != expected.dtype and measured.dtype.kind not in "US") or measured.shape != expected.shape:
        return f"got {measured.dtype.name}{list(measured.shape)}, want {expected.dtype.name}{list(expected.shape)}"
    if measured.dtype.kind in "US":
        return f"got {short_text(measured.tolist())}, want {short_text(expected.tolist())}"
    differing = measured != expected
    if measured.dtype.kind not in "biu":
        x, y = (np.asarray(array, np.float64) for array in (measured, expected))
        differing = ((x != y) & ~(np.isnan(x) & np.isnan(y))) | (np.signbit(x) != np.signbit(y))
    return element(measured, expected, differing)


def element(measured: Array, expected: Array, differing: Array, allowed: float = 0.0) -> str:
    """Return the differing element with the largest error, as `got X, want Y at [i, j] (N of M elements differ)`.

    Args:
        measured, expected: arrays of one shape.
        differing: boolean mask of that shape; true for wrong elements.
        allowed: largest correct distance of an element from the expected one.
    """
    with np.errstate(invalid="ignore"):
        gap = np.abs(np.asarray(measured, np.float64) - np.asarray(expected, np.float64))
    gap = np.where(differing, np.where(np.isnan(gap), np.inf, gap), -1.0)
    position = tuple(int(index) for index in np.unravel_index(int(np.argmax(gap)), gap.shape))
    values = f"got {measured[position]!s}, want {expected[position]!s}" + (f" ± {allowed:.3g}" if allowed else "")
    count = f"({int(differing.sum())} of {differing.size} elements differ)"
    return f"{values} at {list(position)} {count}" if position else values


def _first_difference(measured: object, expected: object) -> str:
    """Return where two unequal arrays or mappings of arrays differ; "" for other values, which messages show whole."""
    if isinstance(measured, np.ndarray) and isinstance(expected, np.ndarray):
        return got_want(measured, expected)
    if not (isinstance(measured, Mapping) and isinstance(expected, Mapping)):
        return ""
    arrays = all(isinstance(value, np.ndarray) for value in (*measured.values(), *expected.values()))
    return difference(measured, expected) if arrays else ""


def _describe_failure(check: Check) -> str:
    if check.bound is not None:
        derivation = f" (from {short_text(dict(check.derivation))})" if check.derivation else ""
        return f"got {check.measured}, want at most {check.bound:.6g}{derivation}"
    if check.expected:
        return f"got {check.measured}, want {check.expected}"
    return f"does not hold, got {check.measured}" if check.measured else "does not hold"


@dataclass
class Verdict:
    """Collects the results of one test. The check methods raise `Violation` as soon as one does not hold."""

    checks: list[Check] = field(default_factory=list)
    observations: dict[str, Any] = field(default_factory=dict)
    measurements: dict[str, tuple[str, list[float], list[float]]] = field(default_factory=dict)
    traces: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    fingerprints: dict[str, list[Fingerprint]] = field(default_factory=dict)

    def _add(self, check: Check, signature: str, mismatch: str = "") -> None:
        __tracebackhide__ = True
        self.checks.append(check)
        if not check.passed:
            raise Violation(signature, f"{check.what}: {mismatch or _describe_failure(check)}")

    def equal(self, measured: object, expected: object, what: str, signature: str = "differs") -> None:
        """Check that two values are equal bit for bit: numbers, strings, arrays, or mappings and sequences of them."""
        __tracebackhide__ = True
        equal = same_bits(measured, expected)
        mismatch = "" if equal else _first_difference(measured, expected)
        self._add(Check(what, equal, short_text(measured), short_text(expected)), signature, mismatch)

    def same_state(
        self,
        measured: Mapping[str, Array],
        expected: Mapping[str, Array],
        what: str,
        signature: str = "state-differs",
        *,
        ignoring: Sequence[str] = (),
    ) -> None:
        """Check that two full states are equal bit for bit, except for entries that begin with one of `ignoring`."""
        __tracebackhide__ = True
        compared = {k: v for k, v in measured.items() if not k.startswith(tuple(ignoring))}
        wanted = {k: v for k, v in expected.items() if not k.startswith(tuple(ignoring))}
        mismatch = difference(compared, wanted)
        measured_text = mismatch or f"{len(compared)} equal entries"
        self._add(Check(what, not mismatch, measured_text, f"{len(wanted)} equal entries"), signature, mismatch)

    def same_gradients(
        self,
        measured: Mapping[str, Array],
        expected: Mapping[str, Array],
        what: str,
        signature: str = "gradient-differs",
    ) -> None:
        """Check that the same parameters have gradients, and that all gradients are equal bit for bit."""
        __tracebackhide__ = True
        self.equal(sorted(measured), sorted(expected), "parameters that have a gradient", "gradient-missing")
        self.same_state(measured, expected, what, signature)

    def holds(
        self, condition: bool, what: str, measured: object = "", expected: object = "", signature: str = "does-not-hold"
    ) -> None:
        """Check a condition, and record the values that it depends on."""
        __tracebackhide__ = True
        self._add(Check(what, bool(condition), short_text(measured), short_text(expected)), signature)

    def finite(self, values: Mapping[str, Array], what: str, signature: str = "not-finite") -> None:
        """Check that every value of every array is finite."""
        __tracebackhide__ = True
        bad = [name for name, value in values.items() if not np.isfinite(value.astype(np.float64)).all()]
        measured = f"inf or NaN in {', '.join(bad)}" if bad else "finite"
        self._add(Check(what, not bad, measured, "finite values"), signature)

    def within(self, measured: float, bound: Bound, what: str, signature: str = "beyond-bound") -> None:
        """Check that a deviation is at most the bound; NaN exceeds every bound."""
        __tracebackhide__ = True
        passed = bool(measured <= bound.value)
        check = Check(what, passed, float(measured), "within the bound", bound.value, bound.derivation)
        self._add(check, signature)

    def differs(
        self, before: Mapping[str, Array], after: Mapping[str, Array], what: str, signature: str = "unchanged"
    ) -> None:
        """Check that at least one value changed, so that the test is not vacuous."""
        __tracebackhide__ = True
        change = difference(after, before)
        self._add(Check(what, bool(change), change or "no change", "a change"), signature)

    def observe(self, key: str, value: object) -> None:
        """Record a legitimate difference, to be compared across frameworks and versions."""
        self.observations[key] = value

    def measure(self, name: str, unit: str, samples: Iterable[float], control: Iterable[float] = ()) -> None:
        """Record raw samples of a cost, in `unit`.

        Args:
            control: for a cost that varies, such as a time: samples of the same work without the measured technique,
                each taken next to its sample, in random order.
        """
        self.measurements[name] = (unit, [float(s) for s in samples], [float(s) for s in control])

    def trace(self, name: str, **series: Iterable[float]) -> None:
        """Record curves, such as loss and scale by update."""
        self.traces[name] = {key: [float(v) for v in values] for key, values in series.items()}

    def tensors(self, kind: str, arrays: Mapping[str, Array]) -> None:
        """Record fingerprints of a run's arrays, by name in the order of the computation.

        Args:
            kind: "first" for the gradients of the first window, "layers" for every tensor of a pass.
        """
        self.fingerprints[kind] = [fingerprint(name, array) for name, array in arrays.items()]

    def abstain(self, reason: str) -> None:
        """End the test without a judgement, because a control failed.

        Raises:
            Abstention: always.
        """
        raise Abstention(reason)
