"""Layer traces: hooks on the network's own modules and on the tensors that they return."""

from collections.abc import Container, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from fixtures.arrays import Array
from fixtures.layers import Layer, Residual
from fixtures.model import Model
from frameworks.torch.core.arrays import to_array
from frameworks.torch.core.layers import ResidualBody, UsedAgain
from frameworks.torch.core.network import Network


def modules_by_path(model: Model, network: Network, heads: Container[str]) -> dict[str, nn.Module]:
    """The module of every layer by its path, in the order of the forward pass; these heads last."""
    modules = dict(_inner(model.layers[:-1], network.built, ""))
    last = len(model.layers) - 1
    return modules | {f"{last}.{name}": head for name, head in network.heads_built.items() if name in heads}


def _inner(layers: tuple[Layer, ...], modules: Iterable[nn.Module], prefix: str) -> Iterator[Any]:
    for index, (layer, module) in enumerate(zip(layers, modules, strict=True)):
        if isinstance(layer, Residual) and isinstance(module, ResidualBody):
            yield from _inner(layer.body, module.body, f"{prefix}{index}.body.")
        yield f"{prefix}{index}", module


class TracedTensors:
    """Outputs of layers and the gradients that come back to them, by path; several backward passes add up."""

    def __init__(self) -> None:
        self.outputs: dict[str, Array] = {}
        self.gradients: dict[str, torch.Tensor] = {}
        self._inside: set[nn.Module] = set()

    @contextmanager
    def watching(self, modules: dict[str, nn.Module]) -> Iterator[None]:
        """Takes down what these modules return inside."""
        handles = [module.register_forward_hook(self._hook(path)) for path, module in modules.items()]
        again = [module for module in modules.values() if isinstance(module, UsedAgain)]
        handles += [module.register_forward_pre_hook(lambda module, _: self._inside.add(module)) for module in again]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _hook(self, path: str) -> Any:
        def take(module: nn.Module, _inputs: Any, output: torch.Tensor) -> None:
            self._inside.discard(module)
            if self._inside:
                return  # a layer's second use, which another one shows
            if path not in self.outputs:  # a checkpoint's second run comes later
                self.outputs[path] = to_array(output)
            if torch.is_grad_enabled() and not output.requires_grad:
                output.requires_grad_()  # before the first parameter
            if output.requires_grad:
                output.register_hook(lambda gradient: self._add(path, gradient))

        return take

    def _add(self, path: str, gradient: torch.Tensor) -> None:
        former = self.gradients.get(path)
        self.gradients[path] = gradient.clone() if former is None else former + gradient
