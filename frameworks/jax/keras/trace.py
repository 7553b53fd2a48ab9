"""Layer traces: their outputs, and the gradients for zeros that are added to these."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import jax

from frameworks.keras_parts.watching import watched_by

Outputs = dict[str, jax.Array]
"""What layers returned, by the name of the Keras layer, in the order in which they were done."""


@contextmanager
def watched(zeros: Mapping[str, jax.Array]) -> Iterator[Outputs]:
    """Gathers what every layer that runs inside returns, with the zeros that are added to it."""
    outputs: Outputs = {}

    def gather(name: str, output: jax.Array) -> jax.Array:
        outputs[name] = output + zeros[name] if name in zeros else output
        return outputs[name]

    with watched_by(gather):
        yield outputs
