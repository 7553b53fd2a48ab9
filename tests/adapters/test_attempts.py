"""Attempts: whether one took effect, what an adapter declares with and without one, and those that adapters share."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping

import pytest

from conformance.checks.evidence import Misdeclared, Verdict
from conformance.checks.outcome import conclude
from conformance.checks.subject import Subject
from conformance.declarations import comparison
from fixtures.model import Model
from fixtures.recipe import Offload, Recipe
from frameworks.adapter_file import Absence, AdapterFile
from frameworks.base import (
    KERNEL,
    delayed_attempts,
    float8_attempts,
    offload_attempts,
    optimizer_attempts,
    quantizer_attempts,
    shipped_attempts,
    technique_attempts,
)
from frameworks.base.introspection import observed
from frameworks.contract import (
    SUPPORTED,
    Attempt,
    Capability,
    DelayedProducts,
    PostTraining,
    Quantizers,
    Trainer,
    Unsupported,
)
from frameworks.reference import ReferenceFramework
from results.record.outcomes import Outcome

NEWER = (
    Capability.ADAFACTOR,
    Capability.ABSOLUTE_RATE,
    Capability.SMALLEST_FACTORED,
    Capability.MUON,
    Capability.WIDTH_RATE,
    Capability.UNADJUSTED_RATE,
    Capability.GROUP_RATES,
)
"""Options of optimizers that some framework, or version of it, lacks."""


def warning(category: type[Warning]) -> bool:
    """An attempt that warns and says that it worked."""
    warnings.warn("text", category, stacklevel=1)
    return True


@pytest.mark.parametrize("category", [DeprecationWarning, PendingDeprecationWarning, FutureWarning])
def test_a_deprecated_call_takes_effect(category: type[Warning]) -> None:
    assert observed(lambda: warning(category))


@pytest.mark.parametrize("category", [UserWarning, RuntimeWarning])
def test_a_call_that_warns_of_anything_else_does_not(category: type[Warning]) -> None:
    assert not observed(lambda: warning(category))


def test_neither_does_one_that_returns_false_or_raises() -> None:
    assert not observed(lambda: False)
    assert not observed(lambda: bool(1 // 0))


class Clipping(ReferenceFramework):
    """It has an attempt of clipping, with a given result."""

    acts = True

    def attempts(self) -> Mapping[Capability, Attempt]:
        return {Capability.CLIP: lambda: self.acts}


class NeverClipping(Clipping):
    """Its call does nothing and says nothing."""

    acts = False


class Refusing(ReferenceFramework):
    """It names schedules as supported and makes no run with one."""

    def trainer(self, model: Model, recipe: Recipe, weights: object = None) -> Trainer:
        if recipe.schedule is not None:
            raise Unsupported(Capability.SCHEDULE, "not today")
        return super().trainer(model, recipe)


class WithoutOperations(ReferenceFramework):
    """It names operations as supported and has no examples of any."""

    def parts(self):  # type: ignore[no-untyped-def]
        raise Unsupported(Capability.SHIPPED_OPERATIONS, "none here")


def compared(framework: ReferenceFramework, capability: Capability) -> None:
    comparison.compare(Subject(framework), Verdict(), capability)


@pytest.mark.parametrize("capability", [c for c in Capability if ReferenceFramework().declares(c) == SUPPORTED])
def test_a_capability_in_the_plain_set_is_declared_and_its_case_passes(capability: Capability) -> None:
    framework = ReferenceFramework()
    assert framework.probe(capability) is None
    compared(framework, capability)


@pytest.mark.parametrize(
    ("kind", "capability"), [(Refusing, Capability.SCHEDULE), (WithoutOperations, Capability.SHIPPED_OPERATIONS)]
)
def test_one_in_the_set_that_is_refused_is_misdeclared(kind: type[ReferenceFramework], capability: Capability) -> None:
    framework = kind()
    with pytest.raises(Unsupported) as refusal:
        compared(framework, capability)
    assert conclude(framework, refusal.value, ()).outcome is Outcome.MISDECLARED


def test_one_in_the_set_whose_attempt_does_nothing_is_misdeclared() -> None:
    compared(Clipping(), Capability.CLIP)
    with pytest.raises(Misdeclared, match="a direct call had no effect"):
        compared(NeverClipping(), Capability.CLIP)


def test_one_in_the_set_that_the_adapters_file_calls_absent_is_misdeclared(monkeypatch: pytest.MonkeyPatch) -> None:
    framework = ReferenceFramework()
    absence = Absence((Capability.CLIP,), "it has none", ("numpy",), ("no_such",))
    monkeypatch.setattr(framework, "_file", AdapterFile(absent=(absence,)))
    assert framework.declares(Capability.CLIP) == SUPPORTED
    with pytest.raises(Misdeclared):
        compared(framework, Capability.CLIP)


def of_techniques(own: ReferenceFramework) -> dict[Capability, Attempt]:
    """The shared attempts of formats and quantizers."""
    return (
        delayed_attempts(lambda: own.rule(DelayedProducts)(KERNEL, history=4))
        | quantizer_attempts(own.rule(Quantizers))
        | technique_attempts(own.rule(PostTraining))
        | float8_attempts(own.run)
    )


def of_runs(own: ReferenceFramework) -> dict[Capability, Attempt]:
    """The other shared ones, but for those of ranks."""
    away = [Offload(("activations", "parameters", "optimizer"), to) for to in ("host", "disk")]
    return optimizer_attempts(own.run, *NEWER) | shipped_attempts(own.parts()) | offload_attempts(own.run, away)


@pytest.mark.parametrize("made", [of_techniques, of_runs])
def test_the_shared_attempts_see_what_the_reference_does(
    made: Callable[[ReferenceFramework], dict[Capability, Attempt]],
) -> None:
    attempts = made(ReferenceFramework())
    assert len(attempts) > 12
    assert [capability for capability, attempt in attempts.items() if not observed(attempt)] == []


def test_an_option_without_a_shared_attempt_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"optimizer\.nesterov: no shared attempt"):
        optimizer_attempts(ReferenceFramework().run, Capability.MUON, Capability.NESTEROV)
