"""Attempts of optimizers and their options, shared by all frameworks: one or two updates of a weight each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Literal

import numpy as np

from fixtures.model import Model
from fixtures.models import scalar, tied
from fixtures.plateau import Plateau
from fixtures.recipe import SGD, Adafactor, Adagrad, Adam, AdamW, Muon, Recipe, RMSprop
from frameworks.contract import Attempt, Capability, Trainer

Make = Callable[[Model, Recipe], Trainer]
"""Creates a run without the adapter's guards."""

_WEIGHT = "0.output.weight"
_ADAM = Adam(1.0, beta1=0.5, beta2=0.5)
_CASES: Mapping[Capability, tuple[Recipe, tuple[float, ...], float]] = {
    Capability.NESTEROV: (Recipe(SGD(1.0, 0.5, nesterov=True)), (1.0,), -0.5),
    Capability.DAMPENING: (Recipe(SGD(1.0, 0.5, dampening=0.5)), (1.0, 1.0), -1.0),
    Capability.COUPLED_DECAY: (Recipe(SGD(1.0, 0.5, weight_decay=0.5)), (0.0, 0.0), 0.0),
    Capability.MAXIMIZE: (Recipe(SGD(1.0, maximize=True)), (1.0,), 2.0),
    Capability.TENSOR_RATE: (Recipe(SGD(0.5), tensor_rate=True), (1.0,), 0.5),
    Capability.ADAGRAD: (Recipe(Adagrad(1.0, epsilon=1e-12)), (2.0, 2.0), -(0.5**0.5)),
    Capability.RATE_DECAY: (Recipe(Adagrad(1.0, epsilon=1e-12, rate_decay=1.0)), (2.0, 2.0), -(0.125**0.5)),
    Capability.RMSPROP: (Recipe(RMSprop(1.0, decay=0.75, epsilon=1e-12)), (1.0,), -1.0),
    Capability.ADAFACTOR: (Recipe(Adafactor(0.5)), (2.0,), 0.5),
    Capability.ABSOLUTE_RATE: (Recipe(Adafactor(0.5, relative_step=False)), (2.0,), 0.5),
    Capability.DECAY_EXCLUDED: (Recipe(AdamW(1.0, weight_decay=0.5), undecayed=(_WEIGHT,)), (0.0,), 1.0),
    Capability.FROZEN: (Recipe(AdamW(1.0, weight_decay=0.5), frozen=(_WEIGHT,)), (1.0,), 1.0),
}
"""A recipe with each option, the gradients of its updates, and the weight that they move 1 to."""


OPTIONS = (
    *_CASES,
    Capability.AMSGRAD,
    Capability.SMALLEST_FACTORED,
    Capability.MUON,
    Capability.WIDTH_RATE,
    Capability.UNADJUSTED_RATE,
    Capability.GROUP_RATES,
)
"""Every option and kind that there is an attempt of."""


def optimizer_attempts(run: Make, *capabilities: Capability) -> dict[Capability, Attempt]:
    """Attempts for each of these options and kinds of optimizers."""
    return {
        capability: partial(_ATTEMPTS.get(capability, partial(_moves, capability)), run) for capability in capabilities
    }


def follows_metric(plateau: Callable[[Plateau, Sequence[float]], Sequence[float]]) -> bool:
    """Whether the rate falls at a metric that is as good as the one before."""
    return [*plateau(Plateau(patience=1), (1.0, 1.0))] == [1.0, 0.5]


def _weight(run: Make, recipe: Recipe, values: tuple[float, ...]) -> float:
    trainer = run(scalar(1.0), recipe)
    for value in values:
        trainer.apply_gradients({name: np.full_like(array, value) for name, array in trainer.parameters().items()})
    return float(trainer.parameters()[_WEIGHT].item())


def _moves(capability: Capability, run: Make) -> bool:
    recipe, values, expected = _CASES[capability]
    return abs(_weight(run, recipe, values) - expected) < 2.0**-20


def takes_state(run: Make) -> bool:
    """Whether a run that takes the state of another one has its weight."""
    given, taker = (run(scalar(1.0), Recipe(SGD(1.0, momentum=0.5))) for _ in range(2))
    given.apply_gradients({name: np.full_like(array, 0.5) for name, array in given.parameters().items()})
    taker.take(given)
    return float(taker.parameters()[_WEIGHT].item()) == 0.5


def _freezes(run: Make) -> bool:
    """Whether a weight stays where it was once it is frozen."""
    trainer = run(scalar(1.0), Recipe(SGD(0.5, momentum=0.5)))
    for frozen in ((), (_WEIGHT,)):
        trainer.freeze(frozen)
        trainer.apply_gradients({name: np.ones_like(array) for name, array in trainer.parameters().items()})
    return float(trainer.parameters()[_WEIGHT].item()) == 0.5


def _has_own_rates(run: Make) -> bool:
    """Whether the second group, a bias, moves by a rate of its own."""
    trainer = run(scalar(1.0), Recipe(SGD(1.0), groups=2, second_rate=0.5))
    trainer.apply_gradients({name: np.ones_like(array) for name, array in trainer.parameters().items()})
    return [float(value.item()) for value in trainer.parameters().values()] == [0.0, -0.5]


def _keeps_largest(run: Make) -> bool:
    """Whether a small gradient after a large one moves a weight less than without AMSGrad."""
    plain, largest = (
        _weight(run, Recipe(adam), (8.0, 0.5, 0.5)) for adam in (_ADAM, Adam(1.0, 0.5, 0.5, amsgrad=True))
    )
    return largest > plain


def _factors_from(run: Make) -> bool:
    """Whether a short matrix has a second moment of every element."""
    optimizer = Adafactor(0.5, smallest=9)
    trainer = run(tied(), Recipe(optimizer))
    (name, weight), *_ = trainer.parameters().items()
    trainer.apply_gradients({name: np.ldexp(np.ones_like(weight), np.arange(8) * np.arange(8)[:, None] % 3)})
    moved = np.abs(trainer.parameters()[name] - weight)
    return float(moved.max() - moved.min()) < 2.0**-20


def _makes_orthogonal(adjustment: Literal["rms", "width", "none"], factor: float, run: Make) -> bool:
    """Whether the update by a matrix of ones, whose one singular value is not zero, has a norm near the rate's."""
    trainer = run(tied(), Recipe(Muon(1.0, adjustment=adjustment)))
    (name, weight), *_ = trainer.parameters().items()
    trainer.apply_gradients({name: np.ones_like(weight)})
    moved = np.linalg.norm((trainer.parameters()[name] - weight).astype(np.float64))
    return bool(0.6 < moved / factor < 1.3)


_ATTEMPTS: Mapping[Capability, Callable[[Make], bool]] = {
    Capability.AMSGRAD: _keeps_largest,
    Capability.SMALLEST_FACTORED: _factors_from,
    Capability.MUON: partial(_makes_orthogonal, "rms", 0.2 * 8.0**0.5),
    Capability.WIDTH_RATE: partial(_makes_orthogonal, "width", 1.0),
    Capability.UNADJUSTED_RATE: partial(_makes_orthogonal, "none", 1.0),
    Capability.FREEZE: _freezes,
    Capability.GROUP_RATES: _has_own_rates,
}
