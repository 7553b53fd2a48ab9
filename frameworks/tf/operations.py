"""The suite's operations as Keras and TensorFlow calls, run as a Keras layer runs them: under the dtype policy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import ops
from tensorflow.python.eager import context

from fixtures.arrays import Array
from frameworks.contract import OpResult
from frameworks.operations import CATALOGUE
from frameworks.tf.settings import REWRITES
from frameworks.tf.steps import compiled

Operation = Callable[..., Any]


def _attention(q: Any, k: Any, v: Any) -> Any:
    expanded = [ops.expand_dims(x, 2) for x in (q, k, v)]
    return ops.squeeze(ops.dot_product_attention(*expanded), 2)


OPERATIONS: dict[str, Operation] = {
    "matmul": ops.matmul,
    "batched_matmul": ops.matmul,
    "einsum": lambda a, b: ops.einsum("ij,jk->ik", a, b),
    "linear": lambda x, weight, bias: ops.add(ops.matmul(x, weight), bias),
    "conv2d": lambda x, kernel: ops.conv(x, kernel, strides=1, padding="valid", data_format="channels_last"),
    "attention": _attention,
    "sum": ops.sum,
    "mean": ops.mean,
    "variance": ops.var,
    "norm": ops.norm,
    "prod": ops.prod,
    "max": ops.max,
    "cumsum": lambda x: ops.cumsum(x, axis=-1),
    "cumprod": lambda x: ops.cumprod(x, axis=-1),
    "logsumexp": lambda x: ops.logsumexp(x, axis=-1),
    "softmax": ops.softmax,
    "log_softmax": ops.log_softmax,
    "exp": ops.exp,
    "expm1": ops.expm1,
    "log": ops.log,
    "log1p": ops.log1p,
    "pow": lambda x: ops.power(x, 3.0),
    "square": ops.square,
    "sqrt": ops.sqrt,
    "rsqrt": ops.rsqrt,
    "reciprocal": ops.reciprocal,
    "abs": ops.abs,
    "sin": ops.sin,
    "cos": ops.cos,
    "tanh": ops.tanh,
    "sigmoid": ops.sigmoid,
    "relu": ops.relu,
    "leaky_relu": lambda x: ops.leaky_relu(x, negative_slope=0.01),
    "elu": ops.elu,
    "gelu": lambda x: ops.gelu(x, approximate=False),
    "silu": ops.silu,
    "softplus": ops.softplus,
    "erf": ops.erf,
    "add": ops.add,
    "subtract": ops.subtract,
    "multiply": ops.multiply,
    "divide": ops.divide,
    "maximum": ops.maximum,
    "where": lambda a, b: ops.where(a > 0, a, b),
    "concatenate": lambda a, b: ops.concatenate([a, b], axis=-1),
    "stack": lambda a, b: ops.stack([a, b]),
    "max_pool": lambda x: ops.max_pool(x, 2, data_format="channels_last"),
    "average_pool": lambda x: ops.average_pool(x, 2, data_format="channels_last"),
    "dropout": lambda x: keras.random.dropout(x, 0.5, seed=0),
    "embedding": lambda ids, table: ops.take(table, ids, axis=0),
    "gather_ids": lambda ids: ids + 0,
    "argmax": lambda x: ops.argmax(x, axis=-1),
    "transpose": ops.transpose,
    "reshape": lambda x: ops.reshape(x, [-1]),
}

LOSSES: dict[str, Callable[[], keras.losses.Loss]] = {
    "cross_entropy": lambda: keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    "squared_error": keras.losses.MeanSquaredError,
    "absolute_error": keras.losses.MeanAbsoluteError,
    "huber": keras.losses.Huber,
    "kl_divergence": keras.losses.KLDivergence,
    "binary_cross_entropy_logits": lambda: keras.losses.BinaryCrossentropy(from_logits=True),
}
"""Losses are Loss objects, which have a format of their own; they take targets first."""


NORMALIZATIONS: dict[str, Callable[[], keras.layers.Layer]] = {
    "layer_norm": lambda: keras.layers.LayerNormalization(epsilon=1e-5, center=False, scale=False),
    "batch_norm": lambda: keras.layers.BatchNormalization(epsilon=1e-5, center=False, scale=False),
    "rms_norm": lambda: keras.layers.RMSNormalization(epsilon=1e-5),
    "instance_norm": lambda: keras.layers.GroupNormalization(groups=-1, epsilon=1e-5, center=False, scale=False),
}
"""Normalisations are layers, which know about narrow formats; Keras' plain operations leave that to them."""


