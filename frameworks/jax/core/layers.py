"""The fixture model as Linen modules, its arrays and losses, and the suite's operations in JAX."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn
from jax import lax
from jax.custom_derivatives import SymbolicZero

from fixtures import model as fixture
from fixtures.arrays import Array
from fixtures.model import Again, Batch, Head, Model
from fixtures.recipe import Recompute
from frameworks.base import Bounds, inner_bounds, segment_bounds
from frameworks.contract import FunctionFormat
from frameworks.jax.core import ways
from frameworks.jax.core.settings import Flat, Place

_IMAGES = ("NHWC", "HWIO", "NHWC")


def _apply_norm(x: jax.Array, module: nn.Module) -> jax.Array:
    return jnp.asarray(module.apply({}, x))


def _dropout(x: jax.Array) -> jax.Array:
    return jnp.asarray(nn.Dropout(0.5, deterministic=False).apply({}, x, rngs={"dropout": jax.random.key(0)}))


def _attention(query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
    q, k, v = (x[:, :, None] for x in (query, key, value))
    return jax.nn.dot_product_attention(q, k, v)[:, :, 0]


def _instance_norm(x: jax.Array) -> jax.Array:
    """Instance norm of (channels, positions) of one sample; Linen has channels last."""
    return _apply_norm(x.T[None], nn.InstanceNorm(epsilon=1e-5, use_bias=False, use_scale=False))[0].T


def _pool(pool: Callable[..., jax.Array], x: jax.Array) -> jax.Array:
    return pool(x, (2, 2), strides=(2, 2))


OPERATIONS: dict[str, Callable[..., jax.Array]] = {
    "matmul": jnp.matmul,
    "batched_matmul": jnp.matmul,
    "einsum": lambda a, b: jnp.einsum("ij,jk->ik", a, b),
    "linear": lambda x, weight, bias: x @ weight + bias,
    "conv2d": lambda x, kernel: lax.conv_general_dilated(x, kernel, (1, 1), "VALID", dimension_numbers=_IMAGES),
    "attention": _attention,
    "sum": jnp.sum,
    "mean": jnp.mean,
    "variance": jnp.var,
    "norm": lambda x: jnp.linalg.norm(x.ravel()),
    "prod": jnp.prod,
    "max": jnp.max,
    "cumsum": lambda x: jnp.cumsum(x, -1),
    "cumprod": lambda x: jnp.cumprod(x, -1),
    "logsumexp": lambda x: jax.nn.logsumexp(x, -1),
    "softmax": jax.nn.softmax,
    "log_softmax": jax.nn.log_softmax,
    "cross_entropy": lambda x, ids: optax.softmax_cross_entropy_with_integer_labels(x, ids).mean(),
    "squared_error": lambda a, b: optax.squared_error(a, b).mean(),
    "absolute_error": lambda a, b: jnp.abs(a - b).mean(),
    "huber": lambda a, b: optax.huber_loss(a, b).mean(),
    "kl_divergence": lambda logarithms, x: optax.losses.kl_divergence(logarithms, x).mean(),
    "binary_cross_entropy_logits": lambda x, y: optax.sigmoid_binary_cross_entropy(x, y).mean(),
    "layer_norm": lambda x: _apply_norm(x, nn.LayerNorm(epsilon=1e-5, use_bias=False, use_scale=False)),
    "batch_norm": lambda x: jax.nn.standardize(x, axis=0, epsilon=1e-5),
    "instance_norm": _instance_norm,
    "rms_norm": lambda x: _apply_norm(x, nn.RMSNorm(epsilon=1e-5, use_scale=False)),
    "exp": jnp.exp,
    "expm1": jnp.expm1,
    "log": jnp.log,
    "log1p": jnp.log1p,
    "pow": lambda x: jnp.power(x, 3.0),
    "square": jnp.square,
    "sqrt": jnp.sqrt,
    "rsqrt": lax.rsqrt,
    "reciprocal": jnp.reciprocal,
    "abs": jnp.abs,
    "sin": jnp.sin,
    "cos": jnp.cos,
    "tanh": jnp.tanh,
    "sigmoid": jax.nn.sigmoid,
    "relu": jax.nn.relu,
    "leaky_relu": jax.nn.leaky_relu,
    "elu": jax.nn.elu,
    "gelu": lambda x: jax.nn.gelu(x, approximate=False),
    "silu": jax.nn.silu,
    "softplus": jax.nn.softplus,
    "erf": lax.erf,
    "add": jnp.add,
    "subtract": jnp.subtract,
    "multiply": jnp.multiply,
    "divide": jnp.divide,
    "maximum": jnp.maximum,
    "where": lambda a, b: jnp.where(a > 0, a, b),
    "concatenate": lambda a, b: jnp.concatenate([a, b], -1),
    "stack": lambda a, b: jnp.stack([a, b]),
    "max_pool": lambda x: _pool(nn.max_pool, x),
    "average_pool": lambda x: _pool(nn.avg_pool, x),
    "dropout": _dropout,
    "embedding": lambda ids, table: jnp.take(table, ids, axis=0),
    "gather_ids": lambda ids: ids + 0,
    "argmax": lambda x: jnp.argmax(x, -1),
    "transpose": lambda x: jnp.swapaxes(x, -1, -2),
    "reshape": jnp.ravel,
}


WAYS: dict[str, FunctionFormat] = {"custom_vjp": "input"}


@jax.custom_vjp
def square(x: jax.Array) -> jax.Array:
    """The operation of `fixtures.model.UserFunction`."""
    return x * x


def _forward(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    return x * x, x


def _backward(x: jax.Array, gradient: jax.Array) -> tuple[jax.Array]:
    return (gradient * jnp.clip(2.0 * x, -1.0, 1.0),)


square.defvjp(_forward, _backward)


def _pair(a: Any, b: Any, c: Any, scale: float, asked: list[tuple[bool, ...]]) -> tuple[Any, Any]:  # noqa: ARG001
    return scale * a * b, b + c


def _pair_forward(a: Any, b: Any, c: Any, scale: float, asked: list[tuple[bool, ...]]) -> tuple[Any, Any]:
    marks = tuple(() if argument.perturbed else None for argument in (a, b, c))
    return _pair(a.value, b.value, c.value, scale, asked), (a.value, b.value, marks)


def _pair_backward(scale: float, asked: list[tuple[bool, ...]], residuals: Any, gradients: Any) -> tuple[Any, ...]:
    a, b, marks = residuals
    needs = tuple(mark is not None for mark in marks)
    asked.append(needs)
    y, z = (jnp.zeros(gradient.shape) if isinstance(gradient, SymbolicZero) else gradient for gradient in gradients)
    every = (2.0 * scale * y * b, scale * y * a + z, z)
    return tuple(gradient if needed else None for gradient, needed in zip(every, needs, strict=True))


pair = jax.custom_vjp(_pair, nondiff_argnums=(3, 4))
"""The operation of `fixtures.model`. Each backward pass appends to `asked` which inputs need a gradient."""
pair.defvjp(_pair_forward, _pair_backward, symbolic_zeros=True)


_ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "relu": nn.relu,
    "gelu": lambda x: nn.gelu(x, approximate=False),
    "tanh": nn.tanh,
    "sigmoid": nn.sigmoid,
}


OUTPUTS, PERTURBATIONS = "intermediates", "perturbations"
"""Collections of Linen: values that modules sow, and zeros added to them, whose gradient is that of the value."""


def expose(module: nn.Module, name: str, value: jax.Array) -> jax.Array:
    """Returns the value, after sowing and perturbing it; both calls of Linen do nothing without their collection."""
    value = module.perturb(name, value, PERTURBATIONS)
    module.sow(OUTPUTS, name, value)
    return value


class PositionTable(nn.Module):
    """x + table in the computing format; the table is (length, width)."""

    length: int
    dtype: Any
    param_dtype: Any

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        shape = (self.length, x.shape[-1])
        table = self.param("embedding", nn.initializers.zeros_init(), shape, self.param_dtype)
        x, table = nn.dtypes.promote_dtype(x, table, dtype=self.dtype)
        return x + table


class Block(nn.Module):
    """One fixture layer that computes in `dtype` and keeps its parameters in `param_dtype`.

    Attributes:
        product: makes the matmul of dense layers, None for JAX's own.
        used: the block that `Again` calls.
    """

    layer: fixture.Layer
    dtype: Any
    param_dtype: Any
    product: Any = None
    used: Block | None = None

    def setup(self) -> None:
        formats = {"dtype": self.dtype, "param_dtype": self.param_dtype}
        self.inner: Any
        match self.layer:
            case fixture.Residual(body=body):
                self.body = [Block(part, self.dtype, self.param_dtype, self.product) for part in body]
            case fixture.Dense(units=units, bias=bias, wide=True):
                self.inner = nn.Dense(units, use_bias=bias, dtype=jnp.float32, param_dtype=jnp.float32)
            case fixture.Dense(units=units, bias=bias):
                self.inner = nn.Dense(units, use_bias=bias, dot_general_cls=self.product, **formats)
            case fixture.Convolution(filters=filters, size=size, stride=stride, padding=padding):
                self.inner = nn.Conv(filters, (size, size), strides=stride, padding=padding, **formats)
            case fixture.BatchNorm(momentum=momentum, epsilon=epsilon):
                self.inner = nn.BatchNorm(momentum=1.0 - momentum, epsilon=epsilon, **formats)
            case fixture.LayerNorm(epsilon=epsilon):
                self.inner = nn.LayerNorm(epsilon=epsilon, **formats)
            case fixture.Embedding(entries=entries, width=width):
                self.inner = nn.Embed(entries, width, **formats)
            case fixture.Positions(length=length):
                self.inner = PositionTable(length, **formats)
            case fixture.SelfAttention(heads=heads):
                self.inner = nn.MultiHeadDotProductAttention(heads, **formats)
            case fixture.Dropout(rate=rate):
                self.inner = nn.Dropout(rate)

    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        return expose(self, "output", self.output(x, train))

    def output(self, x: jax.Array, train: bool) -> jax.Array:
        """The layer's output, not passed to `expose`."""
        match self.layer:
            case fixture.Residual():
                y = x
                for part in self.body:
                    y = part(y, train)
                return x + y
            case fixture.BatchNorm():
                return self.inner(x, use_running_average=not train)
            case fixture.Dropout():
                return self.inner(x, deterministic=not train)
            case fixture.Activation(kind=kind):
                return _ACTIVATIONS[kind](x)
            case fixture.Flatten():
                return x.reshape((len(x), -1))
            case fixture.UserFunction():
                return square(x)
            case fixture.Again():
                assert self.used is not None
                return self.used.output(x, train)
            case fixture.MaxPool(size=size):
                return nn.max_pool(x, (size, size), strides=(size, size))
            case _:
                return self.inner(x)


