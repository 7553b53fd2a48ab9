"""How often each recomputation segment runs: counted in a pass of its own, so that no other pass carries a callback."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from frameworks.jax.arrays import Flat
from frameworks.jax.losses import Loaded
from frameworks.jax.network import segments
from frameworks.jax.scaler import LossScale
from frameworks.jax.steps import Moved, Plan, Steps


def runs_in_a_pass(plan: Plan, leaves: Flat, moved: Moved, scale: LossScale, batch: Loaded) -> tuple[int, ...]:
    """How often each segment's forward begins in one forward and backward pass.

    The pass is that of training with one thing more: `jax.debug.callback` at the beginning of each segment.
    """
    begun: list[int] = []
    steps = Steps(plan, begun.append)
    found: Any = steps.backward(leaves, moved, scale, batch, np.float32(1.0))
    jax.block_until_ready(found)
    jax.effects_barrier()
    return tuple(begun.count(number) for number in range(len(segments(plan.model, plan.recompute))))
