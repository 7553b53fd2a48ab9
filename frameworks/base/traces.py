"""Shared code of traces: layers and formats."""

from __future__ import annotations

import numpy as np

from fixtures.arrays import Array
from fixtures.model import Batch, Model


def traced_paths(model: Model, batch: Batch) -> tuple[str, ...]:
    """Paths of the layers that a trace of this batch shows, in its order: all but heads without targets."""
    last = f"{len(model.layers) - 1}."
    return tuple(
        path for path in model.output_shapes() if not path.startswith(last) or path.removeprefix(last) in batch.targets
    )


def unscaled_in_trace(gradient: Array, scale: float) -> Array:
    """An output's gradient without the loss scale; in float32 or wider if it is divided by one."""
    if scale == 1.0:
        return gradient
    return np.asarray(gradient.astype(np.promote_types(gradient.dtype, np.float32)) / scale)
