"""Outputs of every layer and their gradients, by Paddle's hooks for layers and tensors."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import paddle

from fixtures.arrays import Array
from fixtures.model import Model
from frameworks.base import unscaled_in_trace
from frameworks.contract import LayerTrace
from frameworks.paddle.core.arrays import to_numpy
from frameworks.paddle.core.layers import UsedAgain


class Watch:
    """The outputs of the layers, by path, and the sums of the gradients that the backward passes gave these.

    A layer that recomputation runs again shows its first output; only the run that the backward pass goes through has
    a gradient.
    """

    def __init__(self) -> None:
        self.outputs: dict[str, Array] = {}
        self.gradients: dict[str, Array] = {}

    def hook(self, path: str) -> Callable[[Any, Any, Any], None]:
        """A forward post-hook for the layer at `path`."""

        def take(_layer: Any, _inputs: Any, output: Any) -> None:
            self.outputs.setdefault(path, to_numpy(output))
            if not paddle.is_grad_enabled():
                return
            output.stop_gradient = False  # a layer without parameters before the first one that has some
            output.register_hook(lambda gradient: self._add(path, to_numpy(gradient)))

        return take

    def _add(self, path: str, gradient: Array) -> None:
        self.gradients[path] = self.gradients[path] + gradient if path in self.gradients else gradient

    def trace(self, model: Model, parameters: dict[str, Array], scale: float) -> LayerTrace:
        """What was watched, in the model's order, as a trace; gradients are divided by the loss scale."""
        paths = model.output_shapes()
        outputs = {path: self.outputs[path] for path in paths if path in self.outputs}
        gradients = {path: unscaled_in_trace(self.gradients[path], scale) for path in paths if path in self.gradients}
        return LayerTrace(outputs, gradients, parameters)


@contextmanager
def hooked(layers: Mapping[str, Any], hook: Callable[[str], Callable[[Any, Any, Any], None]]) -> Iterator[None]:
    """The layers, by path, with a forward post-hook each, which is taken off again.

    A layer that another one calls for its second use is passed over there.
    """
    again = [layer for layer in layers.values() if isinstance(layer, UsedAgain)]
    inside: set[Any] = set()

    def outermost(take: Callable[[Any, Any, Any], None]) -> Callable[[Any, Any, Any], None]:
        def taken(layer: Any, inputs: Any, output: Any) -> None:
            inside.discard(layer)
            if not inside:
                take(layer, inputs, output)

        return taken

    handles = [layer.register_forward_pre_hook(lambda layer, _: inside.add(layer)) for layer in again]
    handles += [layer.register_forward_post_hook(outermost(hook(path))) for path, layer in layers.items()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def watched(layers: Mapping[str, Any]) -> Iterator[Watch]:
    """Watches the passes that these layers, by path, make inside."""
    watch = Watch()
    with hooked(layers, watch.hook):
        yield watch
