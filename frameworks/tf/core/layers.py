"""The fixture model on TensorFlow: its arrays, recomputed segments, operations, and bytes between the passes."""

from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context

from fixtures.arrays import Array
from fixtures.model import SCALE, Batch, FunctionUse
from frameworks.base.recompute import CLOSED_OVER, FACTOR, NO_GRAD_INPUT, WEIGHTS_CHANGE, FailingRerun, recomputed_call
from frameworks.contract import FunctionResult, OpResult, RecomputeCase, RecomputeResult
from frameworks.keras_common.layers import VARIANTS as OF_KERAS
from frameworks.keras_common.layers import Begins
from frameworks.keras_common.operations import Function, in_a_layer, wrap_in_remat
from frameworks.operations import CATALOGUE
from frameworks.tf.core.settings import REWRITES
from frameworks.tf.core.steps import compile_function


def as_array(variable: keras.Variable) -> Array:
    """A copy of the variable's value in its true format."""
    return np.array(variable.numpy())


WRAPPERS = {"tf.recompute_grad": tf.recompute_grad}
VARIANTS = (*OF_KERAS, *WRAPPERS)


class SegmentCounts:
    """A variable for each segment, which every forward of the segment increments."""

    def __init__(self) -> None:
        self._of_segments: list[tf.Variable] = []

    def __call__(self, number: int | None) -> Begins:
        """Creates the variable of a segment; inner segments have one that `read` leaves out."""
        calls = tf.Variable(0, trainable=False, dtype=tf.int64)
        if number is not None:
            self._of_segments.append(calls)
        return lambda _: calls.assign_add(1)

    def read(self) -> tuple[int, ...]:
        """Forwards of each segment."""
        return tuple(int(calls.numpy()) for calls in self._of_segments)


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
        traced = tf.function(lambda *args, function=function: function(list(args)), autograph=False)
        graph = traced.get_concrete_function(*(tf.TensorSpec(array.shape, array.dtype) for array in arrays)).graph
        result |= {node.type for node in graph.get_operations()}
    return sorted(result - _FORMLESS)


def run_op(op: str, arrays: tuple[Array, ...], mode: str) -> OpResult:
    """One operation in a layer that is made now, so that it has the policy that is set now; run as `mode` runs a step.

    Raises:
        KeyError: no operation of that name.
    """
    function = in_a_layer(op, arrays)
    run = compile_function(lambda args: function(args), mode)
    tensors = [tf.convert_to_tensor(array) for array in arrays]
    options = tf.config.optimizer.get_experimental_options()
    if any(options.get(rewrite, False) for rewrite in REWRITES.values()):
        result, name = run_traced(run, tensors)
    else:
        result = run(tensors)
        name = tf.as_dtype(result.dtype).name
    return OpResult(np.array(result.numpy()), name)


def recomputing(function: Function, variant: str) -> Function:
    """The function within a recomputation call."""
    return WRAPPERS[variant](function) if variant in WRAPPERS else wrap_in_remat(function, variant)


def _product(x: Any, w: Any) -> tf.Tensor:
    return tf.tanh(tf.matmul(x, w))


def recompute(case: RecomputeCase, x: Array, w: Array, variant: str, mode: str) -> RecomputeResult:
    """Value and gradients of Σ tanh(x·w) for x (n, m) and w (m, k), called as `case` says.

    Raises:
        RuntimeError: in case "raises", and whatever the framework raises for a call that it does not take.
    """
    weight, rerun = tf.Variable(w), FailingRerun()
    closed = case in CLOSED_OVER

    def run(function: Function, *args: Any, **named: Any) -> tf.Tensor:
        return recomputing(function, variant)(*args, **named)

    def failing(x: Any, w: Any) -> tf.Tensor:
        rerun.begin()
        return _product(x, w)

    def differentiate(x: Any, w: Any) -> tuple[Any, ...]:
        kernel = weight if closed else w
        with tf.GradientTape(persistent=True) as tape:
            if case != NO_GRAD_INPUT:
                tape.watch(x)
            if not closed:
                tape.watch(w)
            value = tf.reduce_sum(recomputed_call(case, run, _product, failing, x, kernel))
        if case == WEIGHTS_CHANGE:
            weight.assign(weight * FACTOR)
        sources = [None if case == NO_GRAD_INPUT else x, kernel]
        return value, *(None if source is None else tape.gradient(value, source) for source in sources)

    value, of_x, of_w = compile_function(differentiate, mode)(tf.constant(x), tf.constant(w))
    gradients = [None if gradient is None else np.array(gradient) for gradient in (of_x, of_w)]
    return RecomputeResult(float(value), gradients[0], gradients[1])


def function_used(use: FunctionUse, inputs: tuple[Array, ...], variant: str | None, mode: str) -> FunctionResult:
    """The gradients of `fixtures.model`: tf.custom_gradient cannot ask, so frozen inputs are known from outside."""

    @tf.custom_gradient
    def pair(a: Any, b: Any, c: Any, scale: float = SCALE) -> Any:
        def gradient(y: Any, z: Any) -> list[Any]:
            every = (2.0 * scale * y * b, scale * y * a + z, z)
            return [gradient if needed else None for gradient, needed in zip(every, use.needs, strict=True)]

        return (scale * a * b, b + c), gradient

    def loss(*args: Any) -> Any:
        pairs = [dict(zip("yz", pair(*args), strict=True)) for _ in range(use.times)]
        return tf.add_n([tf.reduce_sum(outputs[name]) for outputs in pairs for name in use.outputs])

    def differentiate(*args: Any) -> list[Any]:
        sources = [tensor for tensor, needed in zip(args, use.needs, strict=True) if needed]
        with tf.GradientTape() as tape:
            for source in sources:
                tape.watch(source)
            value = (loss if variant is None else recomputing(loss, variant))(*args)
        return list(tape.gradient(value, sources))

    result = iter(compile_function(differentiate, mode)(*map(tf.constant, inputs)))
    return FunctionResult(None, tuple(np.asarray(next(result)) if needed else None for needed in use.needs))


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
