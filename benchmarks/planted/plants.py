"""A pytest plugin that plants a cost in whatever adapter is judged: `python -m pytest -p benchmarks.planted.plants`.

The variable CONFORMANCE_PLANT names the cost: "slow" makes every update take a tenth more of the processor's time,
"copy" keeps a copy of every layer's result until the backward pass has used it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from time import process_time_ns
from typing import Any

import pytest

from conformance.judging.subject import Subject
from frameworks.contract import Trainer

VARIABLE = "CONFORMANCE_PLANT"
SHARE = 0.10
"""How much longer a slow update takes."""


def slow(trainer: Any) -> None:
    """Every update takes a tenth more."""
    update = trainer.update

    def slower(*given: Any) -> Any:
        begin = process_time_ns()
        made = update(*given)
        end = process_time_ns()
        while process_time_ns() < end + SHARE * (end - begin):
            pass
        return made

    trainer.update = slower


def copy(trainer: Any) -> None:
    """A copy of every layer's result is kept for the backward pass, in a framework of `COPIES`."""
    COPIES[type(trainer).__module__.split(".")[1]](trainer)


def _in_reference(trainer: Any) -> None:
    from frameworks.reference.tensor import Tensor

    product = trainer.ops._product

    def keeping(*given: Any) -> Any:
        y = product(*given)
        if trainer.ops.tape:
            trainer.ops.tape.keep(Tensor(y.plain().copy(), y.format))
        return y

    trainer.ops._product = keeping


def _in_torch(trainer: Any) -> None:
    import torch

    class CopiedResult(torch.autograd.Function):
        @staticmethod
        def forward(context: Any, x: torch.Tensor) -> torch.Tensor:
            context.save_for_backward(x.clone())
            return x.view_as(x)

        @staticmethod
        def backward(_: Any, *gradients: torch.Tensor) -> torch.Tensor:
            return gradients[0]

    for module in trainer.network.modules():
        if not list(module.children()):
            module.register_forward_hook(lambda _, __, y: CopiedResult.apply(y))


def _in_paddle(trainer: Any) -> None:
    from paddle.autograd import PyLayer

    class CopiedLayerResult(PyLayer):
        @staticmethod
        def forward(context: Any, x: Any) -> Any:
            context.save_for_backward(x.clone())
            return x.clone()

        @staticmethod
        def backward(_: Any, gradient: Any) -> Any:
            return gradient

    for layer in trainer.network.sublayers():
        if not layer.sublayers():
            layer.register_forward_post_hook(lambda _, __, y: CopiedLayerResult.apply(y))


def possible(framework: str) -> tuple[str, ...]:
    """The costs that can be planted in a framework."""
    return tuple(plant for plant in PLANTS if plant != "copy" or framework in COPIES)


COPIES: dict[str, Callable[[Any], None]] = {"paddle": _in_paddle, "reference": _in_reference, "torch": _in_torch}
PLANTS: dict[str, Callable[[Any], None]] = {"slow": slow, "copy": copy}


def pytest_configure() -> None:
    """Plants the cost in every run that a test asks for."""
    plant, made = PLANTS.get(os.environ.get(VARIABLE, "")), Subject.trainer
    if plant is None:
        pytest.exit(f"{VARIABLE} names no cost: there are {', '.join(PLANTS)}", returncode=2)

    def planted(self: Subject, *given: Any, **named: Any) -> Trainer:
        trainer = made(self, *given, **named)
        plant(trainer)
        return trainer

    pytest.MonkeyPatch().setattr(Subject, "trainer", planted)
