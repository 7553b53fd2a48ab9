"""Every name that the `repr` of a case or of a variation has, for a test that was pasted from a failure.

from conformance.laws.pasted import *

@clause("laws.programs")
def test_example(subject: Subject, verdict: Verdict) -> None:
    hold(subject, verdict, Program(Case(...)))
"""

from __future__ import annotations

from math import inf, nan

from conformance.judging.kit import Subject, Verdict, clause
from conformance.laws.holding import Program, hold
from conformance.laws.operations import Call, Calls, Region, Scoped
from conformance.laws.programs import (
    Accumulate,
    Apply,
    Break,
    Case,
    CountBytes,
    DrawnModel,
    Feed,
    Given,
    Gradients,
    MicroBatch,
    Predict,
    Restore,
    RestoreDamaged,
    Save,
    Scope,
    Spike,
    StartAgain,
    Trace,
    Train,
)
from conformance.laws.variations import Cut, Recomputed, Resumed, Scaled, SecondRun
from fixtures.layers import (
    Activation,
    BatchNorm,
    Convolution,
    Dense,
    Dropout,
    Embedding,
    Flatten,
    Head,
    Heads,
    LayerNorm,
    MaxPool,
    Positions,
    Residual,
    SelfAttention,
)
from fixtures.recipe import (
    SGD,
    Adam,
    AdamW,
    DynamicScaling,
    Precision,
    Recipe,
    Recompute,
    StaticScaling,
    Steps,
)

__all__ = [
    "SGD",
    "Accumulate",
    "Activation",
    "Adam",
    "AdamW",
    "Apply",
    "BatchNorm",
    "Break",
    "Call",
    "Calls",
    "Case",
    "Convolution",
    "CountBytes",
    "Cut",
    "Dense",
    "DrawnModel",
    "Dropout",
    "DynamicScaling",
    "Embedding",
    "Feed",
    "Flatten",
    "Given",
    "Gradients",
    "Head",
    "Heads",
    "LayerNorm",
    "MaxPool",
    "MicroBatch",
    "Positions",
    "Precision",
    "Predict",
    "Program",
    "Recipe",
    "Recompute",
    "Recomputed",
    "Region",
    "Residual",
    "Restore",
    "RestoreDamaged",
    "Resumed",
    "Save",
    "Scaled",
    "Scope",
    "Scoped",
    "SecondRun",
    "SelfAttention",
    "Spike",
    "StartAgain",
    "StaticScaling",
    "Steps",
    "Subject",
    "Trace",
    "Train",
    "Verdict",
    "clause",
    "hold",
    "inf",
    "nan",
]
