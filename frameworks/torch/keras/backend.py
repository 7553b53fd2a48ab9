"""Keras' updates on PyTorch, for attempts and measured settings."""

from __future__ import annotations

from collections.abc import Sequence

import keras
import torch


class AutogradBackend:
    """Updates by `Optimizer.apply`."""

    def apply(
        self, optimizer: keras.optimizers.Optimizer, gradients: Sequence[float], weights: Sequence[keras.Variable]
    ) -> None:
        """One update of scalar weights by these gradients."""
        with torch.no_grad():
            optimizer.apply([keras.ops.convert_to_tensor(g, "float32") for g in gradients], weights)


BACKEND = AutogradBackend()
