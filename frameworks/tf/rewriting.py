"""What a graph rewrite made of a function: the format that its result came in before it was cast back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import context

from frameworks.tf.settings import REWRITES

INSERTED = "AutoMixedPrecision"
"""Part of the name of every cast that the rewrite inserts."""


def rewriting() -> bool:
    """Whether one of the automatic mixed precision rewrites is on."""
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
