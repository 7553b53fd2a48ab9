"""Compares what an adapter declares with the effect of the framework's own call."""

from __future__ import annotations

from conformance.checks.evidence import Misdeclared, Verdict
from conformance.checks.subject import Subject
from fixtures.models import exact_stack, reused, tied, user_function
from fixtures.recipe import (
    SGD,
    Adafactor,
    Adagrad,
    Adam,
    AdamW,
    DynamicScaling,
    Float8,
    Muon,
    Offload,
    Precision,
    Qat,
    Ranks,
    Recipe,
    Recompute,
    RMSprop,
    StaticScaling,
    Steps,
)
from frameworks.contract import (
    SHIPPED,
    Capability,
    DelayedProducts,
    NumberFormats,
    PostTraining,
    Quantizers,
    Unsupported,
    model_needs,
    needs,
)
from frameworks.contract.rules import offer_of

PRECISIONS = tuple(each for each in Capability if each.startswith("precision.O"))
REQUESTS = (*PRECISIONS, Capability.AUTOCAST_SCOPE, Capability.AUTOCAST_LISTS, Capability.DYNAMIC_SCALING)
"""Capabilities that a request for mixed precision may need."""

OTHERS = tuple(each for each in Capability if each not in REQUESTS)

_WEIGHT = ("0.weight",)
_OPTIMIZERS = (
    SGD(0.5, 0.5, nesterov=True),
    SGD(0.5, 0.5, dampening=0.5),
    SGD(0.5, weight_decay=0.5),
    SGD(0.5, maximize=True),
    Adam(amsgrad=True),
    Adam(state_bits=8),
    Adagrad(rate_decay=0.5),
    RMSprop(),
    Adafactor(),
    Adafactor(relative_step=False),
    Adafactor(smallest=9),
    Muon(),
    Muon(adjustment="width"),
    Muon(adjustment="none"),
)
_RECIPES = (
    *(Recipe(optimizer) for optimizer in _OPTIMIZERS),
    *(Recipe(precision=Precision(level, low)) for level in ("O1", "O2", "O3") for low in ("float16", "bfloat16")),
    *(Recipe(scaling=each) for each in (DynamicScaling(), DynamicScaling(enabled=False), StaticScaling(8.0))),
    *(Recipe(ranks=Ranks(2, level)) for level in ("replicated", "optimizer", "gradients", "full")),
    Recipe(ranks=Ranks(4, "full", replicas=2)),
    Recipe(ranks=Ranks(2, reduce="bfloat16")),
    *(Recipe(offload=Offload((kind,), to)) for kind in ("activations", "optimizer") for to in ("host", "disk")),
    Recipe(offload=Offload(("parameters", "optimizer"))),
    *(Recipe(quantization=each) for each in (Qat(), Float8())),
    Recipe(accumulation=2),
    Recipe(recompute=Recompute(1)),
    Recipe(recompute=Recompute(1, depth=2)),
    Recipe(clip=1.0),
    Recipe(schedule=Steps((1,), (1.0, 0.5))),
    Recipe(groups=2),
    Recipe(groups=2, second_rate=0.5),
    Recipe(optimizers=2),
    Recipe(separate_losses=True),
    Recipe(average=0.5),
    Recipe(AdamW(), undecayed=_WEIGHT),
    Recipe(frozen=_WEIGHT),
    *(Recipe(implementation=name) for name in ("single", "foreach", "fused", "capturable")),
    Recipe(tensor_rate=True),
)
"""A recipe for each capability that recipes need."""
_KINDS = (NumberFormats, Quantizers, PostTraining, DelayedProducts)
"""Interfaces of techniques that no recipe asks for."""


def compare(subject: Subject, verdict: Verdict, capability: Capability) -> None:
    """Compares the declaration of a capability with its attempt; without one, a supported capability is asked for.

    Raises:
        Misdeclared: the attempt shows otherwise.
        Violation: a refusal has no reason, or there was nothing to try.
        Unsupported: the refusal holds, or what is declared as supported is refused.
    """
    declared, acted = subject.framework.declares(capability), subject.framework.probe(capability)
    if declared.supported and acted is None:
        _ask(subject, capability)
        acted = True
    verdict.observe(str(capability), {"declared": declared.supported, "observed": acted, "reason": declared.reason})
    if acted is not None and acted != declared.supported:
        effect = "a direct call succeeded" if acted else "a direct call had no effect"
        said = "supported" if declared.supported else "unsupported"
        raise Misdeclared("misdeclared", f"adapter declares {capability} {said}, but {effect}")
    if not declared.supported:
        reason = declared.reason
        verdict.holds(bool(reason), "a refusal has a reason", reason, "a reason", "refused-without-reason")
        verdict.holds(acted is not None, "a refusal was tried", acted, "an attempt", "refused-untried")
        raise Unsupported(capability, reason)


def _ask(subject: Subject, capability: Capability) -> None:
    """Makes a run or an interface of the framework's that needs the capability, in one place.

    Raises:
        Unsupported: the framework refuses it, and not only in the combination with this model.
    """
    framework = subject.framework

    def declared(recipe: Recipe) -> bool:
        return all(framework.declares(each).supported for each in needs(recipe))

    asking = (recipe for recipe in _RECIPES if capability in needs(recipe) and declared(recipe))
    if (recipe := next(asking, None)) is not None:
        try:
            framework.trainer(exact_stack(), recipe)
        except Unsupported as refusal:
            if refusal.attempt is None:
                raise
    for model in (reused(), tied(), user_function()):
        if capability in model_needs(model):
            framework.trainer(model, Recipe())
    for part, offered in SHIPPED.items():
        if offered is capability:
            framework.shipped(part)
    for kind in _KINDS:
        if offer_of(kind)[0] is capability:
            framework.rule(kind)
