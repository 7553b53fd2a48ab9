"""Shared code of adapters that train with Keras, for any backend.

Keras reads its backend's name only from the environment, when it is first imported. All modules of this package import
Keras, so that `import_keras` must be called before their import.
"""

import os
from importlib import import_module

VARIABLE = "KERAS_BACKEND"


def import_keras(backend: str, called: str) -> None:
    """Imports Keras on a backend; the environment stays as it was.

    Args:
        called: the backend's name in messages, such as "JAX".

    Raises:
        ValueError: Keras runs on another backend in this process.
    """
    former = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = backend
    try:
        result = import_module("keras").config.backend()
    finally:
        if former is None:
            del os.environ[VARIABLE]
        else:
            os.environ[VARIABLE] = former
    if result != backend:
        raise ValueError(f"mode 'keras' needs Keras on {called}, and in this process it runs on {result}")
