"""Options that Keras' optimizers lack, with attempts."""

from functools import partial
from typing import Any

import keras
import numpy as np

from frameworks.base import optimizer_attempts
from frameworks.base.optimizer_attempts import Make
from frameworks.contract import Attempt, Capability

_ONE = "a Keras optimizer has one implementation on a backend and no argument for another"
REFUSED_OPTIONS: dict[Capability, str] = {
    Capability.SINGLE: _ONE,
    Capability.FOREACH: _ONE,
    Capability.FUSED: _ONE,
    Capability.CAPTURABLE: _ONE,
    Capability.DAMPENING: "keras.optimizers.SGD has no dampening",
    Capability.MAXIMIZE: "Keras' optimizers minimize, and have no argument to maximize",
    Capability.RATE_DECAY: "keras.optimizers.Adagrad has no decay of the rate but a schedule",
    Capability.COUPLED_DECAY: "weight_decay of Keras' optimizers is decoupled in all of them",
    Capability.TENSOR_RATE: "a Keras optimizer takes a number, a schedule or a callable as learning rate, not a tensor",
    Capability.SMALLEST_FACTORED: "keras.optimizers.Adafactor factors every variable of two dimensions or more",
    Capability.WIDTH_RATE: "keras.optimizers.Muon has no adjustment of the rate by the ratio of a matrix' sides",
}
_NEWER = {
    "Adafactor": (Capability.ADAFACTOR, Capability.ABSOLUTE_RATE),
    "Muon": (Capability.MUON, Capability.UNADJUSTED_RATE),
}
REFUSED_OPTIONS |= {
    capability: f"this version of Keras has no keras.optimizers.{name}"
    for name, capabilities in _NEWER.items()
    for capability in capabilities
    if not hasattr(keras.optimizers, name)
}


def option_attempts(run: Make) -> dict[Capability, Attempt]:
    """Attempts for each option that Keras, or a version of it, lacks."""
    return optimizer_attempts(run, *(option for options in _NEWER.values() for option in options)) | {
        Capability.SINGLE: partial(_steps, foreach=False, fused=False),
        Capability.FOREACH: partial(_steps, foreach=True),
        Capability.FUSED: partial(_steps, fused=True),
        Capability.CAPTURABLE: partial(_steps, capturable=True),
        Capability.DAMPENING: partial(_steps, momentum=0.5, dampening=0.5),
        Capability.MAXIMIZE: partial(_steps, maximize=True),
        Capability.RATE_DECAY: _decays_the_rate,
        Capability.COUPLED_DECAY: _couples_decay,
        Capability.TENSOR_RATE: _takes_a_tensor,
        Capability.SMALLEST_FACTORED: partial(_builds, "Adafactor", smallest=9),
        Capability.WIDTH_RATE: partial(_builds, "Muon", rms_rate="width"),
    }


def _moved(optimizer: keras.optimizers.Optimizer, *gradients: float) -> float:
    weight = keras.Variable(np.ones((), np.float32))
    for gradient in gradients:
        optimizer.apply([keras.ops.convert_to_tensor(np.float32(gradient))], [weight])
    return float(weight)


def _steps(**arguments: Any) -> bool:
    return _moved(keras.optimizers.SGD(0.5, **arguments), 1.0) != 1.0


def _builds(name: str, **arguments: Any) -> bool:
    weight = keras.Variable(np.ones((2, 2), np.float32))
    getattr(keras.optimizers, name)(0.5, **arguments).apply([keras.ops.ones((2, 2))], [weight])
    return bool(np.all(keras.ops.convert_to_numpy(weight) != 1.0))


def _decays_the_rate() -> bool:
    return _moved(keras.optimizers.Adagrad(0.5, lr_decay=1.0), 1.0) != 1.0


def _couples_decay() -> bool:
    """Whether a second update takes in decay by momentum: 1, 1/2, 0, where decoupled decay gives 1/4."""
    return _moved(keras.optimizers.SGD(1.0, momentum=0.5, weight_decay=0.5), 0.0, 0.0) == 0.0


def _takes_a_tensor() -> bool:
    return _moved(keras.optimizers.SGD(keras.ops.convert_to_tensor(np.float32(0.5))), 1.0) == 0.5
