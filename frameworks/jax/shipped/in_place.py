"""Layers that the transforms of Flax NNX call, each of which updates the layer's state in place."""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from flax.errors import TraceContextError

from frameworks.base.shipped import incoming
from frameworks.contract import Capability, Unsupported

Step = Callable[..., tuple[Any, Any]]
"""The floating outputs of a layer for its inputs, and the gradients of its weights and floating inputs."""


def floating(nest: Any) -> list[jax.Array]:
    """The floating arrays of outputs or of a state."""
    return [each for each in jax.tree.leaves(nest) if jnp.issubdtype(each.dtype, jnp.floating)]


def called(layer: Any, *values: jax.Array) -> Any:
    """What a layer returns."""
    return layer(*values)


def _step(call: Callable[..., Any]) -> Step:
    def loss(layer: nnx.Module, *given: jax.Array) -> Any:
        outputs = floating(call(layer, *given))
        return sum(jnp.vdot(incoming(each.shape), each) for each in outputs), outputs

    def step(layer: nnx.Module, *given: jax.Array) -> tuple[Any, Any]:
        places = (0, *(place for place, each in enumerate(given, 1) if floating(each)))
        (_, outputs), gradients = nnx.value_and_grad(loss, argnums=places, has_aux=True)(layer, *given)
        return outputs, floating(gradients)

    return step


_BY_NNX: Mapping[str, Step] = MappingProxyType(
    {"nnx-compiled": nnx.jit(_step(called)), "nnx-recomputed": nnx.jit(_step(nnx.remat(called)))}
)
CLOSED_OVER = "closed-over"
IN_PLACE = (*_BY_NNX, CLOSED_OVER)
"""Techniques by which a layer is called twice."""


def two_calls(layer: nnx.Module, technique: str, given: Sequence[jax.Array]) -> dict[str, Sequence[jax.Array]]:
    """Outputs, gradients and state before each of two calls, by kind.

    Raises:
        Unsupported: Flax refuses that a function that `jax.jit` compiles updates the state of a layer it closes over.
    """
    result: dict[str, Sequence[jax.Array]] = {}
    compiled = jax.jit(lambda *values: floating(layer(*values)))
    for turn in ("", "second-"):
        if technique == CLOSED_OVER:
            try:
                result[f"{turn}value"] = compiled(*given)
            except TraceContextError as error:
                raise Unsupported(Capability.SHIPPED_LAYERS, str(error)) from error
            continue
        result[f"{turn}state"] = floating(nnx.state(layer, nnx.Not(nnx.Param)))
        result[f"{turn}value"], result[f"{turn}gradient"] = _BY_NNX[technique](layer, *given)
    return result
