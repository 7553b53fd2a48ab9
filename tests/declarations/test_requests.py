"""Every capability that an adapter may name without an attempt is asked for, and a refusal of it is noticed."""

from contextlib import nullcontext

import pytest

from conformance.declarations.requests import request
from fixtures.recipe import Recipe
from frameworks.base import BaseFramework, BaseTrainer
from frameworks.contract import Capability, Declaration, Unsupported, needs
from frameworks.reference import ReferenceFramework
from frameworks.reference.training.trainer import ReferenceTrainer

LEFT_OUT = {
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


def without(capability: Capability) -> ReferenceFramework:
    """The reference, which refuses what needs this capability."""

    class Refusing(ReferenceFramework):
        def declares(self, asked: Capability) -> Declaration:
            return Declaration(False, "not here") if asked is capability else super().declares(asked)

        def trainer(self, model, recipe, weights=None):  # type: ignore[no-untyped-def]
            if capability is Capability.TIED_WEIGHTS or capability in needs(recipe):
                raise Unsupported(capability, "not here")
            return super().trainer(model, recipe, weights)

    return Refusing("cpu")


@pytest.mark.parametrize("capability", Capability, ids=str)
def test_request_of_a_capability_asks_for_it(capability: Capability) -> None:
    framework = ReferenceFramework("cpu")
    supported = framework.declares(capability).supported
    assert framework.probe(capability) is (None if supported else False)
    with nullcontext() if supported else pytest.raises(Unsupported):
        request(framework, capability)


@pytest.mark.parametrize(("capability", "method"), LEFT_OUT.items(), ids=str)
def test_request_of_a_method_that_an_adapter_lacks_is_refused(capability: Capability, method: str) -> None:
    if hasattr(BaseFramework, method):
        parts = {method: getattr(BaseFramework, method)}
    else:
        run = type("LackingRun", (ReferenceTrainer,), {method: getattr(BaseTrainer, method)})
        parts = {"trainer_class": run}
    with pytest.raises(Unsupported):
        request(type("Lacking", (ReferenceFramework,), parts)("cpu"), capability)


@pytest.mark.parametrize(
    "capability", [Capability.CLIP, Capability.MUON, Capability.AVERAGE, Capability.TIED_WEIGHTS], ids=str
)
def test_request_of_a_recipe_or_model_that_is_refused_is_refused(capability: Capability) -> None:
    assert not needs(Recipe())
    with pytest.raises(Unsupported, match="not here"):
        request(without(capability), capability)


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
    request(without(option), technique)
    with pytest.raises(Unsupported, match="not here"):
        request(without(option), option)


def test_a_format_or_quantizer_without_the_name_is_noticed() -> None:
    quantizers = ReferenceFramework.quantizers_class

    class Fewer(quantizers):  # type: ignore[misc, valid-type]
        def rules(self):  # type: ignore[no-untyped-def]
            return {name: rule for name, rule in super().rules().items() if name != "int8-row"}

    lacking = type("Lacking", (ReferenceFramework,), {"quantizers_class": Fewer})
    with pytest.raises(Unsupported, match="want int8-row"):
        request(lacking("cpu"), Capability.INT8_ROW)
