"""Paddle's optimizers, and what techniques make of them."""

import io
from collections.abc import Sequence
from contextlib import ExitStack
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import paddle

from fixtures.arrays import Array
from frameworks.base.shipped import FROZEN, HALFWAY, RATE, ListedOptimizers, Options, gradients, infinite
from frameworks.contract import Capability, Unsupported
from frameworks.paddle.core.arrays import to_numpy, to_tensor
from frameworks.paddle.training.optimizers import forced_scaler

Parameters = list[paddle.Tensor]
_SCALE = 1024.0
_DECAYS = ("weight_decay", "lamb_weight_decay")
_SWITCHES = {"multi-precision": "multi_precision", "multi-tensor": "use_multi_tensor"}


class PaddleOptimizers(ListedOptimizers):
    """Classes of paddle.optimizer in the dynamic graph.

    Args:
        forced: whether a scaler is driven, which Paddle turns off on a CPU.
    """

    file = Path(__file__).with_name("shipped.toml")
    module = paddle.optimizer

    def __init__(self, *, forced: bool) -> None:
        super().__init__()
        self.forced = forced

    def techniques(self) -> tuple[str, ...]:
        own = ("loaded", "grouped", "beside-frozen", "scheduled", "clipped-loosely", "minimized", *_SWITCHES)
        return ("scaled", *own) if self.forced else own

    def get_options_without_decay(self, name: str) -> Options:
        taken = signature(self.find(name)).parameters
        return {decay: 0.0 for decay in _DECAYS if decay in taken and taken[decay].default}

    def train(self, name: str, options: Options, technique: str, start: Sequence[Array]) -> Sequence[Array]:
        parameters = _parameters(start)
        optimizer = self._make_optimizer(name, options, technique, parameters)
        with ExitStack() as open_scopes:
            open_scopes.enter_context(paddle.utils.unique_name.guard())
            if technique == "scaled":
                open_scopes.enter_context(forced_scaler())
            scaler = paddle.amp.GradScaler(init_loss_scaling=_SCALE, enable=technique == "scaled")
            for number, update in enumerate(gradients(start, technique)):
                if number == HALFWAY and technique == "loaded":
                    open_scopes.enter_context(paddle.utils.unique_name.guard())
                    parameters, optimizer = self._save_and_load(name, options, parameters, optimizer)
                if number == HALFWAY and technique == "scaled":
                    _step(parameters, optimizer, scaler, infinite(start), technique)
                _step(parameters, optimizer, scaler, update, technique)
        return [to_numpy(parameter) for parameter in parameters]

    def _make_optimizer(
        self, name: str, options: Options, technique: str, parameters: Parameters
    ) -> paddle.optimizer.Optimizer:
        make = self.find(name)
        arguments: dict[str, Any] = {"learning_rate": RATE, **options}
        trained: list[Any] = list(parameters)
        match technique:
            case "grouped":
                trained = [{"params": [parameter]} for parameter in parameters]
            case "beside-frozen":
                trained.insert(1, paddle.to_tensor(np.ones(FROZEN, np.float32), stop_gradient=True))
            case "scheduled":
                arguments["learning_rate"] = paddle.optimizer.lr.LambdaDecay(RATE, lambda _: 1.0)
            case "clipped-loosely":
                arguments["grad_clip"] = paddle.nn.ClipGradByGlobalNorm(2.0**30)
        if technique in _SWITCHES:
            if _SWITCHES[technique] not in signature(make).parameters:
                raise Unsupported(Capability.SHIPPED_OPTIMIZERS, f"{name} has no {_SWITCHES[technique]}")
            arguments[_SWITCHES[technique]] = True
        return make(parameters=trained, **arguments)

    def _save_and_load(
        self, name: str, options: Options, parameters: Parameters, optimizer: paddle.optimizer.Optimizer
    ) -> tuple[Parameters, paddle.optimizer.Optimizer]:
        """New parameters with the values of these, and a new optimizer with the saved state of this one."""
        file = io.BytesIO()
        paddle.save(optimizer.state_dict(), file)
        file.seek(0)
        others = _parameters([to_numpy(parameter) for parameter in parameters])
        other = self._make_optimizer(name, options, "", others)
        other.set_state_dict(paddle.load(file))
        return others, other


def _parameters(values: Sequence[Array]) -> Parameters:
    """Parameters whose names are the same each time, by which a state finds them."""
    with paddle.utils.unique_name.guard():
        layer = paddle.nn.Layer()
        return [_parameter(layer, value) for value in values]


def _parameter(layer: paddle.nn.Layer, value: Array) -> paddle.Tensor:
    assigned = paddle.nn.initializer.Assign(value.astype(np.float32))
    return layer.create_parameter(list(value.shape), dtype=value.dtype.name, default_initializer=assigned)


def _step(
    parameters: Parameters,
    optimizer: paddle.optimizer.Optimizer,
    scaler: paddle.amp.GradScaler,
    update: Sequence[Array],
    technique: str,
) -> None:
    for parameter, value in zip(parameters, update, strict=True):
        parameter.grad = scaler.scale(to_tensor(value))
    if technique == "minimized":
        optimizer.minimize(paddle.zeros([]))
    else:
        scaler.step(optimizer)
        scaler.update()
    optimizer.clear_grad()
