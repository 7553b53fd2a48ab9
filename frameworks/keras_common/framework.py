"""Keras on every backend: declarations, attempts and conventions, precision scopes, operations and recomputation."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import keras
import numpy as np
from keras import ops

from fixtures.arrays import FORMATS, Array
from fixtures.recipe import DynamicScaling, Precision, Recipe
from frameworks.base import BaseFramework, ships, takes
from frameworks.base.capability_attempts import Make
from frameworks.contract import Attempt, Capability, Conventions, FunctionFormat, OpResult, ScalerRule, Unsupported
from frameworks.keras_common.layers import VARIANTS, WAYS, Tensor
from frameworks.keras_common.optimizers import OPTIMIZERS, REFUSED_OPTIONS, has_factors_of, option_attempts
from frameworks.keras_common.settings import KerasBackend, apply_updates, dtype_policy, number, policy_of, scalars
from frameworks.operations import CATALOGUE

_O2 = "Keras has no dtype policy of low-precision weights with float32 masters"
_UNSCALING = "Keras unscales inside the optimizer's update; there is no call to unscale by hand"
_NO_MULTI = "this version of Keras has no MultiOptimizer, and another optimizer has no groups"

SUPPORTED = frozenset(
    {
        Capability.FLOAT64_HEADS,
        Capability.OPERATIONS,
        Capability.STATIC_SCALING,
        Capability.TWO_LOSSES,
        Capability.ACCUMULATION,
        Capability.RECOMPUTE,
        Capability.RECOMPUTE_NESTED,
        Capability.RECOMPUTE_CASES,
        Capability.SEGMENT_CALLS,
        Capability.CLIP,
        Capability.SCHEDULE,
        Capability.MISSING_GRADIENTS,
        Capability.AVERAGE,
        Capability.NESTEROV,
        Capability.AMSGRAD,
        Capability.DECAY_EXCLUDED,
        Capability.FEED,
        Capability.CHECKPOINT,
        Capability.TRACE,
        Capability.LAYER_REUSE,
        Capability.USER_FUNCTION,
        *((Capability.TIED_WEIGHTS,) if hasattr(keras.layers, "ReversibleEmbedding") else ()),
        *OPTIMIZERS,
    }
)
"""Capabilities that Keras supports on every backend whose refusals do not name them."""
REFUSED: dict[Capability, str] = {
    **REFUSED_OPTIONS,
    Capability.O2_FLOAT16: _O2,
    Capability.O2_BFLOAT16: _O2,
    Capability.SCALING_FACTORS: "LossScaleOptimizer always doubles and halves its scale",
    Capability.SCALING_DISABLED: "LossScaleOptimizer refuses dynamic=False; one leaves it out instead",
    Capability.EXPLICIT_UNSCALE: _UNSCALING,
    Capability.SECOND_UNSCALE: _UNSCALING,
    Capability.PARTIAL_WINDOW: "Keras has no call that ends a window early; an incomplete one is carried over",
}
if not hasattr(keras.optimizers, "MultiOptimizer"):
    REFUSED |= dict.fromkeys((Capability.GROUPS, Capability.GROUP_RATES, Capability.TWO_OPTIMIZERS), _NO_MULTI)

_SCALER = ScalerRule(
    initial=2.0**15, growth=2.0, backoff=0.5, interval=2000, counts="micro-batches", nonfinite="scaled", latched=False
)

CONVENTIONS = Conventions(
    adam_default_epsilon=1e-7,
    adam_epsilon="inside",
    adam_correction="float32",
    adam_counts="optimizer",
    momentum_rate="inside",
    amsgrad="moments",
    adagrad_epsilon="inside",
    rmsprop_epsilon="inside",
    rmsprop_rate="inside",
    adafactor_decay="first",
    running_variance="biased",
    clip_epsilon=0.0,
    nonfinite_micro_batch="drop-micro-batch",
    remainder="carry",
    partial_overflow="skip-all",
    static_skips=False,
    accumulates="unscaled",
    adapter_bias="trains",
    adapter_save="merged",
    scaler=_SCALER,
)
"""The conventions that Keras documents for its optimizers, or their source if the documentation has none."""


def _scaled_sgd(**options: Any) -> keras.optimizers.LossScaleOptimizer:
    """SGD at a rate of 1/2, inside a dynamic loss scale that begins at 8."""
    return keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.5), initial_scale=8.0, **options)


def _skips_and_halves(backend: KerasBackend) -> bool:
    scaler = _scaled_sgd()
    return apply_updates(backend, scaler, [float("inf"), 0.0]) == [[1.0, 1.0]] and number(scaler.dynamic_scale) == 4.0


def _can_disable(backend: KerasBackend) -> bool:
    return apply_updates(backend, _scaled_sgd(dynamic=False), [float("inf"), 0.0]) != [[1.0, 1.0]]


def _flushes(backend: KerasBackend) -> bool:
    """Returns whether a call after two of four micro-batches ends the window and applies their mean."""
    for end in range(1, 5):
        weights = scalars()
        optimizer = keras.optimizers.SGD(0.5, gradient_accumulation_steps=4)
        apply_updates(backend, optimizer, [1.0, 1.0], [1.0, 1.0], weights=weights)
        if end == 1:
            optimizer.finalize_variable_values(weights)
        else:
            optimizer.gradient_accumulation_steps = end
            backend.apply(optimizer, [0.0, 0.0], weights)
        if [number(weight) for weight in weights] == [0.5, 0.5]:
            return True
    return False


def _gives(policy: str, output: str, kernel: str) -> bool:
    """Returns whether the output and the kernel of a dense layer have these formats under a policy."""
    with dtype_policy(policy):
        layer = keras.layers.Dense(2)
    result = layer(np.ones((1, 2), np.float32))
    return (keras.backend.standardize_dtype(result.dtype), layer.kernel.dtype) == (output, kernel)


def _has_master_weights(format_name: str) -> bool:
    """Returns whether a policy of this format has low-precision weights and an optimizer with float32 masters."""
    for policy in (format_name, f"mixed_{format_name}"):
        with dtype_policy(policy):
            layer = keras.layers.Dense(2)
        layer.build((1, 2))
        if layer.kernel.dtype != format_name:
            continue
        optimizer = keras.optimizers.Adam(2.0**-13)
        optimizer.build([layer.kernel])
        if any(v.shape == layer.kernel.shape and v.dtype == "float32" for v in optimizer.variables):
            return True
    return False


LOW = ("float16", "bfloat16")
NO_LISTS = "a dtype policy is a layer's, and a DTypePolicyMap names layers, not operations"
"""The reason why lists of operations for a scope are refused."""

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
    "max_pool": lambda x: ops.max_pool(x, 2, 2, data_format="channels_last"),
    "average_pool": lambda x: ops.average_pool(x, 2, 2, data_format="channels_last"),
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
"""The losses. They are Loss objects, which have their own format and take targets first."""


NORMALIZATIONS: dict[str, Callable[[], keras.layers.Layer]] = {
    "layer_norm": lambda: keras.layers.LayerNormalization(epsilon=1e-5, center=False, scale=False),
    "batch_norm": lambda: keras.layers.BatchNormalization(epsilon=1e-5, center=False, scale=False),
    "rms_norm": lambda: keras.layers.RMSNormalization(epsilon=1e-5),
    "instance_norm": lambda: keras.layers.GroupNormalization(groups=-1, epsilon=1e-5, center=False, scale=False),
}
"""The normalisations. They are layers, which handle low-precision inputs; Keras' plain operations do not."""


