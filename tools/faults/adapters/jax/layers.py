"""Faults of layers in JAX."""

from __future__ import annotations

import math
from functools import partial, wraps
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax import nnx
from flax.nnx.tracers import TraceState

from frameworks.jax import JaxFramework
from frameworks.jax.core import layers
from frameworks.jax.shipped import in_place
from tools.faults import fault


@fault("https://github.com/apple/axlearn/pull/397", "autocast.float32-parity", names="(LayerNorm), output")
class NormalisesWithAnotherEpsilon(JaxFramework):
    """`nn.LayerNorm` adds a hundred times the epsilon that it was given."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        make = nn.LayerNorm
        layers.nn.LayerNorm = lambda *, epsilon, **named: make(epsilon=100.0 * epsilon, **named)


@fault(
    "https://github.com/AI-Hypercomputer/maxtext/pull/3312", "autocast.float32-parity", names="(SelfAttention), output"
)
class AttentionScaledByAnotherWidth(JaxFramework):
    """Products of queries and keys of width d are divided by √(d + 1)."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        attend = nn.dot_product_attention

        @wraps(attend)
        def narrower(query: jax.Array, *rest: Any, **named: Any) -> jax.Array:
            width = query.shape[-1]
            return attend(query * math.sqrt(width / (width + 1)), *rest, **named)

        layers.nn.MultiHeadDotProductAttention = partial(nn.MultiHeadDotProductAttention, attention_fn=narrower)


@jax.custom_vjp
def _turned_backwards(kernel: jax.Array) -> jax.Array:
    """The kernel (height, width, inputs, filters), whose gradient comes with height and width exchanged."""
    return kernel


_turned_backwards.defvjp(lambda kernel: (kernel, None), lambda _, upstream: (jnp.transpose(upstream, (1, 0, 2, 3)),))


@fault(
    "https://github.com/huggingface/candle/issues/3735",
    "autocast.float32-parity",
    names="(Convolution), gradient of weight",
)
class FilterGradientIsTransposed(JaxFramework):
    """The gradient of a convolution's filter has its two spatial axes exchanged; the forward pass is right."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)

        def convolve(inputs: jax.Array, kernel: jax.Array, *rest: Any, **named: Any) -> jax.Array:
            return jax.lax.conv_general_dilated(inputs, _turned_backwards(kernel), *rest, **named)

        layers.nn.Conv = partial(nn.Conv, conv_general_dilated=convolve)


@fault("https://github.com/google/flax/issues/4539", "composition.shipped-parts")
class CapturedModulesMayChange(JaxFramework):
    """A compiled function changes the state of a module that it closes over, once, when it is traced."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        TraceState.is_valid = lambda _: True


@fault("https://github.com/google/flax/issues/3997", "composition.shipped-parts")
class CompiledModulesKeepTheirState(JaxFramework):
    """A function that nnx.jit compiles leaves the state of its modules as it was."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        by_nnx = dict(in_place._BY_NNX)
        in_place._BY_NNX = {name: partial(_of_a_copy, step) for name, step in by_nnx.items()}


def _of_a_copy(step: Any, layer: Any, *given: Any) -> Any:
    return step(nnx.clone(layer), *given)
