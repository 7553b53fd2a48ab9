"""Faults of autocast, master weights and the formats of optimizers in JAX."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax.numpy as jnp
import optax
from flax import linen as nn

from fixtures.recipe import Adam
from frameworks.jax import JaxFramework
from frameworks.jax.core import layers
from frameworks.jax.training import optimizers, steps
from tools.faults import fault


@fault("https://github.com/keras-team/keras/issues/15806", "autocast.layers-honour-policy")
class ConvolutionsStayWide(JaxFramework):
    """`nn.Conv` computes in float32, whatever its `dtype`."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        make = nn.Conv

        def wide(*given: Any, dtype: Any, **named: Any) -> nn.Conv:
            return make(*given, dtype=jnp.float32, **named)

        layers.nn.Conv = wide


@fault("https://github.com/pytorch/ao/pull/1124", "master.small-update-survives", "autocast.parameters-stay-float32")
class CastsWeights(JaxFramework):
    """Parameters are made in the computing format, so small updates vanish in them."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        make = steps.Network
        steps.Network = lambda model, low, _, *rest: make(model, low, low, *rest)


@fault("https://github.com/google-deepmind/optax/issues/1754", "master.adam-epsilon-survives")
class EpsilonUnderflows(JaxFramework):
    """Adam's epsilon is rounded to float16, where it is zero."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        make = optimizers._KINDS[Adam]

        def rounded(*, eps: float = 1e-8, **named: Any) -> optax.GradientTransformation:
            return make(eps=float(jnp.float16(eps)), **named)

        optimizers._KINDS = {**optimizers._KINDS, Adam: rounded}


@fault("https://github.com/google-deepmind/optax/issues/1552", "master.moments-keep-precision")
class MomentsAreLow(JaxFramework):
    """Adam's first moment is held in bfloat16."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        low = partial(optimizers._KINDS[Adam], mu_dtype=jnp.bfloat16)
        optimizers._KINDS = {**optimizers._KINDS, Adam: low}