def _instance_norm() -> Callable[[list[Any]], Any]:
    """Instance norm of (rows, columns): each row becomes a channel, on the last axis, of one sample."""
    layer = NORMALIZATIONS["instance_norm"]()
    return lambda inputs: ops.transpose(layer(ops.transpose(inputs[0])[None])[0])


class OperationLayer(keras.layers.Layer):
    """A layer whose `call` is one operation; Keras casts its inputs by the policy at the layer's creation."""

    def __init__(self, operation: Operation) -> None:
        super().__init__()
        self._operation = operation

    def call(self, inputs: list[Any]) -> Any:
        return self._operation(*inputs)


_NEWER = {"attention": (ops, "dot_product_attention"), "rms_norm": (keras.layers, "RMSNormalization")}
"""Operations that are new in Keras 3.6 and 3.9, with their module and name."""


def in_a_layer(op: str, arrays: tuple[Array, ...]) -> Callable[[list[Any]], Any]:
    """A function that runs an operation in a layer. A loss is computed outside it, as in training, from its output.

    Raises:
        KeyError: the operation is unknown.
        Unsupported: this Keras version does not have the operation.
    """
    if op in _NEWER and not hasattr(*_NEWER[op]):
        reason = f"Keras {keras.__version__} has no {_NEWER[op][1]}"
        raise Unsupported(Capability.OPERATIONS, reason, partial(hasattr, *_NEWER[op]))
    if op == "instance_norm":
        return _instance_norm()
    if op in NORMALIZATIONS:
        layer = NORMALIZATIONS[op]()
        layer.build(arrays[0].shape)
        training = {"training": True} if op == "batch_norm" else {}
        return lambda inputs: layer(inputs[0], **training)
    if op not in LOSSES:
        return OperationLayer(OPERATIONS[op])
    loss = LOSSES[op]()
    output = OperationLayer(OPERATIONS["exp"] if op == "kl_divergence" else lambda x: x)
    return lambda inputs: loss(inputs[1], output(inputs[:1]))


