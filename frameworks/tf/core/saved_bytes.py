"""Bytes passed from the forward to the backward graph, by TensorFlow's own split of a function."""

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from fixtures.model import Batch

_UNCOUNTED_OPS = {"Placeholder", "ReadVariableOp", "Const"}


def _source(tensor: Any) -> Any:
    """The tensor that an identity passes on; custom gradients wrap what they take and give in identities."""
    while tensor.op.type in ("Identity", "IdentityN"):
        tensor = tensor.op.inputs[tensor.value_index]
    return tensor


def captured_bytes(loss: Callable[..., tf.Tensor], batch: Batch) -> int:
    """Bytes of the tensors that the backward of `loss` takes from its forward, for the shapes of `batch`.

    TensorFlow differentiates a `tf.function` by making its forward return every intermediate value that its backward
    reads; those outputs are what is held. Parameters, inputs and constants among them are not counted; a parameter's
    copy in another format is. No public name leads to the two halves, so this reads them where `tf.GradientTape` does.
    """
    arguments: list[Any] = [tf.TensorSpec(batch.inputs.shape, batch.inputs.dtype)]
    arguments.append({name: tf.TensorSpec(value.shape, value.dtype) for name, value in sorted(batch.targets.items())})
    if batch.mask is not None:
        arguments.append(tf.TensorSpec(batch.mask.shape, batch.mask.dtype))
    whole = tf.function(loss, autograph=False).get_concrete_function(*arguments)
    results = len(whole.outputs)
    forward, _ = whole._delayed_rewrite_functions.forward_backward()
    sources = [_source(output) for output in forward.graph.outputs[results:]]
    tensors = {tensor.name: tensor for tensor in sources if tensor.op.type not in _UNCOUNTED_OPS}
    return sum(int(np.prod(tensor.shape.as_list())) * tensor.dtype.size for tensor in tensors.values())
