"""Single operations in PyTorch: their table, functions with a user's backward pass, and recomputed cases."""

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch
from torch.amp import custom_bwd, custom_fwd
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from fixtures.arrays import Array
from fixtures.model import SCALE, FunctionUse
from frameworks.base.recompute import FACTOR, NO_GRAD_INPUT, WEIGHTS_CHANGE, FailingRerun, recomputed_call
from frameworks.contract import FunctionFormat, FunctionResult, RecomputeCase, RecomputeResult
from frameworks.torch.core.settings import MODES, begin_anew, compile_function, to_array, to_tensor

Function = Callable[[torch.Tensor], torch.Tensor]
VARIANTS: dict[str, bool] = {"non-reentrant": False, "reentrant": True}
"""Names of `torch.utils.checkpoint`'s two implementations, the recommended one first, and their `use_reentrant`."""
WAYS: dict[str, FunctionFormat] = {
    "setup_context": "input",
    "forward-with-context": "input",
    "custom_fwd": "input",
    "custom_fwd-setup_context": "input",
    "custom_fwd-float32": "float32",
    **({"custom_op": "input"} if hasattr(torch.library, "custom_op") else {}),
}
"""Ways to write a user function by name, the default first, with the documented format of each under autocast."""
_RERUN = FailingRerun()
"""State of the present case. It is global because an operator takes no Python object as an argument."""


def _channels_second(x: torch.Tensor) -> torch.Tensor:
    return x.movedim(-1, 1)


def _channels_last(x: torch.Tensor) -> torch.Tensor:
    return x.movedim(1, -1)


OPERATIONS: dict[str, Callable[..., torch.Tensor]] = {
    "matmul": torch.matmul,
    "batched_matmul": torch.bmm,
    "einsum": lambda a, b: torch.einsum("ij,jk->ik", a, b),
    "linear": lambda x, weight, bias: functional.linear(x, weight.t(), bias),
    "conv2d": lambda x, kernel: _channels_last(functional.conv2d(_channels_second(x), kernel.permute(3, 2, 0, 1))),
    "attention": lambda q, k, v: functional.scaled_dot_product_attention(q[:, None], k[:, None], v[:, None])[:, 0],
    "sum": torch.sum,
    "mean": torch.mean,
    "variance": lambda x: torch.var(x, correction=0),
    "norm": lambda x: torch.linalg.vector_norm(x),
    "prod": torch.prod,
    "max": torch.max,
    "cumsum": lambda x: torch.cumsum(x, -1),
    "cumprod": lambda x: torch.cumprod(x, -1),
    "logsumexp": lambda x: torch.logsumexp(x, -1),
    "softmax": lambda x: torch.softmax(x, -1),
    "log_softmax": lambda x: torch.log_softmax(x, -1),
    "cross_entropy": functional.cross_entropy,
    "squared_error": functional.mse_loss,
    "absolute_error": functional.l1_loss,
    "huber": functional.huber_loss,
    "kl_divergence": lambda a, b: functional.kl_div(a, b, reduction="batchmean"),
    "binary_cross_entropy_logits": functional.binary_cross_entropy_with_logits,
    "layer_norm": lambda x: functional.layer_norm(x, x.shape[-1:]),
    "instance_norm": lambda x: torch.nn.InstanceNorm1d(x.shape[0], device=x.device)(x),
    "batch_norm": lambda x: torch.nn.BatchNorm1d(x.shape[-1], device=x.device)(x),  # with running statistics
    "rms_norm": lambda x: functional.rms_norm(x, x.shape[-1:]),
    "exp": torch.exp,
    "expm1": torch.expm1,
    "log": torch.log,
    "log1p": torch.log1p,
    "pow": lambda x: torch.pow(x, 3.0),
    "square": torch.square,
    "sqrt": torch.sqrt,
    "rsqrt": torch.rsqrt,
    "reciprocal": torch.reciprocal,
    "abs": torch.abs,
    "sin": torch.sin,
    "cos": torch.cos,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "relu": functional.relu,
    "leaky_relu": functional.leaky_relu,
    "elu": functional.elu,
    "gelu": functional.gelu,
    "silu": functional.silu,
    "softplus": functional.softplus,
    "erf": torch.erf,
    "add": torch.add,
    "subtract": torch.subtract,
    "multiply": torch.multiply,
    "divide": torch.divide,
    "maximum": torch.maximum,
    "where": lambda a, b: torch.where(a > 0, a, b),
    "concatenate": lambda a, b: torch.cat([a, b], -1),
    "stack": lambda a, b: torch.stack([a, b]),
    "max_pool": lambda x: _channels_last(functional.max_pool2d(_channels_second(x), 2)),
    "average_pool": lambda x: _channels_last(functional.avg_pool2d(_channels_second(x), 2)),
    "dropout": lambda x: functional.dropout(x, 0.5, training=True),
    "embedding": functional.embedding,
    "gather_ids": lambda ids: ids + 0,
    "argmax": lambda x: torch.argmax(x, -1),
    "transpose": lambda x: x.transpose(-1, -2),
    "reshape": torch.flatten,
}


def _square(x: torch.Tensor) -> torch.Tensor:
    return x * x