_LINEAR = {"kernel": "weight", "bias": "bias"}
_PROJECTIONS = {"query": "query", "key": "key", "value": "value", "out": "output"}


def _places(layer: fixture.Layer) -> dict[str, str]:
    """The canonical name of each leaf of `layer`, a parameter or a statistic, by its path below `inner`."""
    match layer:
        case fixture.Dense() | fixture.Convolution():
            return _LINEAR
        case fixture.BatchNorm() | fixture.LayerNorm():
            return {"scale": "scale", "bias": "shift", "mean": "mean", "var": "variance"}
        case fixture.Embedding() | fixture.Positions():
            return {"embedding": "weight"}
        case fixture.SelfAttention():
            projections, leaves = _PROJECTIONS.items(), _LINEAR.items()
            return {f"{own}/{leaf}": f"{name}.{kind}" for own, name in projections for leaf, kind in leaves}
        case _:
            return {}


def names(layer: fixture.Layer, path: str, prefix: str) -> dict[str, str]:
    """Canonical names of the leaves of `layer` at `path`, inner layers included, by their joined path from `prefix`."""
    result = {f"{prefix}/inner/{key}": f"{path}.{name}" for key, name in _places(layer).items()}
    if isinstance(layer, fixture.Residual):
        for index, part in enumerate(layer.body):
            result |= names(part, f"{path}.body.{index}", f"{prefix}/body_{index}")
    return result


