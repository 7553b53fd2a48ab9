"""The fixture model in Paddle: layers, losses, recomputed segments, operations, and traces.

The same network runs in dynamic and in static mode. Its parameters are found by their canonical names.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from operator import add as add_two
from typing import Any

import numpy as np
import paddle
import paddle.nn.functional as F
from paddle.distributed.fleet.utils import recompute
from paddle.incubate.distributed.fleet import recompute_sequential

from fixtures import model as fixture
from fixtures.arrays import Array
from fixtures.model import SCALE, Batch, BatchNorm, FunctionUse, Model
from fixtures.recipe import Recompute
from frameworks.base import inner_bounds, segment_bounds, unscaled_in_trace
from frameworks.base.recompute import FACTOR, NO_GRAD_INPUT, WEIGHTS_CHANGE, FailingRerun, recomputed_call
from frameworks.contract import FunctionResult, LayerTrace, RecomputeCase, RecomputeResult
from frameworks.paddle.core.settings import to_numpy, to_paddle_layout

REENTRANT, HOOKS = "reentrant", "non-reentrant"
"""Recomputation variants, Paddle's default first."""
_ACTIVATIONS: dict[str, Callable[[], Any]] = {
    "relu": paddle.nn.ReLU,
    "gelu": paddle.nn.GELU,
    "tanh": paddle.nn.Tanh,
    "sigmoid": paddle.nn.Sigmoid,
}
_PROJECTIONS = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "output": "out_proj"}
_MISSING_KERNEL = re.compile(
    r"""\(NotFound\)\ The\ kernel\ .*           # dynamic mode
    | Check\ data\ type\ error\ for\ op[^(]*    # the static graph's verifier
    | The\ data\ type\ of\ .*\ must\ be\ .*,\ but\ received\ .*  # a Python function's own check
    """,
    re.VERBOSE,
)
_LONGEST = 160  # characters of a message
_NAMES_IN_LISTS: dict[str, tuple[str, ...]] = {
    "matmul": ("matmul", "matmul_v2"),
    "linear": ("matmul", "matmul_v2", "linear_v2"),
    "batched_matmul": ("bmm",),
    "attention": ("matmul", "matmul_v2", "flash_attn"),
    "sum": ("sum", "reduce_sum"),
    "mean": ("mean", "reduce_mean"),
    "variance": ("mean", "reduce_mean"),
    "prod": ("prod", "reduce_prod"),
    "max": ("max", "reduce_max"),
    "norm": ("p_norm", "pnorm"),
    "cross_entropy": ("cross_entropy_with_softmax", "softmax_with_cross_entropy", "cross_entropy"),
    "binary_cross_entropy_logits": ("sigmoid_cross_entropy_with_logits",),
    "max_pool": ("pool2d",),
    "average_pool": ("pool2d",),
    "concatenate": ("concat",),
    "transpose": ("transpose", "transpose2"),
    "embedding": ("embedding", "lookup_table_v2"),
    "add": ("add", "elementwise_add"),
    "multiply": ("multiply", "elementwise_mul"),
}


def _multiply_by_slope(x: Any, gradient: Any) -> Any:
    return gradient * paddle.clip(2.0 * x, -1.0, 1.0)


class _Square(paddle.autograd.PyLayer):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        (x,) = ctx.saved_tensor()
        return _multiply_by_slope(x, gradient)


class UserFunctionLayer(paddle.nn.Layer):
    """`fixtures.model.UserFunction`."""

    def forward(self, x: Any) -> Any:
        if paddle.in_dynamic_mode():
            return _Square.apply(x)
        return paddle.static.nn.static_pylayer(
            lambda value: value * value, [x], lambda grad: _multiply_by_slope(x, grad)
        )


class ThreeInputsPyLayer(paddle.autograd.PyLayer):
    """The operation of `fixtures.model`; each backward pass appends to `asked` which inputs need a gradient."""

    @staticmethod
    def forward(ctx: Any, a: Any, b: Any, c: Any, scale: float, asked: list[tuple[bool, ...]]) -> Any:
        ctx.save_for_backward(a, b, c)
        ctx.scale, ctx.asked = scale, asked
        return scale * a * b, b + c

    @staticmethod
    def backward(ctx: Any, y: Any, z: Any) -> Any:
        a, b, _ = saved = ctx.saved_tensor()
        needs = tuple(not tensor.stop_gradient for tensor in saved)
        ctx.asked.append(needs)
        gradients = (2.0 * ctx.scale * y * b, ctx.scale * y * a + z, z)
        return tuple(gradient if needed else None for gradient, needed in zip(gradients, needs, strict=True))