class ScopeOfPolicies(BaseFramework):
    """Framework base for Keras: precision scopes are the process' dtype policy, and operations run in layers."""

    def recompute_variants(self) -> tuple[str, ...]:
        return VARIANTS

    def function_ways(self) -> Mapping[str, FunctionFormat]:
        return WAYS

    def require_recipe(self, recipe: Recipe) -> None:
        super().require_recipe(recipe)
        if isinstance(recipe.scaling, DynamicScaling) and not has_factors_of(recipe.scaling):
            raise self.refusal(Capability.SCALING_FACTORS)

    def require_scope(self, precision: Precision, *, lists: bool) -> None:
        """Refuses a format that is not declared as supported, and a scope with lists of operations if those are not."""
        asked = Capability.of(precision)
        if asked is not None:
            self.require(asked)
        if lists:
            self.require(Capability.AUTOCAST_LISTS)

    def autocast(
        self, precision: Precision, *, enabled: bool = True, wide: Sequence[str] = (), low: Sequence[str] = ()
    ) -> AbstractContextManager[None]:
        self.require_scope(precision, lists=bool(wide or low))
        return dtype_policy(policy_of(precision if enabled else Precision()))

    def conventions(self) -> Conventions:
        return CONVENTIONS

    def run_op(self, op: str, *arrays: Array) -> OpResult:
        return run_op(op, *arrays)

    def remat(self, variant: str | None) -> Callable[..., Tensor]:
        """A function that calls a function with arguments through one of Keras' recomputation calls."""
        chosen = self.variant(variant)
        return lambda function, *args, **named: wrap_in_remat(function, chosen)(*args, **named)


def run_op(op: str, *arrays: Array) -> OpResult:
    """Runs one operation in a new layer, which has the dtype policy that is set now.

    Raises:
        KeyError: the operation is unknown.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "__array__", DeprecationWarning)  # from Keras on PyTorch
        result = in_a_layer(op, arrays)([ops.convert_to_tensor(array) for array in arrays])
        name = keras.backend.standardize_dtype(result.dtype)
        value = np.asarray(ops.convert_to_numpy(ops.cast(result, "float32") if name in LOW else result))
    return OpResult(value.astype(FORMATS[name].dtype) if name in FORMATS else value, name)


def takes_lists() -> bool:
    """Returns whether a DTypePolicyMap with an operation's name changes the operation's format."""
    named = keras.dtype_policies.DTypePolicyMap(default_policy="mixed_bfloat16")
    named["matmul"] = keras.dtype_policies.DTypePolicy("float32")
    with dtype_policy(named):
        return run_op("matmul", *CATALOGUE["matmul"]()).dtype == "float32"


_FACTORS = ("growth_factor", "dynamic_growth_factor", "multiplier")
_UNSCALES = partial(ships, "keras.optimizers.LossScaleOptimizer", "unscale")
_HAS_MULTI = partial(hasattr, keras.optimizers, "MultiOptimizer")


def keras_attempts(backend: KerasBackend, run: Make) -> dict[Capability, Attempt]:
    """Attempts for the capabilities of dtype policies, precision scopes, optimizers and loss scaling."""
    return option_attempts(run) | {
        Capability.O1_FLOAT16: partial(_gives, "mixed_float16", "float16", "float32"),
        Capability.O1_BFLOAT16: partial(_gives, "mixed_bfloat16", "bfloat16", "float32"),
        Capability.O2_FLOAT16: partial(_has_master_weights, "float16"),
        Capability.O2_BFLOAT16: partial(_has_master_weights, "bfloat16"),
        Capability.O3_FLOAT16: partial(_gives, "float16", "float16", "float16"),
        Capability.O3_BFLOAT16: partial(_gives, "bfloat16", "bfloat16", "bfloat16"),
        Capability.AUTOCAST_SCOPE: partial(_gives, "mixed_bfloat16", "bfloat16", "float32"),
        Capability.AUTOCAST_LISTS: takes_lists,
        Capability.DYNAMIC_SCALING: partial(_skips_and_halves, backend),
        Capability.SCALING_FACTORS: partial(takes, keras.optimizers.LossScaleOptimizer, *_FACTORS),
        Capability.SCALING_DISABLED: partial(_can_disable, backend),
        Capability.EXPLICIT_UNSCALE: _UNSCALES,
        Capability.SECOND_UNSCALE: _UNSCALES,
        Capability.PARTIAL_WINDOW: partial(_flushes, backend),
        Capability.GROUPS: _HAS_MULTI,
        Capability.TWO_OPTIMIZERS: _HAS_MULTI,
    }


Function = Callable[..., Tensor]


class ScopedFunction(keras.layers.Layer):
    """A layer whose `call` is a function; Keras recomputes it if it is created in a `keras.RematScope`."""

    def __init__(self, function: Function) -> None:
        super().__init__(dtype="float32")
        self._function = function

    def call(self, *arguments: Any, **keywords: Any) -> Tensor:
        return self._function(*arguments, **keywords)


def wrap_in_remat(function: Function, variant: str) -> Function:
    """The function, wrapped in one of Keras' recomputation calls."""
    if variant == "keras.remat":
        return keras.remat(function)
    with keras.RematScope(mode="full"):
        return ScopedFunction(function)
