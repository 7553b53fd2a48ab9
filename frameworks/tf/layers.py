"""Fixture layers as Keras layers: those of every backend, on TensorFlow."""

from frameworks.keras_parts.layers import (
    Builder,
    buffers_of,
    build_layers,
    parameters_of,
    run_layers,
    tells_training,
)

__all__ = ["Builder", "buffers_of", "build_layers", "parameters_of", "run_layers", "tells_training"]