class PositionTable(paddle.nn.Layer):
    """Adds a learned table (length, width) to x (N, length, width)."""

    def __init__(self, length: int, width: int) -> None:
        super().__init__()
        self.weight = self.create_parameter([length, width])

    def forward(self, x: Any) -> Any:
        return x + self.weight


class WideLinear(paddle.nn.Layer):
    """A float64 linear layer that stays outside low precision; x (..., inputs) is cast to float64."""

    def __init__(self, inputs: int, units: int) -> None:
        super().__init__()
        self.weight = self.create_parameter([inputs, units], dtype="float64")
        self.bias = self.create_parameter([units], dtype="float64", is_bias=True)

    def forward(self, x: Any) -> Any:
        with paddle.amp.auto_cast(enable=False):
            return F.linear(x.astype("float64"), self.weight, self.bias)


class Float32Linear(paddle.nn.Linear):
    """A linear layer in float32: a region without auto_cast."""

    def forward(self, x: Any) -> Any:
        with paddle.amp.auto_cast(enable=False):
            return super().forward(x.astype("float32"))


class Shortcut(paddle.nn.Layer):
    """x + body(x)."""

    def __init__(self, body: list[Any]) -> None:
        super().__init__()
        self.body = paddle.nn.LayerList(body)

    def forward(self, x: Any) -> Any:
        y = x
        for layer in self.body:
            y = layer(y)
        return x + y


class UsedAgain(paddle.nn.Layer):
    """Calls a layer that an earlier index of the network owns; it is no sublayer of this one."""

    def __init__(self, used: Any) -> None:
        super().__init__()
        self._used = (used,)

    def forward(self, x: Any) -> Any:
        return self._used[0](x)


class TiedHead(paddle.nn.Layer):
    """The product with an embedding's table, transposed."""

    def __init__(self, embedding: Any) -> None:
        super().__init__()
        self.weight = embedding.weight

    def forward(self, x: Any) -> Any:
        return paddle.matmul(x, self.weight, transpose_y=True)


def _head(head: fixture.Head, inputs: int, before: Sequence[Any]) -> Any:
    if head.tied is not None:
        return TiedHead(before[head.tied])
    return WideLinear(inputs, head.units) if head.format == "float64" else paddle.nn.Linear(inputs, head.units)


def build_layer(layer: fixture.Layer, shape: fixture.Shape, before: Sequence[Any] = ()) -> Any:
    """The Paddle layer for `layer`, for samples of `shape` (no batch axis), after the Paddle layers `before`."""
    width = shape[-1]
    match layer:
        case fixture.Dense(units=units, bias=bias, wide=True):
            return Float32Linear(width, units, bias_attr=None if bias else False)
        case fixture.Dense(units=units, bias=bias):
            return paddle.nn.Linear(width, units, bias_attr=None if bias else False)
        case fixture.Convolution():
            options: dict[str, Any] = {"stride": layer.stride, "padding": layer.padding, "data_format": "NHWC"}
            return paddle.nn.Conv2D(width, layer.filters, layer.size, **options)
        case fixture.BatchNorm():
            common: dict[str, Any] = {"momentum": 1.0 - layer.momentum, "epsilon": layer.epsilon}
            if len(shape) == 3:
                return paddle.nn.BatchNorm2D(width, data_format="NHWC", **common)
            return paddle.nn.BatchNorm1D(width, data_format="NLC" if len(shape) == 2 else "NC", **common)
        case fixture.LayerNorm(epsilon=epsilon):
            return paddle.nn.LayerNorm(width, epsilon=epsilon)
        case fixture.Embedding(entries=entries, width=columns):
            return paddle.nn.Embedding(entries, columns)
        case fixture.Positions(length=length):
            return PositionTable(length, width)
        case fixture.SelfAttention(heads=heads):
            return paddle.nn.MultiHeadAttention(width, heads)
        case fixture.Dropout(rate=rate):
            return paddle.nn.Dropout(rate)
        case fixture.Activation(kind=kind):
            return _ACTIVATIONS[kind]()
        case fixture.Flatten():
            return paddle.nn.Flatten()
        case fixture.MaxPool(size=size):
            return paddle.nn.MaxPool2D(size, size, data_format="NHWC")
        case fixture.Residual(body=body):
            return Shortcut(list(build_layers(body, shape)))
        case fixture.Again(at=at):
            return UsedAgain(before[at])
        case fixture.UserFunction():
            return UserFunctionLayer()
        case fixture.Heads(heads=parts):
            return paddle.nn.LayerDict({part.name: _head(part, width, before) for part in parts})