def _clipped_slope(x: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    return gradient * torch.clamp(2.0 * x, -1.0, 1.0)


def _save_inputs(ctx: Any, inputs: tuple[torch.Tensor], _output: torch.Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
    ctx.save_for_backward(x)
    return _square(x)


def _backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
    (x,) = ctx.saved_tensors
    return _clipped_slope(x, gradient)


def _make_class(**methods: Callable[..., Any]) -> Function:
    """The `apply` of a `torch.autograd.Function` with these static methods."""
    static = {name: staticmethod(method) for name, method in methods.items()}
    result: Any = type("Square", (torch.autograd.Function,), static)
    return result.apply


def _custom_op() -> Function:
    operator = torch.library.custom_op("conformance::square", _square, mutates_args=())
    operator.register_fake(torch.empty_like)
    operator.register_autograd(_backward, setup_context=lambda ctx, inputs, output: _save_inputs(ctx, inputs, output))
    return operator


@cache
def make_function(way: str, device: str) -> Function:
    """The operation in this way; `device` is the type of device that decorators for autocast are made for."""
    decorated, decorated_backward = partial(custom_fwd, device_type=device), custom_bwd(_backward, device_type=device)
    match way:
        case "setup_context":
            return _make_class(forward=_square, setup_context=_save_inputs, backward=_backward)
        case "forward-with-context":
            return _make_class(forward=_forward, backward=_backward)
        case "custom_op":
            return _custom_op()
        case "custom_fwd-setup_context":
            return _make_class(forward=decorated(_square), setup_context=_save_inputs, backward=decorated_backward)
        case _:
            wide = torch.float32 if way == "custom_fwd-float32" else None
            return _make_class(forward=decorated(_forward, cast_inputs=wide), backward=decorated_backward)


class ThreeInputsFunction(torch.autograd.Function):
    """The operation of `fixtures.model`. Each backward pass appends its `needs_input_grad` to the list `asked`."""

    @staticmethod
    def forward(
        ctx: Any, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, scale: float, asked: list[tuple[bool, ...]]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        ctx.save_for_backward(a, b)
        ctx.scale, ctx.asked = scale, asked
        return scale * a * b, b + c

    @staticmethod
    def backward(ctx: Any, y: torch.Tensor, z: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (a, b), needs = ctx.saved_tensors, ctx.needs_input_grad[:3]
        ctx.asked.append(needs)
        gradients = (2.0 * ctx.scale * y * b, ctx.scale * y * a + z, z)
        return *(gradient if needed else None for gradient, needed in zip(gradients, needs, strict=True)), None, None


def function_used(use: FunctionUse, inputs: tuple[Array, ...], variant: str | None, device: str) -> FunctionResult:
    """The `needs_input_grad` of each backward pass of `ThreeInputsFunction`, and the gradients of its inputs."""
    asked: list[tuple[bool, ...]] = []
    leaves = [
        to_tensor(x, device, torch.float32).requires_grad_(need) for x, need in zip(inputs, use.needs, strict=True)
    ]

    def loss(*args: torch.Tensor) -> torch.Tensor:
        calls = [ThreeInputsFunction.apply(*args, SCALE, asked) for _ in range(use.times)]
        return torch.stack([outputs["yz".index(name)].sum() for outputs in calls for name in use.outputs]).sum()

    value = loss(*leaves) if variant is None else checkpoint(loss, *leaves, use_reentrant=VARIANTS[variant])
    value.backward()
    return FunctionResult(tuple(asked), tuple(None if leaf.grad is None else to_array(leaf.grad) for leaf in leaves))


def recompute(case: RecomputeCase, x: Array, w: Array, variant: str, *, device: str, mode: str) -> RecomputeResult:
    """One case of `Framework.recompute`; PyTorch's own exceptions leave this call.

    The value is one term of a loss. If the value is cut off from the graph, the backward pass of the other terms still
    runs and gives the inputs of the value no gradient.
    """

    def run(function: Callable[..., torch.Tensor], *args: Any, **named: Any) -> torch.Tensor:
        return checkpoint(function, *args, use_reentrant=VARIANTS[variant], **named)

    return differentiate_case(case, x, w, run, device=device, mode=mode)


def differentiate_case(
    case: RecomputeCase, x: Array, w: Array, run: Callable[..., torch.Tensor], *, device: str, mode: str = "eager"
) -> RecomputeResult:
    """Value and gradients of a case whose recomputation call is `run(function, *args, **named)`."""
    inputs = to_tensor(x, device, torch.float32).requires_grad_(case != NO_GRAD_INPUT)
    weight = to_tensor(w, device, torch.float32).requires_grad_()
    _RERUN.runs = 0
    forward: Callable[..., torch.Tensor] = partial(recomputed_call, case, run, _tanh_sum, _failing)
    if mode in MODES:
        begin_anew()
        forward = compile_function(forward, mode)
    value = forward(inputs, weight)
    if case == WEIGHTS_CHANGE:
        with torch.no_grad():
            weight.mul_(FACTOR)
    if value.requires_grad:
        value.backward()
    gradients = [None if tensor.grad is None else to_array(tensor.grad) for tensor in (inputs, weight)]
    return RecomputeResult(float(value.detach()), gradients[0], gradients[1])


@torch.library.custom_op("conformance::fails_the_second_time", mutates_args=())
def _fails_the_second_time(x: torch.Tensor) -> torch.Tensor:
    """A copy of `x`; raises in its second run. As an operator it also runs, and raises, in compiled graphs."""
    _RERUN.begin()
    return x.clone()


@_fails_the_second_time.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


_fails_the_second_time.register_autograd(lambda _, gradient: gradient)


def _tanh_sum(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.tanh(x @ w).sum()


def _failing(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return _tanh_sum(_fails_the_second_time(x), w)
