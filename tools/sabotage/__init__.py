"""Frameworks sabotaged on purpose: a test whose verdict no sabotage changes is vacuous.

A sabotage delegates to the real framework and corrupts values that cross the contract. It does not depend on tests, and
the oracle is unchanged. `SABOTAGES` has them by name.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from frameworks.contract import Framework
from tools.sabotage.delegates import Sabotaged
from tools.sabotage.disturbing import (
    DriftingScale,
    EndsInNaN,
    LookingDisturbs,
    NoisyLoss,
    NotANumber,
    OtherDeclarations,
    OtherFormats,
    OtherSettings,
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
    "zero-gradients": partial(Sabotaged, trainer_class=ZeroGradients),
    "frozen-parameters": partial(Sabotaged, trainer_class=FrozenParameters),
    "frozen-scaler": partial(Sabotaged, trainer_class=FrozenScaler),
    "noisy-loss": partial(Sabotaged, trainer_class=NoisyLoss),
    "constant-loss": partial(Sabotaged, trainer_class=ConstantLoss),
    "frozen-optimizer": partial(Sabotaged, trainer_class=FrozenOptimizer),
    "frozen-streams": partial(Sabotaged, trainer_class=FrozenStreams),
    "no-precision": NoPrecision,
    "no-recomputation": NoRecomputation,
    "no-results": NoResults,
    "restores-nothing": partial(Sabotaged, trainer_class=RestoresNothing),
    "nothing-counted": partial(Sabotaged, trainer_class=NothingCounted),
    "other-declarations": partial(OtherDeclarations, trainer_class=OtherSettings),
    "not-a-number": partial(NotANumber, trainer_class=EndsInNaN),
    "other-formats": partial(Sabotaged, trainer_class=OtherFormats),
    "drifting-scale": partial(Sabotaged, trainer_class=DriftingScale),
    "looking-disturbs": partial(Sabotaged, trainer_class=LookingDisturbs),
    "techniques-disturb": TechniquesDisturb,
    "restless-runs": RestlessRuns,
    "restless-settings": RestlessSettings,
}
"""The sabotages by name, in the order in which they are tried.

The first ones suppress what a framework does. The last three only add differences between runs, which shows that a test
compares runs, but not that it checks their content.
"""