def build_layers(layers: tuple[fixture.Layer, ...], shape: fixture.Shape) -> Iterator[Any]:
    """Yields the Paddle layers in order, for samples of this shape (no batch axis)."""
    built: list[Any] = []
    for layer in layers:
        built.append(build_layer(layer, shape, built))
        yield built[-1]
        shape = fixture.output_shape(layer, shape)


def with_paths(
    layers: tuple[fixture.Layer, ...], built: list[Any], prefix: str = ""
) -> Iterator[tuple[str, fixture.Layer, Any]]:
    """Yields path, fixture layer and Paddle layer of every layer, followed by those of its inner layers."""
    for index, (layer, paddle_layer) in enumerate(zip(layers, built, strict=True)):
        path = f"{prefix}{index}"
        yield path, layer, paddle_layer
        if isinstance(layer, fixture.Residual):
            yield from with_paths(layer.body, list(paddle_layer.body), f"{path}.body.")


def own_parameters(layer: fixture.Layer, paddle_layer: Any) -> dict[str, Any]:
    """Paddle's parameters of one layer, without those of inner layers, by their names in the fixture."""
    match layer:
        case fixture.BatchNorm() | fixture.LayerNorm():
            return {"scale": paddle_layer.weight, "shift": paddle_layer.bias}
        case fixture.SelfAttention():
            linears = {name: getattr(paddle_layer, attribute) for name, attribute in _PROJECTIONS.items()}
            weights = {f"{name}.weight": linear.weight for name, linear in linears.items()}
            return weights | {f"{name}.bias": linear.bias for name, linear in linears.items()}
        case fixture.Heads(heads=heads):
            own = [head for head in heads if head.tied is None]
            return {f"{h.name}.{kind}": getattr(paddle_layer[h.name], kind) for kind in ("weight", "bias") for h in own}
        case fixture.Dense(bias=bias):
            return {"weight": paddle_layer.weight, **({"bias": paddle_layer.bias} if bias else {})}
        case fixture.Convolution():
            return {"weight": paddle_layer.weight, "bias": paddle_layer.bias}
        case fixture.Embedding() | fixture.Positions():
            return {"weight": paddle_layer.weight}
        case _:
            return {}


@dataclass(frozen=True)
class BatchTensors:
    """A `Batch` on the device, in the same shapes; `targets` has the heads that have any, by name, in model order."""

    inputs: Any
    targets: dict[str, Any]
    mask: Any | None


def batch_tensors(model: Model, batch: Batch) -> BatchTensors:
    """The batch as tensors; targets of squared error have the format of their head."""
    kinds = dict(model.losses)
    targets = {}
    for head in model.heads.heads:
        if head.name in batch.targets:
            target = np.asarray(batch.targets[head.name])
            if kinds[head.name] == "squared_error":
                target = target.astype(np.float64 if head.format == "float64" else np.float32)
            targets[head.name] = paddle.to_tensor(target)
    mask = None if batch.mask is None else paddle.to_tensor(batch.mask)
    return BatchTensors(paddle.to_tensor(batch.inputs), targets, mask)


def add(values: list[Any]) -> Any:
    """Sum of scalars, in the widest of their formats."""
    return reduce(add_two, values)


def item_losses(kind: str, output: Any, target: Any) -> Any:
    """Losses (...) of an output (..., units): cross-entropy with integer labels, or mean squared error of the units."""
    if kind == "cross_entropy":
        return F.cross_entropy(output, target, reduction="none")
    return F.mse_loss(output, target, reduction="none").mean(-1)


