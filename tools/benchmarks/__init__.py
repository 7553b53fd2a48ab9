"""Absolute times of a step by pytest-benchmark: fixtures and techniques."""

from collections.abc import Callable, Sequence

from fixtures.data import digits_batch
from fixtures.model import Batch, Model, Window
from fixtures.models import digits_convolution
from fixtures.recipe import BFLOAT16, FLOAT16, Adam, DynamicScaling, Recipe, Recompute
from frameworks.contract import Trainer
from frameworks.native_loop import FIXTURES as DENSE

PLAIN = "plain"
"""Label of the step without a technique."""
RATE = 1e-6
"""Learning rate, so small that the weights hardly move: all rounds have the same work."""
SETTLING = 3
"""Number of applied updates before the first timed one: they compile programs and create slots."""
AT_MOST = 40
"""Limit of the number of updates until a dynamic loss scale is low enough for an applied update."""

FIXTURES: dict[str, Callable[[], tuple[Model, Batch]]] = {
    **DENSE,
    "digits-convolution": lambda: (digits_convolution(), digits_batch(32, image=True)),
}


def techniques(variants: Sequence[str]) -> dict[str, Recipe]:
    """The plain step, and the same step with each technique; recomputation in each variant that a framework offers."""
    plain = Recipe(Adam(RATE))
    return {
        PLAIN: plain,
        "O1-float16": plain.replace(precision=FLOAT16, scaling=DynamicScaling()),
        "O1-bfloat16": plain.replace(precision=BFLOAT16),
        "accumulation-4": plain.replace(accumulation=4),
        **{
            "-".join(filter(None, ("recomputation", name))): plain.replace(recompute=Recompute(2, variant=name))
            for name in variants or (None,)
        },
    }


class NotTheStep(Exception):
    """The framework's step is not the one to time."""


def settle(trainer: Trainer, window: Window) -> None:
    """Makes updates until SETTLING of them are applied.

    Raises:
        NotTheStep: none of the first AT_MOST was.
    """
    applied = 0
    for _ in range(AT_MOST):
        applied += not trainer.update(window).skipped
        if applied == SETTLING:
            return
    raise NotTheStep(f"{AT_MOST - applied} of {AT_MOST} updates were skipped")


def reach_all(trainer: Trainer, window: Window) -> None:
    """Checks that the backward pass gives every parameter a gradient: one that stops early takes less time.

    Raises:
        NotTheStep: a parameter has no gradient.
    """
    reached = trainer.gradients(window)
    if missed := [name for name in trainer.parameters() if name not in reached]:
        raise NotTheStep(f"the backward pass gives {len(missed)} parameters no gradient, the first is {missed[0]}")
