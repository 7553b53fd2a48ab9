"""Names that the `repr` of a case or variation uses, for tests pasted from a failure.

from conformance.generative.paste import *

@clause("laws.programs")
def test_example(subject: Subject, verdict: Verdict) -> None:
    hold(subject, verdict, Program(GeneratedCase(...)))
"""

# ruff: noqa: F403
from math import inf, nan

from conformance.checks.api import Subject, Verdict, clause
from conformance.generative.masks import MaskedCase, RevealingModel
from conformance.generative.operations import Call, Calls, NestedScope, ScopedOperation
from conformance.generative.programs.case import *
from conformance.generative.programs.variations import *
from conformance.generative.verdicts import hold
from conformance.techniques.float8_training import DelayedCase, DelayedStep
from conformance.techniques.formats import (
    CastCall,
    CodedCalls,
    CodeProduct,
    FakeCall,
    Matrix,
    Packing,
    QuantizerCall,
    SpoiltCall,
)
from conformance.techniques.quantized_models import *
from fixtures.model import *
from fixtures.recipe import *