class Segment(paddle.nn.Layer):
    """A run of consecutive layers; `calls` counts how often its forward has begun."""

    def __init__(self, parts: list[Any]) -> None:
        super().__init__()
        self.parts = paddle.nn.LayerList(parts)
        self.calls = 0

    def forward(self, x: Any) -> Any:
        self.calls += 1
        for part in self.parts:
            x = part(x)
        return x


class RecomputedSegment(paddle.nn.Layer):
    """Calls a segment through `paddle.distributed.fleet.utils.recompute`."""

    def __init__(self, segment: Segment, variant: str) -> None:
        super().__init__()
        self.segment = segment
        self.reentrant = variant == REENTRANT

    def forward(self, x: Any) -> Any:
        return recompute(self.segment, x, use_reentrant=self.reentrant)


def cut(layers: list[Any], plan: Recompute | None) -> tuple[list[Any], list[Segment]]:
    """The layers as callables to run in order, and the outer segments that these run, whose calls are counted.

    With `plan.depth` 2 each half of a segment is recomputed inside the segment's own recomputation; a segment of one
    layer has one half.
    """
    if plan is None:
        whole = Segment(layers)
        return [whole], [whole]
    variant = plan.variant or REENTRANT
    segments: list[Segment] = []
    for start, stop in segment_bounds(len(layers), plan):
        parts = layers[start:stop]
        if plan.depth == 2:
            halves = [layers[first:last] for first, last in inner_bounds((start, stop))]
            parts = [RecomputedSegment(Segment(half), variant) for half in halves]
        segments.append(Segment(parts))
    return [RecomputedSegment(segment, variant) for segment in segments], segments


class Network(paddle.nn.Layer):
    """A fixture model in Paddle; `forward` returns the outputs of the requested heads, by name.

    `layers_by_path` has every layer by its path in `Model.output_shapes`, in another order.
    """

    def __init__(self, model: Model, plan: Recompute | None = None, *, sequential: bool = False) -> None:
        super().__init__()
        self._sequential = sequential and plan is not None
        *body, heads = build_layers(model.layers, model.sample)
        self.is_reentrant = plan is not None and plan.variant in (None, REENTRANT)
        runs, self.segments = cut(body, plan)
        self.runs = paddle.nn.LayerList(runs)
        self.heads = heads
        self.named = name_parameters(model, body, heads)
        self.statistics = {
            f"{path}.{name}": getattr(paddle_layer, f"_{name}")
            for path, layer, paddle_layer in with_paths(model.layers[:-1], body)
            if isinstance(layer, BatchNorm)
            for name in ("mean", "variance")
        }
        self.layers_by_path = {path: layer for path, _, layer in with_paths(model.layers[:-1], body)}
        self.layers_by_path |= {f"{len(body)}.{head.name}": heads[head.name] for head in model.heads.heads}

    def assign(self, weights: Mapping[str, Array]) -> None:
        """Sets every parameter, by its canonical name."""
        for name, parameter in self.named.items():
            parameter.set_value(to_paddle_layout(np.asarray(weights[name])))

    def forward(self, x: Any, heads: tuple[str, ...]) -> dict[str, Any]:
        if self._sequential:
            options = {"segments": len(self.segments)}
            x = recompute_sequential(options, list(self.segments), x, use_reentrant=self.is_reentrant)
        else:
            for run in self.runs:
                x = run(x)
        return {name: self.heads[name](x) for name in heads}


def name_parameters(model: Model, body: list[Any], heads: Any) -> dict[str, Any]:
    """The parameters by canonical name, in model order; the weights of quantized layers are codes."""
    result = {
        f"{path}.{name}": parameter
        for path, layer, paddle_layer in with_paths(model.layers, [*body, heads])
        for name, parameter in own_parameters(layer, paddle_layer).items()
    }
    return {name: result[name] for name in model.parameter_shapes()}


def _value(x: Any, w: Any) -> Any:
    return paddle.tanh(paddle.matmul(x, w)).sum()


