"""Keras on PyTorch: layers, optimizers, loss scaling and the training loop of its guide for PyTorch."""

from frameworks.keras_common import import_keras

import_keras("torch", "PyTorch")
