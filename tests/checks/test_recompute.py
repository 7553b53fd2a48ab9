"""Recomputation under a framework that may round otherwise: rounding is let through, and nothing else."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from conformance.checks.api import Subject, Verdict
from conformance.checks.evidence import Violation
from conformance.suites.recompute.test_recompute import probe_arrays
from conformance.techniques import recompute
from conformance.techniques.recompute import function_bounds
from fixtures.arrays import Array
from frameworks.contract import Conventions
from frameworks.reference import ReferenceFramework


class Compiled(ReferenceFramework):
    """Says that a compiler may fuse operations."""

    def conventions(self) -> Conventions:
        return replace(super().conventions(), compiled=True)


def compared(framework: ReferenceFramework, name: str, change: Callable[[Array], Array]) -> Verdict:
    """A comparison of one of the probe's values with a changed copy of itself."""
    x, w = probe_arrays()
    result = framework.recompute("plain", x, w)
    value = np.asarray(getattr(result, name), np.float32)
    verdict = Verdict()
    recompute.same_values(Subject(framework), verdict, {name: change(value)}, {name: value}, (x, w), "differs")
    return verdict


def last_place(value: Array) -> Array:
    """Every number moved to its neighbour."""
    return np.nextafter(value, np.float32(np.inf))


@pytest.mark.parametrize("name", ["value", "x", "w"])
def test_last_places_are_rounding_where_a_compiler_may_fuse(name: str) -> None:
    *_, check = compared(Compiled("cpu"), name, last_place).checks
    assert check.bound is not None
    assert check.derivation["runs"] == 2
    with pytest.raises(Violation):
        compared(ReferenceFramework("cpu"), name, last_place)


FAULTS: dict[str, Callable[[Array], Array]] = {
    "missing": np.zeros_like,
    "not a number": lambda value: value * np.float32(np.nan),
    "bfloat16": lambda value: value * np.float32(1 + 2.0**-8),
    "half in float16": lambda value: value.astype(np.float16).astype(np.float32),
    "transposed": lambda value: value[None],
    "float64": lambda value: value.astype(np.float64),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("name", ["value", "x", "w"])
def test_nothing_else_is(name: str, fault: str) -> None:
    with pytest.raises(Violation):
        compared(Compiled("cpu"), name, FAULTS[fault])


@pytest.mark.parametrize("seed", range(5))
def test_gradients_of_other_weights_are_thousands_of_bounds_away(seed: int) -> None:
    x, w = probe_arrays()
    framework = Compiled("cpu")
    bound = 2.0 * function_bounds(x, w, seed)["w"].value
    assert 0.0 < bound < 1e-5
    gradients = [framework.recompute("plain", x, factor * w).w for factor in (np.float32(1), np.float32(3))]
    ours, others = (np.asarray(gradient, np.float64) for gradient in gradients)
    assert np.linalg.norm(others - ours) > 1000 * bound * np.linalg.norm(ours)
