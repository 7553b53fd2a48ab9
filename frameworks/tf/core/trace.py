"""Layer traces: outputs collected in the forward pass, and their gradients by a tape."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import tensorflow as tf

from frameworks.keras_common.layer_outputs import watched_by

Outputs = dict[str, tf.Tensor]
"""Outputs of layers, by the name of the Keras layer, in execution order."""


@contextmanager
def collected_outputs() -> Iterator[Outputs]:
    """Collects the output of every layer that runs within the context, in graphs too."""
    outputs: Outputs = {}

    def gather(name: str, output: tf.Tensor) -> tf.Tensor:
        outputs[name] = output
        return output

    with watched_by(gather):
        yield outputs
