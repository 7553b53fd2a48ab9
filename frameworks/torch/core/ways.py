"""Other public calls of PyTorch for a technique, by the names in `ways.toml`; "" is the default one."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch.nn.utils import clip_grad_norm_
from torch.optim.lr_scheduler import ConstantLR, LambdaLR, LRScheduler, MultiplicativeLR, MultiStepLR, SequentialLR
from torch.optim.swa_utils import AveragedModel, get_ema_avg_fn, get_ema_multi_avg_fn
from torch.utils import checkpoint

from fixtures.recipe import Recipe, Steps
from fixtures.schedules import Curve
from frameworks.contract import Capability, Unsupported
from frameworks.torch.core.schedules import make_schedule

Clip = Callable[[list[torch.Tensor], float], torch.Tensor]
Groups = list[dict[str, Any]]
OptimizerClass = Callable[..., torch.optim.Optimizer]


def _clip_in_two_calls(tensors: list[torch.Tensor], limit: float) -> torch.Tensor:
    gradients = [tensor.grad for tensor in tensors if tensor.grad is not None]
    norm = torch.nn.utils.get_total_norm(gradients)
    torch.nn.utils.clip_grads_with_norm_(tensors, limit, norm)
    return norm


CLIPS: Mapping[str, Clip] = {
    "": clip_grad_norm_,
    "loop": partial(clip_grad_norm_, foreach=False),
    "lists": partial(clip_grad_norm_, foreach=True),
    "two-calls": _clip_in_two_calls,
}


@contextmanager
def _scope_of_set_dtype(device: str, dtype: torch.dtype) -> Iterator[None]:
    former = torch.get_autocast_dtype(device)
    torch.set_autocast_dtype(device, dtype)
    try:
        with torch.autocast(device):
            yield
    finally:
        torch.set_autocast_dtype(device, former)


def make_scope(way: str, device: str, dtype: torch.dtype) -> AbstractContextManager[None]:
    """The precision scope of a format."""
    match way:
        case "set-dtype":
            return _scope_of_set_dtype(device, dtype)
        case "no-cache":
            return torch.autocast(device, dtype=dtype, cache_enabled=False)
        case _:
            return torch.autocast(device, dtype=dtype)


SEVERAL_ROOTS = ("function", "grad")
"""Ways of a backward pass that take several losses in one call."""


def run_backward(way: str, losses: Sequence[torch.Tensor], parameters: Sequence[torch.Tensor], *, retain: bool) -> None:
    """Adds the gradients of losses to the parameters' gradients; only `SEVERAL_ROOTS` take more than one loss."""
    match way:
        case "function":
            torch.autograd.backward(losses, retain_graph=retain)
        case "inputs":
            losses[0].backward(retain_graph=retain, inputs=list(parameters))
        case "grad":
            gradients = torch.autograd.grad(losses, parameters, retain_graph=retain, allow_unused=True)
            for parameter, gradient in zip(parameters, gradients, strict=True):
                if gradient is not None:
                    parameter.grad = gradient if parameter.grad is None else parameter.grad + gradient
        case _:
            losses[0].backward(retain_graph=retain)


def require(recipe: Recipe) -> None:
    """Refuses ways that cannot be combined.

    Raises:
        Unsupported: RECOMPUTE, for gradients of named tensors behind reentrant checkpoints.
    """
    variant = None if recipe.recompute is None else recipe.recompute.variant
    if variant == "reentrant" and recipe.way("backward") in ("grad", "inputs"):
        reason = "reentrant checkpoints need Tensor.backward without inputs, as documented"
        raise Unsupported(Capability.RECOMPUTE, reason, _reentrant_has_gradient)
    if variant == "reentrant" and recipe.way("recompute") in ("selective", "whole"):
        raise Unsupported(
            Capability.RECOMPUTE, "context_fn and early stop are of the other variant", _reentrant_selects
        )


def _reentrant_has_gradient() -> bool:
    weight, x = (torch.ones(1, requires_grad=True) for _ in range(2))
    y = checkpoint.checkpoint(lambda x: weight * x, x, use_reentrant=True)
    return torch.autograd.grad(y, [weight], allow_unused=True)[0] is not None


def _reentrant_selects() -> bool:
    x = torch.ones(1, requires_grad=True)
    contexts = partial(checkpoint.create_selective_checkpoint_contexts, [torch.ops.aten.mm.default])
    return bool(checkpoint.checkpoint(torch.tanh, x, use_reentrant=True, context_fn=contexts) is not None)


