"""The custom training loop of Keras' guide: tape, scaled loss, `optimizer.apply`, run eagerly or in a `tf.function`.

Also operations and recomputation in such functions, and the bytes that a function keeps between the passes.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context

from fixtures.arrays import Array
from fixtures.model import SCALE, Batch, FunctionUse, Model
from fixtures.recipe import Recipe
from frameworks.base.recompute import CLOSED_OVER, FACTOR, NO_GRAD_INPUT, WEIGHTS_CHANGE, FailingRerun, recomputed_call
from frameworks.contract import FunctionResult, OpResult, RecomputeCase, RecomputeResult
from frameworks.keras_common.framework import Function, in_a_layer, wrap_in_remat
from frameworks.keras_common.layers import VARIANTS as OF_KERAS
from frameworks.keras_common.layers import Begins, BuiltNetwork, batch_losses_of, collected_outputs
from frameworks.keras_common.optimizers import inner_of, loss_scale, read_optimizer, set_rate
from frameworks.keras_common.run import KerasLoop, KerasMicroBatch, TracedPass
from frameworks.operations import CATALOGUE
from frameworks.tf.core import ways
from frameworks.tf.core.settings import REWRITES

COMPILED = {"graph": {}, "rewrite": {}, "xla": {"jit_compile": True}}
"""Arguments of `tf.function` by mode; a mode that is missing runs eagerly."""
WRAPPERS = {"tf.recompute_grad": tf.recompute_grad}
VARIANTS = (*OF_KERAS, *WRAPPERS)
INSERTED = "AutoMixedPrecision"
"""Part of the name of every cast that the rewrite inserts."""
_FORMLESS = {"Cast", "Const", "Identity", "NoOp", "Placeholder"}
"""Graph operations that compute nothing, which no list has to name."""
_UNCOUNTED_OPS = {"Placeholder", "ReadVariableOp", "Const"}
"""Graph operations of inputs, parameters and constants."""


def compile_function(function: Callable[..., Any], mode: str) -> Callable[..., Any]:
    """`function` in the form that the mode runs; like in `Model.fit`, traced for the first shapes, then for any."""
    if mode not in COMPILED:
        return function
    return tf.function(function, autograph=False, reduce_retracing=True, **COMPILED[mode])


class TapeBackend:
    """Keras' updates by `Optimizer.apply`, compiled like a mode's functions, for attempts and measured settings."""

    def __init__(self, mode: str) -> None:
        self._mode = mode

    def apply(
        self, optimizer: keras.optimizers.Optimizer, gradients: Sequence[float], weights: Sequence[keras.Variable]
    ) -> None:
        """One update of scalar weights by these gradients."""

        def step() -> None:
            optimizer.apply([tf.constant(g, tf.float32) for g in gradients], weights)

        compile_function(step, self._mode)()


class TracedSteps(KerasLoop):
    """The functions of one run; each is traced when it is first called, and again for a batch of another structure."""

    def __init__(
        self, model: Model, bound: BuiltNetwork, optimizer: keras.optimizers.Optimizer, mode: str, recipe: Recipe
    ) -> None:
        self._model = model
        self._bound = bound
        self._optimizer = optimizer
        self._recipe = recipe
        self._mode = mode
        self._train = self._compile(self._train_step)
        self._gradients = self._compile(self._compute_gradients)
        self._trace = self._compile(self._trace_layers)
        self._feed = self._compile(self._surrogate_step)
        self._predict = self._compile(lambda inputs: bound.network(inputs, training=False))
        self._losses = batch_losses_of(model)
        compiling = {"run_eagerly": mode == "eager", "jit_compile": mode == "xla"}
        fits = ways.compile_model(recipe, bound.network, model, optimizer, compiling)
        self._fits = [name for name, _ in model.losses] if fits else []

    def _compile(self, step: Callable[..., Any]) -> Callable[..., Any]:
        """A step as the run calls it."""
        return compile_function(step, self._mode)

    def train(self, batch: Batch) -> KerasMicroBatch:
        self._set_rate()
        if self._fits and set(batch.targets) == set(self._fits):
            before = self._numbers()
            loss = ways.train_on_batch(self._bound.network, batch)
            after = self._numbers()
            return micro_batch((loss, *before[:3], *after[:2], after[3]), batch.items)
        return micro_batch(self._train(*_arguments(batch)), batch.items)

    def gradients(self, batch: Batch) -> dict[str, tf.Tensor]:
        result: dict[str, tf.Tensor] = self._gradients(*_arguments(batch))
        return result

    def trace(self, batch: Batch) -> TracedPass:
        return TracedPass(*self._trace(*_arguments(batch)))

    def apply_gradients(self, gradients: Mapping[str, Any]) -> KerasMicroBatch:
        self._set_rate()
        return replace(micro_batch(self._feed(self._to_tensors(gradients)), 1), total=math.nan, mean=math.nan)

    def _to_tensors(self, gradients: Mapping[str, Any]) -> dict[str, tf.Tensor]:
        return {name: tf.convert_to_tensor(value) for name, value in gradients.items()}

    def predict(self, inputs: Any) -> dict[str, tf.Tensor]:
        outputs: dict[str, tf.Tensor] = self._predict(tf.convert_to_tensor(inputs))
        return outputs

    def forward_loss(self, inputs: Any, targets: Mapping[str, Any], mask: Any = None) -> tf.Tensor:
        """Training-mode loss, the sum over the heads that have targets."""
        return tf.add_n(_same_format(list(self._head_losses(inputs, targets, mask).values())))

    def _head_losses(self, inputs: Any, targets: Mapping[str, Any], mask: Any) -> dict[str, tf.Tensor]:
        outputs = self._bound.network(inputs, training=True)
        return {
            name: self._losses[name, mask is not None](targets[name], outputs[name], sample_weight=mask)
            for name, _ in self._model.losses
            if name in targets
        }

    def _backward(
        self, inputs: Any, targets: Mapping[str, Any], mask: Any, collected: Mapping[str, tf.Tensor] | None = None
    ) -> tuple[tf.Tensor, list[Any]]:
        """The loss; its scaled gradients for variables, delayed-scaling state and the tensors in `collected`."""
        way, weights = self._recipe.way("backward"), [*self._bound.trained.values(), *self._bound.memory.values()]
        with ways.tape(way, persistent=self._recipe.separate_losses) as tape:
            if way == "watched":
                tape.watch([weight.value for weight in weights])
            if collected is not None and inputs.dtype.is_floating:
                tape.watch(inputs)  # else the tape skips layers without weights before the first variable
            losses = _same_format(list(self._head_losses(inputs, targets, mask).values()))
            total = tf.add_n(losses)
            parts = losses if self._recipe.separate_losses else [total]
            scaled = [self._optimizer.scale_loss(part) for part in parts]
        sources = [*weights, *(collected or {}).values()]
        gradients = [ways.gradients(way, tape, part, sources) for part in scaled]
        return total, [_sum(list(column)) for column in zip(*gradients, strict=True)]

    def _train_step(self, inputs: Any, targets: Mapping[str, Any], mask: Any = None) -> tuple[Any, ...]:
        total, gradients = self._backward(inputs, targets, mask)
        return self._apply(total, gradients)

    def _surrogate_step(self, gradients: Mapping[str, tf.Tensor]) -> tuple[Any, ...]:
        with tf.GradientTape() as tape:
            total = self._surrogate(gradients)
            scaled = self._optimizer.scale_loss(total)
        return self._apply(total, tape.gradient(scaled, list(self._bound.trained.values())))

    def _surrogate(self, gradients: Mapping[str, tf.Tensor]) -> tf.Tensor:
        """Σ p·g over the variables named in `gradients`."""
        variables = self._bound.variables
        products = [tf.cast(variables[name].value, g.dtype) * g for name, g in gradients.items()]
        return tf.add_n([tf.zeros(()), *(tf.cast(tf.reduce_sum(product), tf.float32) for product in products)])

    def _set_rate(self) -> None:
        inner = inner_of(self._optimizer)
        set_rate(self._recipe, getattr(inner, "optimizers", [inner]))

    def _numbers(self) -> tuple[Any, ...]:
        """Loss scale, count of updates, rate and the scaler's counter."""
        return tuple(map(tf.identity, read_optimizer(self._optimizer)))

    def _apply(self, loss: tf.Tensor, gradients: list[Any]) -> tuple[Any, ...]:
        *before, _ = self._numbers()
        variables = [*self._bound.trained.values(), *self._bound.memory.values()]
        if self._recipe.way("clip") and self._recipe.clip is not None:
            count = len(self._bound.trained)
            gradients = ways.clip_gradients(self._recipe.clip, self._scale(), gradients[:count]) + gradients[count:]
        ways.apply(self._recipe.way("optimizer"), self._optimizer, gradients, variables)
        scale, updates, _, good = self._numbers()
        return loss, *before, scale, updates, good

    def _scale(self) -> tf.Tensor:
        return tf.identity(loss_scale(self._optimizer))

    def _compute_gradients(self, inputs: Any, targets: Mapping[str, Any], mask: Any = None) -> dict[str, tf.Tensor]:
        _, gradients = self._backward(inputs, targets, mask)
        trained = self._bound.trained
        return self._divide_by_scale(zip(trained, gradients[: len(trained)], strict=True))

    def _trace_layers(self, inputs: Any, targets: Mapping[str, Any], mask: Any = None) -> tuple[Any, ...]:
        with collected_outputs() as collected:
            _, gradients = self._backward(inputs, targets, mask, collected)
        count = len(self._bound.trained)
        of_parameters = self._divide_by_scale(zip(self._bound.trained, gradients[:count], strict=True))
        of_outputs = gradients[count + len(self._bound.memory) :]
        return collected, _dense(zip(collected, of_outputs, strict=True)), of_parameters, self._scale()

    def _divide_by_scale(self, gradients: Iterable[tuple[str, Any]]) -> dict[str, tf.Tensor]:
        """The existing gradients, divided by the loss scale like in the optimizer, in their own formats."""
        scale = self._scale()
        dense = _dense(gradients).items()
        return {name: tf.cast(keras.ops.divide(gradient, scale), gradient.dtype) for name, gradient in dense}


