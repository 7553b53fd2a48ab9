"""Keras on JAX: layers, optimizers, loss scaling, distribution and the training loop of its guide for JAX."""

from frameworks.keras_common import import_keras

import_keras("jax", "JAX")
