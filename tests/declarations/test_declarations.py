"""Declarations: requests for a capability, attempts, and their comparison with what an adapter declares."""

import warnings

import pytest

from conformance.checks.evidence import Misdeclared, Verdict
from conformance.checks.subject import Subject
from conformance.declarations import compare, request
from fixtures.optimizers import OPTIMIZERS
from fixtures.recipe import Offload
from frameworks.base import (
    KERNEL,
    BaseFramework,
    BaseTrainer,
    delayed_attempts,
    float8_attempts,
    has_effect,
    offload_attempts,
    optimizer_attempts,
    quantizer_attempts,
    shipped_attempts,
    technique_attempts,
    with_ranks,
)
from frameworks.contract import (
    SUPPORTED,
    Capability,
    Declaration,
    DelayedProducts,
    PostTraining,
    Quantizers,
    Unsupported,
    needs,
)
from frameworks.reference import ReferenceFramework
from frameworks.reference.training.trainer import ReferenceTrainer
from frameworks.registry import Absence, AdapterFile

REFUSING_METHODS = {
    Capability.PLATEAU: "plateau",
    Capability.SCHEDULE_FREQUENCY: "count_schedule_steps",
    Capability.FUNCTION_USES: "function_used",
    Capability.RECOMPUTE_CASES: "recompute",
    Capability.STEP_HOOK: "gradient_in_hook",
    Capability.MANUAL_STEP: "clip_in_manual_step",
    Capability.LOADED_CHECKPOINT: "loaded_run",
    Capability.PLAIN_LOOP: "plain_trainer",
    Capability.TF32: "tf32",
    Capability.AUTOCAST_SCOPE: "autocast",
    Capability.AUTOCAST_LISTS: "autocast",
    Capability.RANKS_EMPTY: "rank_group",
    Capability.RANKS_COLLECTIVES: "rank_group",
    Capability.RANKS_LOST: "rank_group",
    Capability.RANKS_RESHAPE: "rank_group",
    Capability.FREEZE: "freeze",
    Capability.LIVE_STATE: "take",
    Capability.LOAD_ORDER: "restore_in",
    Capability.TRACE: "trace",
    Capability.CONVERT: "convert",
}
"""Methods of a framework, or of a run, whose inherited version refuses the capability."""


def reference_without(capability: Capability) -> ReferenceFramework:
    """The reference, which refuses what needs this capability."""

    class Refusing(ReferenceFramework):
        def declares(self, requested: Capability) -> Declaration:
            return Declaration(False, "not here") if requested is capability else super().declares(requested)

        def trainer(self, model, recipe, weights=None):  # type: ignore[no-untyped-def]
            if capability in needs(recipe):
                raise Unsupported(capability, "not here")
            return super().trainer(model, recipe, weights)

    return Refusing("cpu")


@pytest.mark.parametrize(("capability", "method"), REFUSING_METHODS.items(), ids=str)
def test_request_of_a_method_that_an_adapter_lacks_is_refused(capability: Capability, method: str) -> None:
    if hasattr(BaseFramework, method):
        parts = {method: getattr(BaseFramework, method)}
    else:
        run = type("LackingRun", (ReferenceTrainer,), {method: getattr(BaseTrainer, method)})
        parts = {"trainer_class": run}
    with pytest.raises(Unsupported):
        request(type("Lacking", (ReferenceFramework,), parts)("cpu"), capability)


@pytest.mark.parametrize(
    ("technique", "option"),
    [
        (Capability.ADAGRAD, Capability.RATE_DECAY),
        (Capability.ADAFACTOR, Capability.ABSOLUTE_RATE),
        (Capability.ADAFACTOR, Capability.SMALLEST_FACTORED),
        (Capability.MUON, Capability.WIDTH_RATE),
        (Capability.RECOMPUTE, Capability.RECOMPUTE_NESTED),
        (Capability.GROUPS, Capability.GROUP_RATES),
    ],
    ids=str,
)
def test_request_of_a_technique_asks_without_its_options(technique: Capability, option: Capability) -> None:
    request(reference_without(option), technique)
    with pytest.raises(Unsupported, match="not here"):
        request(reference_without(option), option)


def test_request_of_a_missing_quantizer_is_refused() -> None:
    quantizers = ReferenceFramework.quantizers_class

    class Fewer(quantizers):  # type: ignore[misc, valid-type]
        def rules(self):  # type: ignore[no-untyped-def]
            return {name: rule for name, rule in super().rules().items() if name != "int8-row"}

    lacking = type("Lacking", (ReferenceFramework,), {"quantizers_class": Fewer})
    with pytest.raises(Unsupported, match="want int8-row"):
        request(lacking("cpu"), Capability.INT8_ROW)


OPTIONS = (
    *Capability.of_optimizers(OPTIMIZERS),
    Capability.ABSOLUTE_RATE,
    Capability.SMALLEST_FACTORED,
    Capability.WIDTH_RATE,
    Capability.UNADJUSTED_RATE,
    Capability.GROUP_RATES,
)
"""Optimizers and options that some framework, or version of it, lacks."""


def warn(category: type[Warning]) -> bool:
    """An attempt that warns and says that it worked."""
    warnings.warn("text", category, stacklevel=1)
    return True


def test_has_effect_of_an_attempt_that_warns_fails_or_raises_is_false() -> None:
    for category in (DeprecationWarning, PendingDeprecationWarning, FutureWarning):
        assert has_effect(lambda category=category: warn(category))
    for category in (UserWarning, RuntimeWarning):
        assert not has_effect(lambda category=category: warn(category))
    assert not has_effect(lambda: False)
    assert not has_effect(lambda: bool(1 // 0))


def test_compare_of_a_supported_capability_whose_attempt_does_nothing_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    acting, idle = ReferenceFramework(), ReferenceFramework()
    monkeypatch.setattr(acting, "attempts", lambda: {Capability.CLIP: lambda: True})
    monkeypatch.setattr(idle, "attempts", lambda: {Capability.CLIP: lambda: False})
    compare(Subject(acting), Verdict(), Capability.CLIP)
    with pytest.raises(Misdeclared, match="a direct call had no effect"):
        compare(Subject(idle), Verdict(), Capability.CLIP)


def test_compare_of_a_supported_capability_whose_absence_the_adapter_declares_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    framework = ReferenceFramework()
    absence = Absence((Capability.CLIP,), "it has none", ("numpy",), ("no_such",))
    monkeypatch.setattr(framework, "_file", AdapterFile(absent=(absence,)))
    assert framework.declares(Capability.CLIP) == SUPPORTED
    with pytest.raises(Misdeclared):
        compare(Subject(framework), Verdict(), Capability.CLIP)


def test_shared_attempts_of_the_reference_take_effect() -> None:
    framework = ReferenceFramework()
    offloads = [Offload(("activations", "parameters", "optimizer"), to) for to in ("host", "disk")]
    attempts = (
        delayed_attempts(lambda: framework.rule(DelayedProducts)(KERNEL, history=4))
        | quantizer_attempts(framework.rule(Quantizers))
        | technique_attempts(framework.rule(PostTraining))
        | float8_attempts(framework.run)
        | optimizer_attempts(framework.run, *OPTIONS)
        | shipped_attempts(framework.parts())
        | offload_attempts(framework.run, offloads)
        | with_ranks({}, framework.rank_group, None)
    )
    assert len(attempts) > 24
    assert [capability for capability, attempt in attempts.items() if not has_effect(attempt)] == []
    with pytest.raises(ValueError, match=r"optimizer\.nesterov: no shared attempt"):
        optimizer_attempts(framework.run, Capability.MUON, Capability.NESTEROV)