def micro_batch(outcome: tuple[Any, ...], items: int) -> KerasMicroBatch:
    """Converts the result of `TracedSteps._apply`, for a micro-batch of `items` items."""
    loss, scale, updates, rate, scale_after, updates_after, good = (float(value) for value in outcome)
    return KerasMicroBatch(loss * items, items, scale, updates_after > updates, rate, scale_after, int(good), loss)


def _arguments(batch: Batch) -> list[Any]:
    result: list[Any] = [tf.convert_to_tensor(batch.inputs)]
    result.append({name: tf.convert_to_tensor(value) for name, value in sorted(batch.targets.items())})
    return result if batch.mask is None else [*result, tf.convert_to_tensor(batch.mask)]


def _dense(gradients: Iterable[tuple[str, Any]]) -> dict[str, tf.Tensor]:
    return {name: tf.convert_to_tensor(gradient) for name, gradient in gradients if gradient is not None}


def _same_format(losses: list[tf.Tensor]) -> list[tf.Tensor]:
    """The losses in float64 if one of them is, else in the format of the first."""
    widest = tf.float64 if any(loss.dtype == tf.float64 for loss in losses) else losses[0].dtype
    return [tf.cast(loss, widest) for loss in losses]


def _sum(gradients: list[Any]) -> Any:
    """The sum of a variable's gradients by several losses, None if it has none; a single one stays as it is."""
    if len(gradients) == 1:
        return gradients[0]
    dense = [tf.convert_to_tensor(gradient) for gradient in gradients if gradient is not None]
    if len(dense) > 1:
        return tf.add_n(dense)
    return dense[0] if dense else None


