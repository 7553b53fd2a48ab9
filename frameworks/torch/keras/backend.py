"""Keras' updates and gradients on PyTorch, for attempts and measured settings."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import keras
import torch


class AutogradBackend:
    """Updates by `Optimizer.apply`, and gradients by `backward`."""

    def apply(
        self,
        optimizer: keras.optimizers.Optimizer,
        gradients: Sequence[float | None],
        weights: Sequence[keras.Variable],
    ) -> None:
        """One update of scalar weights by these gradients."""
        with torch.no_grad():
            optimizer.apply(
                [None if g is None else keras.ops.convert_to_tensor(g, "float32") for g in gradients], weights
            )

    def gradient(self, function: Callable[[torch.Tensor], torch.Tensor], at: float) -> float:
        """The derivative of a scalar function."""
        x = keras.ops.convert_to_tensor(at, "float32").requires_grad_()
        function(x).backward()
        assert x.grad is not None
        return float(x.grad)


BACKEND = AutogradBackend()
