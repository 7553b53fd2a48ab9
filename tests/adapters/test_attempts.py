"""Attempts: whether one took effect, what an adapter declares with and without one, and those that adapters share."""

import warnings
from collections.abc import Mapping

import pytest

from conformance.checks.evidence import Misdeclared, Verdict
from conformance.checks.subject import Subject
from conformance.declarations import requests
from fixtures.model import Model
from fixtures.recipe import Offload, Recipe
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
from frameworks.base.shipped import has_effect
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
from frameworks.registry import Absence, AdapterFile

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


def warn(category: type[Warning]) -> bool:
    """An attempt that warns and says that it worked."""
    warnings.warn("text", category, stacklevel=1)
    return True


def test_observed_of_an_attempt_is_false_where_it_warns_fails_or_raises() -> None:
    for category in (DeprecationWarning, PendingDeprecationWarning, FutureWarning):
        assert has_effect(lambda category=category: warn(category))
    for category in (UserWarning, RuntimeWarning):
        assert not has_effect(lambda category=category: warn(category))
    assert not has_effect(lambda: False)
    assert not has_effect(lambda: bool(1 // 0))


class Clipping(ReferenceFramework):
    """It has an attempt of clipping, whose result is given; where it is False, the call does nothing and says so."""

    acts = True

    def attempts(self) -> Mapping[Capability, Attempt]:
        return {Capability.CLIP: lambda: self.acts}


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


def compare_capability(framework: ReferenceFramework, capability: Capability) -> None:
    requests.compare(Subject(framework), Verdict(), capability)


@pytest.mark.parametrize(
    ("kind", "capability"), [(Refusing, Capability.SCHEDULE), (WithoutOperations, Capability.SHIPPED_OPERATIONS)]
)
def test_compare_of_a_refused_supported_capability_is_refused(
    kind: type[ReferenceFramework], capability: Capability
) -> None:
    with pytest.raises(Unsupported):
        compare_capability(kind(), capability)


def test_compare_of_a_supported_capability_whose_attempt_does_nothing_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    for framework in (ReferenceFramework(), Clipping()):
        compare_capability(framework, Capability.CLIP)
    with pytest.raises(Misdeclared, match="a direct call had no effect"):
        compare_capability(type("NeverClipping", (Clipping,), {"acts": False})(), Capability.CLIP)
    framework = ReferenceFramework()
    absence = Absence((Capability.CLIP,), "it has none", ("numpy",), ("no_such",))
    monkeypatch.setattr(framework, "_file", AdapterFile(absent=(absence,)))
    assert framework.declares(Capability.CLIP) == SUPPORTED
    with pytest.raises(Misdeclared):
        compare_capability(framework, Capability.CLIP)


def test_shared_attempts_of_the_reference_take_effect() -> None:
    own = ReferenceFramework()
    away = [Offload(("activations", "parameters", "optimizer"), to) for to in ("host", "disk")]
    attempts = (
        delayed_attempts(lambda: own.rule(DelayedProducts)(KERNEL, history=4))
        | quantizer_attempts(own.rule(Quantizers))
        | technique_attempts(own.rule(PostTraining))
        | float8_attempts(own.run)
        | optimizer_attempts(own.run, *NEWER)
        | shipped_attempts(own.parts())
        | offload_attempts(own.run, away)
    )
    assert len(attempts) > 24
    assert [capability for capability, attempt in attempts.items() if not has_effect(attempt)] == []
    with pytest.raises(ValueError, match=r"optimizer\.nesterov: no shared attempt"):
        optimizer_attempts(own.run, Capability.MUON, Capability.NESTEROV)