def as_array(variable: keras.Variable) -> Array:
    """A copy of the variable's value in its true format."""
    return np.array(variable.numpy())


class SegmentCounts:
    """Counters of segments: a variable for each, which every forward of the segment increments."""

    def __init__(self) -> None:
        self._of_segments: list[tf.Variable] = []

    def __call__(self, number: int | None) -> Begins:
        """Creates the variable of a segment; variables of inner segments are not in `read`."""
        calls = tf.Variable(0, trainable=False, dtype=tf.int64)
        if number is not None:
            self._of_segments.append(calls)
        return lambda _: calls.assign_add(1)

    def read(self) -> tuple[int, ...]:
        """Forwards of each segment."""
        return tuple(int(calls.numpy()) for calls in self._of_segments)


def run_traced(function: Callable[..., Any], *arguments: Any) -> tuple[Any, str]:
    """The result of a `tf.function` with one output, and the format in which the optimized graph computed it.

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


def graph_operations(ops: Sequence[str]) -> list[str]:
    """Names of the operations in TensorFlow's graph, which its rewrite lists use."""
    result: set[str] = set()
    for op in ops:
        arrays = CATALOGUE[op]()
        function = in_a_layer(op, arrays)
        traced = tf.function(lambda *args, function=function: function(list(args)), autograph=False)
        graph = traced.get_concrete_function(*(tf.TensorSpec(array.shape, array.dtype) for array in arrays)).graph
        result |= {node.type for node in graph.get_operations()}
    return sorted(result - _FORMLESS)


def run_op(op: str, arrays: tuple[Array, ...], mode: str) -> OpResult:
    """Runs one operation in a new layer, which has the present policy, in the way that `mode` runs a step.

    Raises:
        KeyError: there is no operation of this name.
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
    """Value and gradients of Σ tanh(x·w) for x (n, m) and w (m, k), called in the way of `case`.

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
    """The gradients of the operation of `fixtures.model`; `tf.custom_gradient` cannot ask which inputs are frozen."""

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


def _source(tensor: Any) -> Any:
    """The tensor behind identities, in which custom gradients wrap their inputs and outputs."""
    while tensor.op.type in ("Identity", "IdentityN"):
        tensor = tensor.op.inputs[tensor.value_index]
    return tensor


def captured_bytes(loss: Callable[..., tf.Tensor], batch: Batch) -> int:
    """Bytes of the tensors that the backward of `loss` takes from its forward, for the shapes of `batch`.

    TensorFlow differentiates a `tf.function` by making its forward return every intermediate value that its backward
    reads; those outputs are counted, without parameters, inputs and constants, but with a parameter's copy in another
    format. The two halves have no public name, so this reads the attribute that `tf.GradientTape` uses.
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
