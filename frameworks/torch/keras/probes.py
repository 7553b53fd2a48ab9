"""Attempts with Keras' own calls on PyTorch, without this adapter's guards."""

from __future__ import annotations

import io
from functools import partial

import keras
import numpy as np
import torch
from torch.autograd.graph import saved_tensors_hooks

from frameworks.contract import Attempt, Capability
from frameworks.keras_common.backend import scalars
from frameworks.keras_common.optimizer_probes import optimizer_attempts
from frameworks.keras_common.precision_probes import OF_POLICIES
from frameworks.torch.keras.backend import BACKEND


def _recomputes(depth: int = 1) -> bool:
    """Whether the backward pass runs a function again, within so many `keras.remat`."""
    runs: list[int] = []

    def function(x: torch.Tensor) -> torch.Tensor:
        runs.append(1)
        return torch.tanh(x)

    wrapped = function
    for _ in range(depth):
        wrapped = keras.remat(wrapped)
    x = keras.ops.ones((2,)).requires_grad_()
    value = wrapped(x)
    before = len(runs)
    value.sum().backward()
    return before == 1 and len(runs) > 1 and x.grad is not None


def _named_model() -> keras.Model:
    """A model whose variables have the same paths each time, by which a `state_dict` knows them."""
    return keras.Sequential([keras.Input((2,)), keras.layers.Dense(2, name="dense")], name="model")


def _saves() -> bool:
    """Whether a model's `state_dict` in a file restores another model."""
    saved, loaded = (_named_model() for _ in range(2))
    file = io.BytesIO()
    torch.save(saved.state_dict(), file)
    file.seek(0)
    loaded.load_state_dict(torch.load(file, weights_only=True))
    return bool(torch.equal(loaded.layers[0].kernel.value, saved.layers[0].kernel.value))


def _packed() -> bool:
    sizes: list[int] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        sizes.append(tensor.nbytes)
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        keras.ops.tanh(keras.ops.ones((2,)).requires_grad_())
    return sizes == [8]


def _keeps_output_gradient() -> bool:
    """Whether a layer's output keeps the gradient for it."""
    dense = keras.layers.Dense(2)
    output = dense(np.ones((1, 2), np.float32))
    output.retain_grad()
    (2.0 * output).sum().backward()
    return output.grad is not None and bool((output.grad == 2.0).all())


def _peak() -> bool:
    scalars(1)
    return torch.cuda.is_available() and torch.cuda.max_memory_allocated() > 0


def _distributed() -> bool:
    """Whether Keras' data parallelism takes this backend's devices."""
    devices = keras.distribution.list_devices()
    keras.distribution.DataParallel(devices=devices)
    return True


def attempts(device: str) -> dict[Capability, Attempt]:
    """Attempts for each capability on a device."""
    every = OF_POLICIES | optimizer_attempts(BACKEND) | _OWN
    return {capability: partial(_on, device, attempt) for capability, attempt in every.items()}


def _on(device: str, attempt: Attempt) -> bool:
    with keras.device(device):
        return attempt()


_OWN: dict[Capability, Attempt] = {
    Capability.RECOMPUTE: _recomputes,
    Capability.RECOMPUTE_NESTED: partial(_recomputes, 2),
    Capability.RECOMPUTE_CASES: _recomputes,
    Capability.SEGMENT_CALLS: _recomputes,
    Capability.CHECKPOINT: _saves,
    Capability.SAVED_BYTES: _packed,
    Capability.PEAK_BYTES: _peak,
    Capability.TRACE: _keeps_output_gradient,
    Capability.RANKS_REPLICATED: _distributed,
    Capability.RANKS_OPTIMIZER: _distributed,
    Capability.RANKS_GRADIENTS: _distributed,
    Capability.RANKS_FULL: _distributed,
    Capability.RANKS_HYBRID: _distributed,
}
