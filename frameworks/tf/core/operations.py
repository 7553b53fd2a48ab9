"""The suite's operations in Keras layers, run as a mode of TensorFlow runs a step."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context

from fixtures.arrays import Array
from frameworks.contract import OpResult
from frameworks.keras_common.operations import in_a_layer
from frameworks.operations import CATALOGUE
from frameworks.tf.core.settings import REWRITES
from frameworks.tf.core.steps import compiled

INSERTED = "AutoMixedPrecision"
"""Part of the name of every cast that the rewrite inserts."""


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
    result: set[str] = set()
    for op in ops:
        arrays = CATALOGUE[op]()
        function = in_a_layer(op, arrays)
        traced = tf.function(lambda *given, function=function: function(list(given)), autograph=False)
        graph = traced.get_concrete_function(*(tf.TensorSpec(array.shape, array.dtype) for array in arrays)).graph
        result |= {node.type for node in graph.get_operations()}
    return sorted(result - _FORMLESS)


def run_op(op: str, arrays: tuple[Array, ...], mode: str) -> OpResult:
    """One operation in a layer that is made now, so that it has the policy that is set now; run as `mode` runs a step.

    Raises:
        KeyError: no operation of that name.
    """
    function = in_a_layer(op, arrays)
    run = compiled(lambda given: function(given), mode)
    tensors = [tf.convert_to_tensor(array) for array in arrays]
    options = tf.config.optimizer.get_experimental_options()
    if any(options.get(rewrite, False) for rewrite in REWRITES.values()):
        result, name = run_traced(run, tensors)
    else:
        result = run(tensors)
        name = tf.as_dtype(result.dtype).name
    return OpResult(np.array(result.numpy()), name)
