"""Frameworks sabotaged on purpose: a test whose verdict no sabotage changes is vacuous.

A sabotage delegates to the real framework and corrupts values that cross the contract. It does not depend on tests, and
the oracle is unchanged. `SABOTAGES` has them by name.
"""

from __future__ import annotations

from collections.abc import Callable

from frameworks.contract import Framework
from tools.sabotage.delegates import Sabotaged
from tools.sabotage.disturbing import (
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
from tools.sabotage.hiding import (
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

SABOTAGES: dict[str, Callable[[Framework], Sabotaged]] = {
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
"""The sabotages by name, in the order in which they are tried.

The first ones suppress what a framework does. The last three only add differences between runs, which shows that a test
compares runs, but not that it checks their content.
"""