def output_places(layer: fixture.Layer, path: str, prefix: str) -> dict[str, str]:
    """Joined paths from `prefix` at which `expose` sows the outputs of `layer` and its inner layers, by layer path."""
    result = {path: f"{prefix}/output"}
    if isinstance(layer, fixture.Residual):
        for index, part in enumerate(layer.body):
            result |= output_places(part, f"{path}.body.{index}", f"{prefix}/body_{index}")
    return result


class DeviceBatch(NamedTuple):
    """A micro-batch, of NumPy or JAX arrays; targets of squared error have their head's format.

    Attributes:
        owners: (N,) by head name, for batches of several ranks: the rank of each sample, -1 for padding.
    """

    inputs: Any
    targets: dict[str, Any]
    mask: Any
    owners: Mapping[str, Any] | None = None


def load_batch(model: Model, batch: Batch) -> DeviceBatch:
    """The micro-batch as NumPy arrays; a compiled function moves them to the device of its other arguments."""
    last = len(model.layers) - 1
    kinds = dict(model.losses)
    targets = {
        name: array
        if kinds[name] == "cross_entropy"
        else array.astype(model.parameter_format(f"{last}.{name}."), copy=False)
        for name, array in batch.targets.items()
    }
    return DeviceBatch(batch.inputs, targets, batch.mask)


