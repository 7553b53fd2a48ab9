"""One forward and backward pass from inside, by the two ways that Linen documents.

`sow` keeps what every layer returned. `perturb` adds a zero to it, and the gradient for that zero is the gradient for
the output.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from frameworks.jax.core.arrays import Flat, flat
from frameworks.jax.core.layers import PERTURBATIONS
from frameworks.jax.core.losses import DeviceBatch
from frameworks.jax.training.scaler import LossScale
from frameworks.jax.training.steps import CarriedState, CompiledSteps, differentiated


@partial(jax.jit, static_argnames="steps")
def traced(
    steps: CompiledSteps, parameters: Flat, moved: CarriedState, scale: LossScale, batch: DeviceBatch, items: jax.Array
) -> tuple[Flat, tuple[Flat, Flat], CarriedState]:
    """Output of every layer by joined path; the gradients for the parameters and for these outputs; what has moved.

    The gradients are scaled, as those of `CompiledSteps.backward` are.
    """

    def means(given: tuple[Flat, Flat]) -> tuple[list[jax.Array], tuple[CarriedState, Flat]]:
        sums, after, outputs = steps.forward(given[0], moved, batch, given[1])
        return steps.means(sums, items), (after, outputs)

    gradients, _, (after, outputs) = differentiated(scale, means, (parameters, _zeros(steps, batch)))
    return outputs, gradients, after


def _zeros(steps: CompiledSteps, batch: DeviceBatch) -> Flat:
    """A zero for each value of every layer's output on this batch, in its format."""
    key = jax.eval_shape(lambda: jax.random.key(0))
    shapes: Any = jax.eval_shape(partial(steps.network.init, train=False), key, batch.inputs)
    return {place: jnp.zeros(struct.shape, struct.dtype) for place, struct in flat(shapes[PERTURBATIONS]).items()}
