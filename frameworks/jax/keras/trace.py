"""Layer traces: their outputs, and the gradients for zeros that are added to these."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import jax

from frameworks.keras_common.layer_outputs import watched_by

Outputs = dict[str, jax.Array]
"""Outputs of layers, by the name of the Keras layer, in execution order."""


@contextmanager
def watched(zeros: Mapping[str, jax.Array]) -> Iterator[Outputs]:
    """Collects the output of every layer that runs within the context, with the zeros added to it."""
    outputs: Outputs = {}

    def gather(name: str, output: jax.Array) -> jax.Array:
        outputs[name] = output + zeros[name] if name in zeros else output
        return outputs[name]

    with watched_by(gather):
        yield outputs
