"""Every name that the `repr` of a case or of a variation has, for a test that was pasted from a failure.

from conformance.generative.paste import *

@clause("laws.programs")
def test_example(subject: Subject, verdict: Verdict) -> None:
    hold(subject, verdict, Program(GeneratedCase(...)))
"""

from __future__ import annotations

from math import inf, nan

from conformance.checks.api import Subject, Verdict, clause
from conformance.generative.masks import MaskedCase, RevealingModel
from conformance.generative.operations import Call, Calls, NestedScope, ScopedOperation
from conformance.generative.programs.case import (
    Accumulate,
    Apply,
    ApplyGradients,
    CountBytes,
    DamageOffloaded,
    GeneratedBatch,
    GeneratedCase,
    GeneratedModel,
    Gradients,
    OpenScope,
    Predict,
    Restore,
    RestoreDamaged,
    RestoreOverrides,
    Save,
    Spike,
    SpikedGradient,
    StartAgain,
    TraceLayers,
    Train,
    WrongWidth,
)
from conformance.generative.programs.variations import (
    CutWindows,
    Program,
    RecomputedCase,
    ResumedCase,
    ScaledCase,
    SecondRun,
)
from conformance.generative.verdicts import hold
from conformance.techniques.delayed_scaling import DelayedCase, DelayedStep
from conformance.techniques.formats.cases import (
    CastCall,
    CodedCalls,
    CodeProduct,
    FakeCall,
    Matrix,
    Packing,
    QuantizerCall,
    SpoiltCall,
)
from conformance.techniques.post_training import PredictBatch, QuantizedCase, RunLayers, SaveAndLoad
from conformance.techniques.qat import Convert, PredictQat, QatCase, Reload, SkipQat, TrainQat
from fixtures.model import (
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
    Model,
    Positions,
    Residual,
    SelfAttention,
)
from fixtures.recipe import (
    SGD,
    Adam,
    AdamW,
    DynamicScaling,
    Offload,
    Precision,
    Qat,
    Ranks,
    Recipe,
    Recompute,
    StaticScaling,
    Steps,
)
