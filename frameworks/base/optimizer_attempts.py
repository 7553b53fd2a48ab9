"""Options of optimizers, and attempts of those that some framework lacks: an update of a weight each."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Literal

import numpy as np

from fixtures.model import Model
from fixtures.models import scalar, tied_embedding
from fixtures.recipe import SGD, Adafactor, Muon, Recipe
from frameworks.contract import Attempt, Capability, Trainer

Make = Callable[[Model, Recipe], Trainer]
"""Creates a run without the adapter's guards."""

_WEIGHT = "0.output.weight"
OPTIONS = frozenset(
    {
        Capability.NESTEROV,
        Capability.DAMPENING,
        Capability.COUPLED_DECAY,
        Capability.DECAY_EXCLUDED,
        Capability.FROZEN,
        Capability.AMSGRAD,
        Capability.MAXIMIZE,
        Capability.TENSOR_RATE,
        Capability.ADAGRAD,
        Capability.RATE_DECAY,
        Capability.RMSPROP,
        Capability.ADAFACTOR,
        Capability.ABSOLUTE_RATE,
        Capability.SMALLEST_FACTORED,
        Capability.MUON,
        Capability.WIDTH_RATE,
        Capability.UNADJUSTED_RATE,
        Capability.GROUP_RATES,
    }
)
"""Every option and kind of optimizers."""


def optimizer_attempts(run: Make, *capabilities: Capability) -> dict[Capability, Attempt]:
    """Attempts for options and kinds that some framework, or version of it, lacks.

    Args:
        capabilities: ADAFACTOR, ABSOLUTE_RATE, SMALLEST_FACTORED, MUON, WIDTH_RATE, UNADJUSTED_RATE, GROUP_RATES.
    Raises:
        ValueError: there is no attempt of one of these.
    """
    if others := [str(capability) for capability in capabilities if capability not in _ATTEMPTS]:
        raise ValueError(f"{', '.join(others)}: no shared attempt; name it in supported_capabilities() or write one")
    return {capability: partial(_ATTEMPTS[capability], run) for capability in capabilities}


def _adapts(optimizer: Adafactor, run: Make) -> bool:
    """Whether the first update moves a weight from 1 by the rate."""
    trainer = run(scalar(1.0), Recipe(optimizer))
    trainer.apply_gradients({name: np.full_like(array, 2.0) for name, array in trainer.parameters().items()})
    return abs(float(trainer.parameters()[_WEIGHT].item()) - 0.5) < 2.0**-20


def _has_own_rates(run: Make) -> bool:
    """Whether the second group, a bias, moves by a rate of its own."""
    trainer = run(scalar(1.0), Recipe(SGD(1.0), groups=2, second_rate=0.5))
    trainer.apply_gradients({name: np.ones_like(array) for name, array in trainer.parameters().items()})
    return [float(value.item()) for value in trainer.parameters().values()] == [0.0, -0.5]


def _factors_from(run: Make) -> bool:
    """Whether a short matrix has a second moment of every element."""
    optimizer = Adafactor(0.5, smallest=9)
    trainer = run(tied_embedding(), Recipe(optimizer))
    (name, weight), *_ = trainer.parameters().items()
    trainer.apply_gradients({name: np.ldexp(np.ones_like(weight), np.arange(8) * np.arange(8)[:, None] % 3)})
    moved = np.abs(trainer.parameters()[name] - weight)
    return float(moved.max() - moved.min()) < 2.0**-20


def _makes_orthogonal(adjustment: Literal["rms", "width", "none"], factor: float, run: Make) -> bool:
    """Whether the update by a matrix of ones, whose one singular value is not zero, has a norm near the rate's."""
    trainer = run(tied_embedding(), Recipe(Muon(1.0, adjustment=adjustment)))
    (name, weight), *_ = trainer.parameters().items()
    trainer.apply_gradients({name: np.ones_like(weight)})
    moved = np.linalg.norm((trainer.parameters()[name] - weight).astype(np.float64))
    return bool(0.6 < moved / factor < 1.3)


_ATTEMPTS: Mapping[Capability, Callable[[Make], bool]] = {
    Capability.ADAFACTOR: partial(_adapts, Adafactor(0.5)),
    Capability.ABSOLUTE_RATE: partial(_adapts, Adafactor(0.5, relative_step=False)),
    Capability.SMALLEST_FACTORED: _factors_from,
    Capability.MUON: partial(_makes_orthogonal, "rms", 0.2 * 8.0**0.5),
    Capability.WIDTH_RATE: partial(_makes_orthogonal, "width", 1.0),
    Capability.UNADJUSTED_RATE: partial(_makes_orthogonal, "none", 1.0),
    Capability.GROUP_RATES: _has_own_rates,
}