def make_average(way: str, network: torch.nn.Module, decay: float) -> AveragedModel:
    """The exponential moving average of a network's weights."""
    if way == "avg-fn":
        return AveragedModel(network, avg_fn=get_ema_avg_fn(decay))
    if way == "buffers":
        return AveragedModel(network, multi_avg_fn=get_ema_multi_avg_fn(decay), use_buffers=True)
    return AveragedModel(network, multi_avg_fn=get_ema_multi_avg_fn(decay))


def make_optimizer(way: str, kind: OptimizerClass, groups: Groups, options: Mapping[str, Any]) -> torch.optim.Optimizer:
    """An optimizer of parameter groups."""
    match way:
        case "named":
            return kind([group | {"params": _name_parameters(group["params"])} for group in groups], **options)
        case "added-groups":
            first, *others = [
                group | {"params": part}
                for group in groups
                for part in (group["params"][:1], group["params"][1:])
                if part
            ]
            result = kind([first], **options)
            for group in others:
                result.add_param_group(group)
            return result
        case _:
            return kind(groups, **options)


def _name_parameters(parameters: Iterable[torch.Tensor]) -> list[tuple[str, torch.Tensor]]:
    return [(f"parameter.{index}", parameter) for index, parameter in enumerate(parameters)]


def make_scheduler(
    way: str, optimizer: torch.optim.Optimizer, schedule: Steps | Curve, last_epoch: int = -1
) -> LRScheduler:
    """A schedule of piecewise constant rates by a way, or one that PyTorch ships for a curve.

    It begins after update `last_epoch`, from 0.

    Raises:
        Unsupported: SCHEDULE, for factors that this way cannot express, and for a curve that PyTorch does not ship.
    """
    if isinstance(schedule, Curve):
        return make_schedule(optimizer, schedule, last_epoch)
    factors = schedule.factors
    match way:
        case "multi-step":
            ratios = {after / before for before, after in pairwise(factors) if before}
            if factors[0] != 1 or len(ratios) > 1 or 0.0 in factors:
                raise Unsupported(Capability.SCHEDULE, "MultiStepLR has one ratio for all steps", _takes_ratios)
            return MultiStepLR(optimizer, list(schedule.boundaries), *ratios, last_epoch=last_epoch)
        case "multiplicative":
            if 0.0 in factors or schedule.factor(0) != 1:
                raise Unsupported(Capability.SCHEDULE, "MultiplicativeLR begins with the optimizer's rate", _begins_low)
            return MultiplicativeLR(optimizer, lambda n: schedule.factor(n) / schedule.factor(n - 1), last_epoch)
        case "sequential":
            if not all(0 <= factor <= 1 for factor in factors):
                raise Unsupported(Capability.SCHEDULE, "ConstantLR takes factors from 0 to 1 alone", _grows)
            parts: list[LRScheduler] = [ConstantLR(optimizer, factor, total_iters=2**31) for factor in factors]
            return SequentialLR(optimizer, parts, list(schedule.boundaries), last_epoch) if parts[1:] else parts[0]
        case _:
            return LambdaLR(optimizer, schedule.factor, last_epoch)


def _stepper() -> torch.optim.Optimizer:
    return torch.optim.SGD([torch.ones(1, requires_grad=True)], lr=1.0)


def _takes_ratios() -> bool:
    return bool(MultiStepLR(_stepper(), [1, 2], [0.5, 0.25]))


def _begins_low() -> bool:
    optimizer = _stepper()
    MultiplicativeLR(optimizer, lambda _: 0.5)
    return float(optimizer.param_groups[0]["lr"]) == 0.5


def _grows() -> bool:
    return bool(ConstantLR(_stepper(), 2.0))


def recompute_function(
    way: str, function: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor, *, reentrant: bool
) -> torch.Tensor:
    """The value of a function whose intermediate values are recomputed in the backward pass."""
    if way == "selective":
        saved_operations = [torch.ops.aten.mm.default, torch.ops.aten.addmm.default]
        contexts = partial(checkpoint.create_selective_checkpoint_contexts, saved_operations)
        return checkpoint.checkpoint(function, x, use_reentrant=False, context_fn=contexts)
    with checkpoint.set_checkpoint_early_stop(False) if way == "whole" else nullcontext():
        return checkpoint.checkpoint(function, x, use_reentrant=reentrant)


def zero_grad(way: str, steppers: Iterable[torch.optim.Optimizer], network: torch.nn.Module) -> None:
    """Drops the gradients of an update."""
    if way == "module":
        network.zero_grad()
        return
    for stepper in steppers:
        stepper.zero_grad(set_to_none=way != "zeros")
