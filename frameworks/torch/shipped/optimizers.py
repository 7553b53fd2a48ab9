"""PyTorch's optimizers with the options of `torch.testing`, and what techniques make of them."""

import copy
import io
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from inspect import signature
from typing import Any
from unittest.mock import patch

import torch

from fixtures.arrays import Array
from frameworks.base.shipped import FROZEN, HALFWAY, BaseOptimizers, Options, gradients, infinite
from frameworks.contract import Capability, Unsupported
from frameworks.torch.core.arrays import to_array, to_tensor

Parameters = list[torch.Tensor]
_IMPLEMENTATIONS = ("single", "foreach", "fused")
_SCALE = 1024.0


@cache
def _infos() -> Mapping[str, Any]:
    with patch.object(torch.backends, "disable_global_flags"):
        from torch.testing._internal.common_optimizers import optim_db

    return {info.optim_cls.__name__: info for info in optim_db}


class TorchOptimizers(BaseOptimizers):
    """Optimizers of `optim_db`, with each set of options there.

    Args:
        device: where the parameters are.
    """

    def __init__(self, device: str) -> None:
        super().__init__()
        self.device = device

    def names(self) -> tuple[str, ...]:
        return tuple(_infos())

    def techniques(self) -> tuple[str, ...]:
        own = ("loaded", "copied", "grouped", "reordered", "beside-frozen", "strided", "closure", "scaled")
        return (*own, *_IMPLEMENTATIONS)

    def options(self, name: str, technique: str) -> Sequence[Options]:
        del technique
        return [case.kwargs for case in _infos()[name].optim_inputs_func(device=self.device)]

    def get_options_without_decay(self, name: str) -> Options:
        taken = signature(_infos()[name].optim_cls).parameters
        return {decay: 0.0 for decay in ("weight_decay", "lambd") if decay in taken}

    def matrices_only(self, name: str) -> bool:
        return name == "Muon"

    def train(self, name: str, options: Options, technique: str, start: Sequence[Array]) -> Sequence[Array]:
        info = _infos()[name]
        if technique in _IMPLEMENTATIONS:
            options = {**options, **_implementation(info, options, technique)}
        if technique == "scaled" and info.step_requires_closure:
            raise Unsupported(Capability.SHIPPED_OPTIMIZERS, "GradScaler.step takes no closure")
        parameters = [_parameter(array, self.device, strided=technique == "strided") for array in start]
        optimizer = _make_optimizer(info, parameters, options, technique)
        scaler = torch.amp.GradScaler(torch.device(self.device).type, init_scale=_SCALE, enabled=technique == "scaled")
        scaler.scale(torch.ones((), device=self.device))

        def step(update: Sequence[Array]) -> None:
            def closure() -> torch.Tensor:
                loss = torch.zeros((), device=self.device)
                for parameter, value in zip(parameters, update, strict=True):
                    gradient = to_tensor(value, self.device) * scaler.get_scale()
                    parameter.grad = gradient.to_sparse() if info.only_supports_sparse_grads else gradient
                    loss += (gradient * parameter.detach()).sum()
                return loss

            if technique == "closure" or info.step_requires_closure:
                optimizer.step(closure)
                return
            closure()
            scaler.step(optimizer)
            scaler.update()

        for number, update in enumerate(gradients(start, technique)):
            if number == HALFWAY:
                match technique:
                    case "loaded":
                        parameters, optimizer = _reload_optimizer(info, parameters, optimizer, options)
                    case "copied":
                        parameters, optimizer = copy.deepcopy((parameters, optimizer))
                    case "scaled":
                        step(infinite(start))
            step(update)
        return [to_array(parameter.detach()) for parameter in parameters]


def _implementation(info: Any, options: Options, technique: str) -> Mapping[str, bool]:
    if technique == "single":
        return {"foreach": False} if "foreach" in info.supported_impls else {}
    if technique not in info.supported_impls or (technique == "foreach" and torch.is_tensor(options.get("lr"))):
        raise Unsupported(Capability.SHIPPED_OPTIMIZERS, f"{info.optim_cls.__name__} has no {technique} implementation")
    return {technique: True}


def _parameter(value: Array, device: str, *, strided: bool) -> torch.Tensor:
    """A leaf with these numbers, in the memory order of its transpose if `strided`."""
    tensor = to_tensor(value.T, device).T if strided else to_tensor(value, device)
    return tensor.detach().requires_grad_()


def _make_optimizer(info: Any, parameters: Parameters, options: Options, technique: str) -> torch.optim.Optimizer:
    trained: list[Any] = list(parameters)
    match technique:
        case "grouped" if not info.step_requires_closure:
            trained = [{"params": [parameter]} for parameter in parameters]
        case "reordered":
            trained = parameters[::-1]
        case "beside-frozen":
            trained.insert(1, torch.ones(FROZEN, device=parameters[0].device))
    make: Callable[..., torch.optim.Optimizer] = info.optim_cls
    return make(trained, **options)


def _reload_optimizer(
    info: Any, parameters: Parameters, optimizer: torch.optim.Optimizer, options: Options
) -> tuple[Parameters, torch.optim.Optimizer]:
    """New parameters with the values of these, and a new optimizer with the saved state of this one."""
    file = io.BytesIO()
    torch.save({"parameters": [tensor.detach() for tensor in parameters], "optimizer": optimizer.state_dict()}, file)
    file.seek(0)
    saved = torch.load(file)
    others = [parameter.requires_grad_() for parameter in saved["parameters"]]
    other = _make_optimizer(info, others, options, "")
    other.load_state_dict(saved["optimizer"])
    return others, other
