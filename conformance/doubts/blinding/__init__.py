"""Frameworks that are spoilt on purpose, so that a test whose verdict they cannot change is seen to be vacuous.

A blinding delegates to the real framework and spoils what crosses the contract. It knows no test, and the oracle stays
as it is. `BLINDINGS` holds them by name.
"""

from __future__ import annotations

from collections.abc import Callable

from conformance.doubts.blinding.delegates import Blinded
from conformance.doubts.blinding.disturbing import (
    DriftingScale,
    LookingDisturbs,
    NoisyLoss,
    NotANumber,
    OtherDeclarations,
    OtherFormats,
    RestlessRuns,
    RestlessSettings,
    TechniquesDisturb,
)
from conformance.doubts.blinding.hiding import (
    ConstantLoss,
    FrozenOptimizer,
    FrozenParameters,
    FrozenScaler,
    FrozenStreams,
    NoPrecision,
    NoRecomputation,
    NoResults,
    NothingCounted,
    RestoresNothing,
    ZeroGradients,
)
from frameworks.contract import Framework

BLINDINGS: dict[str, Callable[[Framework], Blinded]] = {
    "zero-gradients": ZeroGradients,
    "frozen-parameters": FrozenParameters,
    "frozen-scaler": FrozenScaler,
    "noisy-loss": NoisyLoss,
    "constant-loss": ConstantLoss,
    "frozen-optimizer": FrozenOptimizer,
    "frozen-streams": FrozenStreams,
    "no-precision": NoPrecision,
    "no-recomputation": NoRecomputation,
    "no-results": NoResults,
    "restores-nothing": RestoresNothing,
    "nothing-counted": NothingCounted,
    "other-declarations": OtherDeclarations,
    "not-a-number": NotANumber,
    "other-formats": OtherFormats,
    "drifting-scale": DriftingScale,
    "looking-disturbs": LookingDisturbs,
    "techniques-disturb": TechniquesDisturb,
    "restless-runs": RestlessRuns,
    "restless-settings": RestlessSettings,
}
"""The blindings by name, in the order in which they are tried.

The first ones hide what a framework does; the last three only make it restless, which is enough to see that a test
compares two runs, or a run with itself, and not that there is anything in them.
"""
