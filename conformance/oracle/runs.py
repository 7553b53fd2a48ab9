"""The numbers by which a run is judged: losses, first gradient and final parameters, or its evaluation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from fixtures.arrays import Array
from fixtures.model import Window
from frameworks.contract import Trainer


@dataclass(frozen=True, eq=False)
class Run:
    """Losses of all updates, gradient of the first window and final parameters, as float64 vectors.

    Attributes:
        gradients: `gradient` by parameter, in model order and in the framework's formats; empty from the cache.
    """

    losses: Array
    gradient: Array
    parameters: Array
    gradients: Mapping[str, Array] = field(default_factory=dict)


def run(trainer: Trainer, windows: Sequence[Window]) -> Run:
    """Compute the gradient of the first window, then make one update for each window."""
    gradients = trainer.gradients(windows[0])
    losses = np.array([trainer.update(window).loss for window in windows], np.float64)
    return Run(losses, flat(gradients), flat(trainer.parameters()), gradients)


def flat(arrays: Mapping[str, Array]) -> Array:
    """Return all arrays, sorted by name, as one float64 vector."""
    return np.concatenate([np.asarray(arrays[name]).astype(np.float64).ravel() for name in sorted(arrays)])


def train_and_evaluate(trainer: Trainer, windows: Sequence[Window], inputs: Array) -> dict[str, Array]:
    """Make an update for each window; return outputs ("predictions") and running statistics ("buffers"), if any."""
    for window in windows:
        trainer.update(window)
    predictions = flat(trainer.predict(inputs))
    buffers = trainer.buffers()
    return {"buffers": flat(buffers), "predictions": predictions} if buffers else {"predictions": predictions}
