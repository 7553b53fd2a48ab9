"""Options that Paddle's optimizers lack, and attempts."""

from functools import partial
from typing import Any

import paddle

from fixtures.recipe import SGD, Adam, Recipe
from frameworks.contract import Attempt, Capability, Unsupported
from frameworks.paddle.core.modes import in_dynamic_mode

REFUSED_OPTIONS: dict[Capability, str] = {
    Capability.SINGLE: "Paddle's optimizers update a parameter at a time unless use_multi_tensor is set",
    Capability.FUSED: "Paddle's optimizers have no argument for a fused kernel",
    Capability.CAPTURABLE: "Paddle's optimizers have no argument for graph capture",
    Capability.DAMPENING: "paddle.optimizer.Momentum has no dampening",
    Capability.MAXIMIZE: "Paddle's optimizers minimize, and have no argument to maximize",
    Capability.RATE_DECAY: "paddle.optimizer.Adagrad has no decay of the rate but a schedule",
    Capability.TENSOR_RATE: "a tensor as learning rate raises TypeError, although Momentum and Adagrad document it",
}
REFUSED_OPTIONS |= {
    Capability(f"optimizer.{name.lower()}"): f"there is no paddle.optimizer.{name}" for name in ("Adafactor", "Muon")
}
_MULTI = "only Momentum and Adam have use_multi_tensor"


REFUSED_IN_BOTH = {
    capability: why for capability, why in REFUSED_OPTIONS.items() if capability != Capability.TENSOR_RATE
}
"""Options whose argument or class neither graph has."""


def refused_attempts() -> dict[Capability, Attempt]:
    """Attempts for each option that Paddle does not have, in the dynamic graph."""
    momentum, adagrad = paddle.optimizer.Momentum, partial(paddle.optimizer.Adagrad, 0.5)
    tried: dict[Capability, Attempt] = {
        Capability.SINGLE: partial(_steps, momentum, foreach=False),
        Capability.FUSED: partial(_steps, momentum, fused=True),
        Capability.CAPTURABLE: partial(_steps, momentum, capturable=True),
        Capability.DAMPENING: partial(_steps, momentum, dampening=0.5),
        Capability.MAXIMIZE: partial(_steps, momentum, maximize=True),
        Capability.RATE_DECAY: partial(_steps, adagrad, lr_decay=1.0),
        Capability.TENSOR_RATE: _takes_a_tensor,
        Capability.ADAFACTOR: partial(_named_steps, "Adafactor"),
        Capability.MUON: partial(_named_steps, "Muon"),
    }
    return {capability: partial(in_dynamic_mode, attempt) for capability, attempt in tried.items()}


def require(recipe: Recipe) -> None:
    """Refuses an implementation that an optimizer lacks.

    Raises:
        Unsupported: it does.
    """
    optimizer = recipe.optimizer
    has = isinstance(optimizer, Adam) or (isinstance(optimizer, SGD) and optimizer.momentum > 0)
    if recipe.implementation == "foreach" and not has:
        raise Unsupported(Capability.FOREACH, _MULTI, partial(_steps, paddle.optimizer.SGD, use_multi_tensor=True))


def _steps(kind: Any, **arguments: Any) -> bool:
    weight = paddle.create_parameter([2], "float32", default_initializer=paddle.nn.initializer.Constant(1.0))
    optimizer = kind(parameters=[weight], **arguments)
    weight.sum().backward()
    optimizer.step()
    return bool((weight != 1.0).all())


def _named_steps(name: str) -> bool:
    return _steps(getattr(paddle.optimizer, name))


def _takes_a_tensor() -> bool:
    return _steps(paddle.optimizer.Momentum, learning_rate=paddle.to_tensor(0.5))