def run_case(case: RecomputeCase, x: Array, w: Array, variant: str) -> RecomputeResult:
    """Value and gradients of the probe function sum(tanh(x @ w)); x (n, m) and w (m, k) float32.

    Raises:
        OSError: in the case "raises"; Paddle raises it for an error in the recomputed forward pass.
    """
    rerun = FailingRerun()

    def run(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return recompute(function, *args, use_reentrant=variant == REENTRANT, **kwargs)

    def failing(a: Any, b: Any) -> Any:
        rerun.begin()
        return _value(a, b)

    inputs, weight = paddle.to_tensor(x), paddle.to_tensor(w)
    inputs.stop_gradient = case == NO_GRAD_INPUT
    weight.stop_gradient = False
    value = recomputed_call(case, run, _value, failing, inputs, weight)
    if case == WEIGHTS_CHANGE:
        with paddle.no_grad():
            weight.multiply_(paddle.to_tensor(FACTOR))
    if not value.stop_gradient:
        value.backward()
    grads = [None if tensor.grad is None else to_numpy(tensor.grad) for tensor in (inputs, weight)]
    return RecomputeResult(float(value), *grads)


def function_used(use: FunctionUse, inputs: tuple[Array, ...], variant: str | None) -> FunctionResult:
    """Which inputs of the operation of `fixtures.model` need a gradient in each backward pass, and the gradients."""
    asked: list[tuple[bool, ...]] = []
    tensors = [paddle.to_tensor(x, stop_gradient=not need) for x, need in zip(inputs, use.needs, strict=True)]

    def loss(*arguments: Any) -> Any:
        results = [
            dict(zip("yz", ThreeInputsPyLayer.apply(*arguments, SCALE, asked), strict=True)) for _ in range(use.times)
        ]
        return paddle.add_n([outputs[name].sum() for outputs in results for name in use.outputs])

    value = loss(*tensors) if variant is None else recompute(loss, *tensors, use_reentrant=variant == REENTRANT)
    value.backward()
    return FunctionResult(
        tuple(asked), tuple(None if tensor.grad is None else to_numpy(tensor.grad) for tensor in tensors)
    )


def _batch_norm(x: Any) -> Any:
    width = x.shape[-1]
    return F.batch_norm(x, paddle.zeros([width]), paddle.ones([width]), training=True)


OPERATIONS: dict[str, Callable[..., Any]] = {
    "matmul": paddle.matmul,
    "batched_matmul": paddle.bmm,
    "einsum": lambda a, b: paddle.einsum("ij,jk->ik", a, b),
    "linear": F.linear,
    "conv2d": lambda x, weight: F.conv2d(x, weight.transpose([3, 2, 0, 1]), data_format="NHWC"),
    "attention": lambda *qkv: F.scaled_dot_product_attention(*(x.unsqueeze(2) for x in qkv)).squeeze(2),
    "sum": paddle.sum,
    "mean": paddle.mean,
    "variance": lambda x: paddle.var(x, unbiased=False),
    "norm": lambda x: paddle.linalg.norm(x, p=2),
    "prod": paddle.prod,
    "max": paddle.max,
    "cumsum": lambda x: paddle.cumsum(x, axis=-1),
    "cumprod": lambda x: paddle.cumprod(x, dim=-1),
    "logsumexp": lambda x: paddle.logsumexp(x, axis=-1),
    "softmax": F.softmax,
    "log_softmax": F.log_softmax,
    "cross_entropy": F.cross_entropy,
    "squared_error": F.mse_loss,
    "absolute_error": F.l1_loss,
    "huber": F.smooth_l1_loss,
    "kl_divergence": lambda a, b: F.kl_div(a, b, reduction="batchmean"),
    "binary_cross_entropy_logits": F.binary_cross_entropy_with_logits,
    "layer_norm": lambda x: F.layer_norm(x, [x.shape[-1]]),
    "batch_norm": _batch_norm,
    "instance_norm": lambda x: F.instance_norm(x.unsqueeze(0)).squeeze(0),
    "rms_norm": lambda x: F.rms_norm(x, [x.shape[-1]]),
    "exp": paddle.exp,
    "expm1": paddle.expm1,
    "log": paddle.log,
    "log1p": paddle.log1p,
    "pow": lambda x: paddle.pow(x, 3.0),
    "square": paddle.square,
    "sqrt": paddle.sqrt,
    "rsqrt": paddle.rsqrt,
    "reciprocal": paddle.reciprocal,
    "abs": paddle.abs,
    "sin": paddle.sin,
    "cos": paddle.cos,
    "tanh": paddle.tanh,
    "sigmoid": F.sigmoid,
    "relu": F.relu,
    "leaky_relu": F.leaky_relu,
    "elu": F.elu,
    "gelu": F.gelu,
    "silu": F.silu,
    "softplus": F.softplus,
    "erf": paddle.erf,
    "add": paddle.add,
    "subtract": paddle.subtract,
    "multiply": paddle.multiply,
    "divide": paddle.divide,
    "maximum": paddle.maximum,
    "where": lambda a, b: paddle.where(a > 0, a, b),
    "concatenate": lambda a, b: paddle.concat([a, b], axis=-1),
    "stack": lambda a, b: paddle.stack([a, b]),
    "max_pool": lambda x: F.max_pool2d(x, 2, data_format="NHWC"),
    "average_pool": lambda x: F.avg_pool2d(x, 2, data_format="NHWC"),
    "dropout": lambda x: F.dropout(x, 0.5, training=True),
    "embedding": F.embedding,
    "gather_ids": lambda ids: ids + 0,
    "argmax": lambda x: paddle.argmax(x, axis=-1),
    "transpose": paddle.t,
    "reshape": paddle.flatten,
}


def listed_names(op: str) -> tuple[str, ...]:
    """An operation's names in Paddle's white and black lists, in dynamic mode and in the static graph."""
    return _NAMES_IN_LISTS.get(op, (op,))


def missing_kernel(error: Exception) -> str | None:
    """Paddle's message, in one line, that an operation has no kernel for a format here; None for any other error."""
    result = _MISSING_KERNEL.search(str(error))
    if result is None:
        return None
    line = " ".join(result[0].split())
    return line if len(line) <= _LONGEST else line[: _LONGEST - 1] + "…"


class Watch:
    """Records the outputs of layers by path, and the gradients of these outputs, summed over backward passes.

    For a recomputed layer it has the output of the first run, and the gradient of the run that the backward pass uses.
    """

    def __init__(self) -> None:
        self.outputs: dict[str, Array] = {}
        self.gradients: dict[str, Array] = {}

    def hook(self, path: str) -> Callable[[Any, Any, Any], None]:
        """A forward post-hook for the layer at `path`."""

        def take(_layer: Any, _inputs: Any, output: Any) -> None:
            self.outputs.setdefault(path, to_numpy(output))
            if not paddle.is_grad_enabled():
                return
            output.stop_gradient = False  # layers before the first parameter need a gradient too
            output.register_hook(lambda gradient: self._add(path, to_numpy(gradient)))

        return take

    def _add(self, path: str, gradient: Array) -> None:
        self.gradients[path] = self.gradients[path] + gradient if path in self.gradients else gradient

    def trace(self, model: Model, parameters: dict[str, Array], scale: float) -> LayerTrace:
        """The recorded outputs and gradients in the model's order; gradients are divided by the loss scale."""
        paths = model.output_shapes()
        outputs = {path: self.outputs[path] for path in paths if path in self.outputs}
        gradients = {path: unscaled_in_trace(self.gradients[path], scale) for path in paths if path in self.gradients}
        return LayerTrace(outputs, gradients, parameters)


@contextmanager
def hook_layers(layers: Mapping[str, Any], hook: Callable[[str], Callable[[Any, Any, Any], None]]) -> Iterator[None]:
    """Within the context, each layer, by path, has a forward post-hook.

    The hooks ignore the second use of a layer, its call by `UsedAgain`.
    """
    again = [layer for layer in layers.values() if isinstance(layer, UsedAgain)]
    inside: set[Any] = set()

    def outermost(take: Callable[[Any, Any, Any], None]) -> Callable[[Any, Any, Any], None]:
        def take_outermost(layer: Any, inputs: Any, output: Any) -> None:
            inside.discard(layer)
            if not inside:
                take(layer, inputs, output)

        return take_outermost

    handles = [layer.register_forward_pre_hook(lambda layer, _: inside.add(layer)) for layer in again]
    handles += [layer.register_forward_post_hook(outermost(hook(path))) for path, layer in layers.items()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