def _instances() -> Callable[[list[Any]], Any]:
    """Each row of (rows, columns) normalised, as a channel of one sample: groups of one channel, which come last."""
    layer = NORMALIZATIONS["instance_norm"]()
    return lambda given: ops.transpose(layer(ops.transpose(given[0])[None])[0])


class OperationLayer(keras.layers.Layer):
    """A layer whose `call` is one operation; Keras casts what comes in by the policy that it was made under."""

    def __init__(self, operation: Operation) -> None:
        super().__init__()
        self._operation = operation

    def call(self, inputs: list[Any]) -> Any:
        return self._operation(*inputs)


def _function(op: str, arrays: tuple[Array, ...]) -> Callable[[list[Any]], Any]:
    """The operation in a layer; a loss outside it, of the layer's output, as in a training step."""
    if op == "instance_norm":
        return _instances()
    if op in NORMALIZATIONS:
        layer = NORMALIZATIONS[op]()
        layer.build(arrays[0].shape)
        training = {"training": True} if op == "batch_norm" else {}
        return lambda given: layer(given[0], **training)
    if op not in LOSSES:
        return OperationLayer(OPERATIONS[op])
    loss = LOSSES[op]()
    output = OperationLayer(OPERATIONS["exp"] if op == "kl_divergence" else lambda x: x)
    return lambda given: loss(given[1], output(given[:1]))


INSERTED = "AutoMixedPrecision"
"""Part of the name of every cast that the rewrite inserts."""


def rewriting() -> bool:
    """Whether a graph rewrite for mixed precision is on."""
    options = tf.config.optimizer.get_experimental_options()
    return any(options.get(option, False) for option in REWRITES.values())


def run_traced(function: Callable[..., Any], *arguments: Any) -> tuple[Any, str]:
    """Result of a `tf.function` of one output, and the format that the optimized graph computed it in.

    A rewritten graph casts its results back to float32. The optimized graph is in the run's metadata, which v1 sessions
    return in public; for functions only this module of TensorFlow turns it on.
    """
    eager = context.context()
    eager.enable_run_metadata()
    try:
        result = function(*arguments)
        graphs = eager.export_run_metadata().function_graphs
    finally:
        eager.disable_run_metadata()
    nodes = {node.name: node for node in graphs[-1].post_optimization_graph.node} if graphs else {}
    returned = [node for node in nodes.values() if node.op in ("_Retval", "_DeviceRetval")]
    source = nodes.get(returned[0].input[0].partition(":")[0]) if len(returned) == 1 else None
    while source is not None and source.op == "Identity":
        source = nodes.get(source.input[0].partition(":")[0])
    if source is not None and source.op == "Cast" and INSERTED in source.name:
        return result, tf.as_dtype(source.attr["SrcT"].type).name
    return result, tf.as_dtype(result.dtype).name


_FORMLESS = {"Cast", "Const", "Identity", "NoOp", "Placeholder"}


def graph_operations(ops: Sequence[str]) -> list[str]:
    """What the operations are in TensorFlow's graph, which the lists of its rewrites name."""
    found: set[str] = set()
    for op in ops:
        arrays = CATALOGUE[op]()
        function = _function(op, arrays)
        traced = tf.function(lambda *given, function=function: function(list(given)), autograph=False)
        graph = traced.get_concrete_function(*(tf.TensorSpec(array.shape, array.dtype) for array in arrays)).graph
        found |= {node.type for node in graph.get_operations()}
    return sorted(found - _FORMLESS)


def run_op(op: str, arrays: tuple[Array, ...], mode: str) -> OpResult:
    """One operation in a layer that is made now, so that it has the policy that is set now; run as `mode` runs a step.

    Raises:
        KeyError: no operation of that name.
    """
    function = _function(op, arrays)
    run = compiled(lambda given: function(given), mode)
    tensors = [tf.convert_to_tensor(array) for array in arrays]
    if rewriting():
        result, name = run_traced(run, tensors)
    else:
        result = run(tensors)
        name = tf.as_dtype(result.dtype).name
    return OpResult(np.array(result.numpy()), name)