def item_losses(model: Model, outputs: dict[str, jax.Array], batch: DeviceBatch) -> dict[str, jax.Array]:
    """For each head that has a target, in model order: the loss of each item, in float32 or wider."""
    result = {}
    for name, kind in model.losses:
        if name in batch.targets:
            output = outputs[name].astype(jnp.promote_types(outputs[name].dtype, jnp.float32))
            if kind == "cross_entropy":
                losses = optax.softmax_cross_entropy_with_integer_labels(output, batch.targets[name])
            else:
                losses = optax.squared_error(output, batch.targets[name]).mean(-1)
            result[name] = losses
    return result


def loss_sums(model: Model, outputs: dict[str, jax.Array], batch: DeviceBatch) -> list[jax.Array]:
    """For each head that has a target, in model order: the sum of the losses of the items, in float32 or wider."""
    counts = None if batch.mask is None else batch.mask > 0
    return [jnp.sum(losses, where=counts) for losses in item_losses(model, outputs, batch).values()]


def loss_sums_of_ranks(model: Model, outputs: dict[str, jax.Array], batch: DeviceBatch, ranks: int) -> list[jax.Array]:
    """`loss_sums` for each rank: (ranks,) for each head."""
    assert batch.owners is not None
    sums = []
    for name, losses in item_losses(model, outputs, batch).items():
        own = jnp.expand_dims(batch.owners[name] == jnp.arange(ranks)[:, None], tuple(range(2, losses.ndim + 1)))
        counts = own if batch.mask is None else own & (batch.mask > 0)
        sums.append(
            jnp.sum(jnp.broadcast_to(losses, (ranks, *losses.shape)), tuple(range(1, losses.ndim + 1)), where=counts)
        )
    return sums


VARIANTS: dict[str, Callable[..., Any]] = {
    "nothing_saveable": jax.checkpoint_policies.nothing_saveable,
    "dots_saveable": jax.checkpoint_policies.dots_saveable,
}
"""Policies of `jax.checkpoint` by name, the default first."""


class Network(nn.Module):
    """The layers of a fixture model in `dtype`, parameters in `param_dtype`; float64 heads keep their own format.

    Each run of a recomputation segment in training calls `begun`, if given, with the segment's number. With a `history`
    dense layers multiply in float8; the scales follow the amax of that many steps.
    """

    model: Model
    dtype: Any = jnp.float32
    param_dtype: Any = jnp.float32
    recompute: Recompute | None = None
    begun: Callable[[int], object] | None = None
    history: int | None = None
    way: str = ""

    def setup(self) -> None:
        product = partial(nn.Fp8DirectDotGeneralOp, amax_history_length=self.history) if self.history else None
        layers: list[Block] = []
        for layer in self.model.layers[:-1]:
            used = layers[layer.at] if isinstance(layer, Again) else None
            layers.append(Block(layer, self.dtype, self.param_dtype, product, used))
        self.layers = layers
        self.heads = {
            head.name: nn.Dense(
                head.units,
                dtype=jnp.float64 if head.format == "float64" else self.dtype,
                param_dtype=jnp.float64 if head.format == "float64" else self.param_dtype,
                dot_general_cls=None if head.format == "float64" else product,
            )
            for head in self.model.heads.heads
            if head.tied is None
        }

    def _head(self, head: Head, x: jax.Array) -> jax.Array:
        return self.heads[head.name](x) if head.tied is None else self.layers[head.tied].inner.attend(x)

    def __call__(self, x: jax.Array, train: bool) -> dict[str, jax.Array]:
        recompute = self.recompute if train else None
        if recompute is None:
            x = self.segment(x, 0, train)
        else:
            for number in range(recompute.segments):
                x = self._recompute(Network.segment, x, number)
        return self.outputs(x)

    def outputs(self, x: jax.Array) -> dict[str, jax.Array]:
        """The output of each head."""
        return {head.name: expose(self, f"output_{head.name}", self._head(head, x)) for head in self.model.heads.heads}

    def segment(self, x: jax.Array, number: int, train: bool) -> jax.Array:
        """The layers of a segment."""
        if self.begun is not None and train:
            count_call(self.begun, number, x)
        start, stop = segments(self.model, self.recompute if train else None)[number]
        if self.recompute is None or self.recompute.depth == 1 or not train:
            return self._run(x, (start, stop), train)
        for inner in inner_bounds((start, stop)):
            x = self._recompute(Network._run, x, inner)
        return x

    def _run(self, x: jax.Array, bounds: Bounds, train: bool) -> jax.Array:
        for layer in self.layers[slice(*bounds)]:
            x = layer(x, train)
        return x

    def _recompute(self, run: Callable[..., jax.Array], x: jax.Array, which: int | Bounds) -> jax.Array:
        options = {"prevent_cse": False} if self.way == "no-cse-barrier" else {}
        policy = ways.policy(self.way, policy_of(self.recompute))
        lifted: jax.Array = nn.remat(run, policy=policy, static_argnums=(2, 3), **options)(self, x, which, True)
        return lifted


