"""Keras variables as NumPy arrays."""

import keras
import numpy as np

from fixtures.arrays import Array


def as_array(variable: keras.Variable) -> Array:
    """A copy of the variable's value in its true format."""
    return np.array(variable.numpy())
