"""Keras on JAX: layers, optimizers, loss scaling and distribution of Keras, in the training loop of its guide for JAX.

Keras reads the name of its backend from the environment while it is imported, and from nowhere else.
"""

import os

_FORMER = os.environ.get("KERAS_BACKEND")
os.environ["KERAS_BACKEND"] = "jax"
try:
    import keras
finally:
    if _FORMER is None:
        del os.environ["KERAS_BACKEND"]
    else:
        os.environ["KERAS_BACKEND"] = _FORMER

if keras.config.backend() != "jax":
    raise ValueError(f"mode 'keras' needs Keras on JAX, and in this process it runs on {keras.config.backend()}")