def forward_pass(network: Network, variables: Any, x: jax.Array, *, rngs: Any, mutable: list[str]) -> tuple[Any, Any]:
    """The network's training-mode outputs and changed collections, by one call or by one for each segment."""
    if network.way != "checkpointed-apply":
        return cast(tuple[Any, Any], network.apply(variables, x, train=True, rngs=rngs, mutable=mutable))
    apply = partial(network.apply, rngs=rngs, mutable=mutable)
    for number in range(len(segments(network.model, network.recompute))):
        run = partial(apply, number=number, train=True, method=Network.segment)
        x, changed = jax.checkpoint(run, policy=policy_of(network.recompute))(variables, x)
        variables = variables | changed
    return cast(tuple[Any, Any], apply(variables, x, method=Network.outputs))


def count_call(begun: Callable[[int], object], number: int, x: jax.Array) -> None:
    """Calls `begun` with a number in each pass; the callback depends on a value, so recomputation repeats it."""
    jax.debug.callback(lambda _: begun(number), x.ravel()[0])


def policy_of(recompute: Recompute | None) -> Callable[..., Any]:
    """The policy of a variant, the default one for none."""
    return VARIANTS[(recompute and recompute.variant) or next(iter(VARIANTS))]


def segments(model: Model, recompute: Recompute | None) -> tuple[Bounds, ...]:
    """Begin and end of each segment of a model's layers; a single segment if nothing is recomputed."""
    return segment_bounds(len(model.layers) - 1, recompute)


class Layout:
    """Conversion between a model's canonical arrays and the leaves of its variables.

    Attributes:
        parameters, buffers: joined path by canonical name, of parameters and of running statistics, in model order.
        outputs: joined path at which the output of a layer or head is sown, by the layer's path, in model order.
    """

    def __init__(self, model: Model, shapes: Mapping[str, Any]) -> None:
        result: dict[str, str] = {}
        sown: dict[str, str] = {}
        for index, layer in enumerate(model.layers[:-1]):
            result |= names(layer, str(index), f"layers_{index}")
            sown |= output_places(layer, str(index), f"layers_{index}")
        for head in model.heads.heads:
            path = f"{len(model.layers) - 1}.{head.name}"
            result |= {f"heads_{head.name}/kernel": f"{path}.weight", f"heads_{head.name}/bias": f"{path}.bias"}
            sown[path] = f"output_{head.name}"
        self.canonical = {path: name for path, name in result.items() if path in shapes}
        by_name = {name: path for path, name in self.canonical.items()}
        self._own = {path: struct.shape for path, struct in shapes.items()}
        self._wanted = model.parameter_shapes() | model.buffer_shapes()
        self.parameters = {name: by_name[name] for name in model.parameter_shapes()}
        self.buffers = {name: by_name[name] for name in model.buffer_shapes()}
        self.outputs = {path: sown[path] for path in model.output_shapes()}

    def leaf(self, name: str, array: Array, dtype: Any) -> Array:
        """A canonical array in the shape of its leaf, rounded to `dtype`.

        Raises:
            ValueError: the array does not have the canonical shape.
        """
        if np.shape(array) != self._wanted[name]:
            raise ValueError(f"{name}: {np.shape(array)} where {self._wanted[name]} is needed")
        path = (self.parameters | self.buffers)[name]
        return np.array(array, dtype=dtype).reshape(self._own[path])

    def arrays(self, leaves: Mapping[str, Any]) -> dict[str, Array]:
        """Leaves by joined path as canonical arrays by canonical name, in model order; others' sizes as they are."""
        every = self.parameters | self.buffers
        return {
            name: array.reshape(self._wanted[name]) if array.size == math.prod(self._wanted[name]) else array
            for name, array in ((name, np.array(leaves[path])) for name, path in every.items() if path in leaves)
        }


def leaves_of(layout: Layout, arrays: Mapping[str, Array], like: Mapping[str, Any], to: Place) -> Flat:
    """Canonical arrays as leaves on a device or sharding, in the formats of `like`.

    Raises:
        ValueError: a name is missing or a shape differs.
    """
    wanted = {name: path for name, path in (layout.parameters | layout.buffers).items() if path in like}
    if missing := sorted(wanted.keys() - arrays.keys()):
        raise ValueError(f"there is no array for {missing[0]}")
    return {
        path: jax.device_put(layout.leaf(name, arrays[name], like[path].dtype), to) for name, path in wanted.items()
    }
