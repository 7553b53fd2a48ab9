"""The fixture model as Linen modules: layers, losses, recomputed segments, and where each keeps its parameters."""

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

from fixtures import model as fixture
from fixtures.arrays import Array
from fixtures.model import Again, Batch, Head, Model
from fixtures.recipe import Recompute
from frameworks.base import Bounds, inner_bounds, segment_bounds
from frameworks.jax.core import ways
from frameworks.jax.core.arrays import Flat, Place, to_array
from frameworks.jax.core.float8 import product_of
from frameworks.jax.core.operations import square

_ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "relu": nn.relu,
    "gelu": lambda x: nn.gelu(x, approximate=False),
    "tanh": nn.tanh,
    "sigmoid": nn.sigmoid,
}


OUTPUTS, PERTURBATIONS = "intermediates", "perturbations"
"""Collections of Linen: what modules sow on the way, and zeros added there, whose gradient is that of the sum."""


def expose(module: nn.Module, name: str, value: jax.Array) -> jax.Array:
    """The value as it is, seen by who asks for either collection; without them both calls of Linen do nothing."""
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
        product: makes the product of dense layers, None for JAX's own.
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
        """The layer's output, not shown."""
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
    """The canonical name of each leaf of `layer`, a parameter or a statistic, by its place below `inner`."""
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
    """Where `expose` has the output of `layer` and of the layers inside it: joined path from `prefix`, by path."""
    result = {path: f"{prefix}/output"}
    if isinstance(layer, fixture.Residual):
        for index, part in enumerate(layer.body):
            result |= output_places(part, f"{path}.body.{index}", f"{prefix}/body_{index}")
    return result


class DeviceBatch(NamedTuple):
    """A micro-batch, of NumPy or JAX arrays; targets of squared error have their head's format.

    Attributes:
        owners: (N,) by head name, where several ranks have a part of the batch: whose sample each is, -1 for nobody's.
    """

    inputs: Any
    targets: dict[str, Any]
    mask: Any
    owners: Mapping[str, Any] | None = None


def load_batch(model: Model, batch: Batch) -> DeviceBatch:
    """The micro-batch as NumPy arrays; a compiled function puts them where its other arguments lie."""
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
"""Policies of `jax.checkpoint` by name, its default first."""


class Network(nn.Module):
    """The layers of a fixture model in `dtype`, parameters in `param_dtype`; float64 heads keep their own format.

    Each run of a recomputation segment in training calls `begun` with the segment's number, where there is one. With a
    `history` dense layers multiply in float8, by scales that follow as many steps.
    """

    model: Model
    dtype: Any = jnp.float32
    param_dtype: Any = jnp.float32
    recompute: Recompute | None = None
    begun: Callable[[int], object] | None = None
    history: int | None = None
    way: str = ""

    def setup(self) -> None:
        product = product_of(self.history)
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
    """The network's training-mode outputs and changed collections, by way of one call or of one for each segment."""
    if network.way != "checkpointed-apply":
        return cast(tuple[Any, Any], network.apply(variables, x, train=True, rngs=rngs, mutable=mutable))
    apply = partial(network.apply, rngs=rngs, mutable=mutable)
    for number in range(len(segments(network.model, network.recompute))):
        run = partial(apply, number=number, train=True, method=Network.segment)
        x, changed = jax.checkpoint(run, policy=policy_of(network.recompute))(variables, x)
        variables = variables | changed
    return cast(tuple[Any, Any], apply(variables, x, method=Network.outputs))


def count_call(begun: Callable[[int], object], number: int, x: jax.Array) -> None:
    """Calls `begun` with a number when a pass comes here, by a value of the pass, so that recomputation repeats it."""
    jax.debug.callback(lambda _: begun(number), x.ravel()[0])


def policy_of(recompute: Recompute | None) -> Callable[..., Any]:
    """The policy of a variant, the default one for none."""
    return VARIANTS[(recompute and recompute.variant) or next(iter(VARIANTS))]


def segments(model: Model, recompute: Recompute | None) -> tuple[Bounds, ...]:
    """Where the segments of a model's layers begin and end; one of all where nothing is recomputed."""
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
            ValueError: it has not the canonical shape.
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
            for name, array in ((name, to_array(leaves[path])) for name, path in every.items() if path in leaves)
        }


def leaves_of(layout: Layout, arrays: Mapping[str, Array], like: Mapping[str, Any], to: Place) -> Flat:
    """Canonical arrays as leaves in a place, in the formats of `like`.

    Raises:
        ValueError: a name is missing or a shape differs.
    """
    wanted = {name: path for name, path in (layout.parameters | layout.buffers).items() if path in like}
    if missing := sorted(wanted.keys() - arrays.keys()):
        raise ValueError(f"there is no array for {missing[0]}")
    return {
        path: jax.device_put(layout.leaf(name, arrays[name], like[path].dtype), to) for name, path in wanted.items()
    }
