"""Every feature that can be generated, so that missing ones can be named."""

from __future__ import annotations

from collections.abc import Mapping

from conformance.techniques.registry import TECHNIQUES
from fixtures.recipe import Precision, Recipe
from frameworks.contract import Capability, Framework, needs
from frameworks.operations import CATALOGUE

_LOW = tuple(Precision(level, name) for level in ("O1", "O2", "O3") for name in ("float16", "bfloat16"))
FIELDS: Mapping[str, tuple[str, ...]] = {
    "precision": ("precision=O0", *(f"precision={precision.label}" for precision in _LOW)),
    "optimizer": tuple(f"optimizer={name}" for name in ("SGD", "Momentum", "Adam", "AdamW")),
    "scaling": tuple(f"scaling={name}" for name in ("none", "static", "dynamic", "disabled")),
    "accumulation": ("accumulation=1", "accumulation>1"),
    "recompute": ("recompute",),
    "clip": ("clip",),
    "schedule": ("schedule",),
    "groups": ("groups=2", "optimizers=2"),
    "losses": ("separate-losses",),
    "average": ("average",),
    "offload": ("offload=host", "offload=disk"),
    "ranks or codes": (*(f"ranks={level}" for level in ("replicated", "optimizer", "gradients", "full")), "aware"),
    "values": ("values=exact", "values=rounded"),
}
"""Features of a recipe, and of a model's values, by field: those of two fields can meet."""

MODELS = (
    *(
        f"layer={name}"
        for name in (
            "Dense",
            "Convolution",
            "BatchNorm",
            "LayerNorm",
            "Embedding",
            "Positions",
            "SelfAttention",
            "Dropout",
            "Activation",
            "Flatten",
            "MaxPool",
            "Residual",
            "Heads",
        )
    ),
    "loss=squared_error",
    "loss=cross_entropy",
    "head=compute",
    "head=float64",
    "heads=1",
    "heads=2",
    "token-ids",
    "token-level",
    "attention=heads-as-places",
    "parameter=large",
    "parameter=one-element",
    "parameter=odd",
    "parameters=few",
    "weights=large",
    "weights=small",
    "weights=offset",
    "inputs=far-from-zero",
)
VERBS = (
    "Accumulate",
    "Apply",
    "Flush",
    "Train",
    "ApplyGradients",
    "Discard",
    "Gradients",
    "Predict",
    "PredictAveraged",
    "Save",
    *(f"Restore.{into}" for into in ("same", "fresh", "used", "predicted", "skipped", "stopped")),
    "RestoreDamaged",
    "DamageOffloaded",
    "StartAgain",
    "StartAgain.onward",
    "TraceLayers",
    "CountBytes",
    *(f"WrongWidth.{way}" for way in ("accumulate", "update", "gradients", "predict", "averaged", "trace", "bytes")),
    "OpenScope",
)
DATA = (
    *(f"feed={kind}" for kind in ("zero", "tiny", "ordinary", "large", "huge", "inf", "-inf", "nan")),
    *(f"feed={kind}" for kind in ("unscaled-by-hand", "unscaled-twice", "poisoned", "often", "missing", "nothing")),
    "train=often",
    "window=optimizer-without-gradient",
    *(f"mask={kind}" for kind in ("none", "ragged", "holes", "empty")),
    *(f"inputs={kind}" for kind in ("large", "small", "subnormal", "constant", "infinite")),
    "window=ragged",
    "window=unequal-items",
    "targets=missing",
    "batch=one-sample",
    "batch=many",
    "batch=width",
    "break=after-a-step",
    "normalised=one-value",
)
OTHERS = (
    "epsilon=default",
    "epsilon=tiny",
    "state=8-bit",
    "momentum=inexact",
    "weight-decay=inexact",
    "average=inexact",
    "rate=inexact",
    "scaling=factors",
    "scaling=uneven-scale",
    "scaling=unequal-factors",
    "under=other-ranks",
    "under=other-offload",
    "recompute.depth=1",
    "recompute.depth=2",
    "recompute.uneven",
    "seed=64-bit",
    *(f"mid-window={verb}" for verb in ("Predict", "PredictAveraged", "Save", "TraceLayers", "CountBytes")),
)
OPERATIONS = (
    *(f"operation={name}" for name in CATALOGUE),
    *(f"operands={kind}" for kind in ("constant", "empty", "large", "mixed", "offset", "one-term", "small", "special")),
    "scope=lists",
    "scope=nested",
)

CODES = tuple(word for technique in TECHNIQUES for word in technique.features)


def offered_precisions(framework: Framework) -> frozenset[str]:
    """Precisions that a framework declares, as features."""
    declared = {f"precision={p.label}" for p in _LOW if _declares(framework, p)}
    return frozenset({"precision=O0", *declared})


def _declares(framework: Framework, precision: Precision) -> bool:
    asked: tuple[Capability, ...] = needs(Recipe(precision=precision))
    return all(framework.declares(capability).supported for capability in asked)
