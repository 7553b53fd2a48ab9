"""What attempts in the static graph share: the default program with one linear layer, and small helpers."""

import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import paddle
from paddle.nn.initializer import Constant

from fixtures.arrays import Array

ONE = np.ones((1, 2), np.float32)


def linear() -> Any:
    """A linear layer from two values to one, with weights of 1."""
    return paddle.nn.Linear(2, 1, weight_attr=paddle.ParamAttr(initializer=Constant(1.0)), bias_attr=False)


def read(name: str) -> Array:
    """The values of a variable in the global scope."""
    return np.array(paddle.static.global_scope().find_var(name).get_tensor()).ravel()


def low_scope() -> AbstractContextManager[None]:
    """A disabled scope of float16, which `GradScaler` wants."""
    scope: AbstractContextManager[None] = paddle.amp.auto_cast(enable=False, dtype="float16")
    return scope


def decorate_optimizer(layer: Any, optimizer: Any) -> Any:
    """The optimizer as a scaler of float16 takes it."""
    return paddle.amp.decorate(models=layer, optimizers=optimizer, level="O1", dtype="float16")[1]


def any_way(*ways: Callable[[Any, Any], object]) -> bool:
    """Whether any function acts, each in a program of its own."""
    for way in ways:
        inner, outer = paddle.static.Program(), paddle.static.Program()
        try:
            with paddle.static.program_guard(inner, outer):
                if way(inner, outer):
                    return True
        except Exception:
            continue
    return False


class StaticProgram:
    """The default program of this process, with an input `x` and a linear layer `net`."""

    def __init__(self, device: str) -> None:
        warnings.simplefilter("ignore")
        paddle.device.set_device(device)
        paddle.enable_static()
        self.exe = paddle.static.Executor()
        self.x = paddle.static.data("x", [None, 2], "float32")
        self.x.stop_gradient = False
        self.main, self.startup = paddle.static.default_main_program(), paddle.static.default_startup_program()
        self.net = linear()
        self._started = False

    def run(self, fetch: Sequence[Any], value: Array = ONE) -> list[Array]:
        """Runs the program, from its start at first, and returns these variables."""
        if not self._started:
            self.exe.run(self.startup)
            self._started = True
        return [np.array(output) for output in self.exe.run(feed={"x": value}, fetch_list=fetch)]

    def minimize(self, layer: Any, optimizer: Any, **settings: Any) -> Any:
        """The loss that a scaler with these settings minimizes."""
        with low_scope():
            loss = layer(self.x).sum()
        scaler = paddle.amp.GradScaler(**settings)
        scaler.minimize(decorate_optimizer(layer, optimizer), scaler.scale(loss))
        return loss
