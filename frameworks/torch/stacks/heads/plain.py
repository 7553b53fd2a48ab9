"""A user's module, trained by PyTorch's documented loop."""

import copy
import io
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from frameworks.torch.stacks.heads.building import NotBuilt
from frameworks.torch.stacks.heads.checks import (
    EQUAL,
    FLOAT32,
    ONCE,
    RECOMPUTED,
    RESUME,
    HeadCheck,
    InnerBytes,
    K,
    MeasuredPass,
    Segments,
    bounds,
    check_precision,
    check_recomputation,
    check_windows,
    find_unsteadiness,
    first_difference,
    gradients_of,
    has_batch_norm,
    left_out,
    make_check,
    quiet,
    run,
    state_of,
    tensors,
)  # fmt: skip

ROWS = 8
_NO_MEAN = "the module's loss is no mean of its rows"


@dataclass(frozen=True)
class ModuleAndBatch:
    """A module and a batch, both copied for each run.

    Attributes:
        batch: a tensor, a tuple of positional arguments or a dictionary of keyword arguments; dimension 0 is rows.
    """

    module: nn.Module
    batch: Any

    def model(self) -> Any:
        """A copy, in training mode."""
        return copy.deepcopy(self.module).train()

    def rows(self, start: int, end: int) -> Any:
        """The batch of some of the rows."""
        return _map_tensors(self.batch, lambda tensor: tensor[start:end])

    @property
    def count(self) -> int:
        """Number of rows of the batch."""
        return len(next(tensors(self.batch)))


def call_factory(module: str, name: str) -> ModuleAndBatch:
    """The module that the factory makes, with a batch.

    Raises:
        NotBuilt: the import fails, there is no such callable, or it returns no module and batch.
    """
    sys.path.insert(0, str(Path.cwd()))
    try:
        factory = getattr(import_module(module), name)
    except ImportError as error:
        raise NotBuilt(f"cannot be imported: {error}; check its name, and run in the folder that has it") from None
    except AttributeError:
        raise NotBuilt(f"module {module} has no {name!r}") from None
    torch.manual_seed(0)
    result = factory() if not isinstance(factory, nn.Module) else factory
    network, batch = result if isinstance(result, tuple) and len(result) == 2 else (result, None)
    if not isinstance(network, nn.Module):
        raise NotBuilt(f"returns {type(network).__name__}, want a torch.nn.Module or (module, batch)")
    instance = ModuleAndBatch(network, _inputs(network) if batch is None else batch)
    if not list(tensors(instance.batch)) or instance.count % K:
        raise NotBuilt(f"the batch has no tensor, or its number of rows is no multiple of {K}")
    return instance


def _inputs(module: nn.Module) -> torch.Tensor:
    """Rows for the first layer with a known input."""
    for layer in module.modules():
        if isinstance(layer, nn.Linear):
            return torch.randn(ROWS, layer.in_features)
        if isinstance(layer, nn.Embedding):
            return torch.randint(0, layer.num_embeddings, (ROWS, ROWS))
        if isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Conv3d):
            return torch.randn(ROWS, layer.in_channels, *[32] * len(layer.kernel_size))
    raise NotBuilt("its first layer does not show what input it needs: return (module, batch)")


def _map_tensors(batch: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    if isinstance(batch, torch.Tensor):
        return change(batch)
    if isinstance(batch, dict):
        return {name: _map_tensors(value, change) for name, value in batch.items()}
    return type(batch)(_map_tensors(item, change) for item in batch) if isinstance(batch, tuple | list) else batch


def loss_of(model: Any, batch: Any) -> torch.Tensor:
    """The module's own loss: a scalar output, or one called "loss"; else the mean square of the output.

    Raises:
        NotBuilt: the output has no floating-point tensor.
    """
    if isinstance(batch, dict):
        output = model(**batch)
    else:
        output = model(*batch) if isinstance(batch, tuple | list) else model(batch)
    loss = output.get("loss") if isinstance(output, dict) else getattr(output, "loss", None)
    if loss is None and isinstance(output, torch.Tensor) and output.dim() == 0:
        loss = output
    if loss is not None:
        return loss
    values = [tensor for tensor in tensors(output) if tensor.is_floating_point()]
    if not values:
        raise NotBuilt("its output has no floating-point tensor")
    return sum((value.float().square().mean() for value in values), start=torch.zeros(()))


def checks(instance: ModuleAndBatch, formats: tuple[str, ...]) -> Iterator[HeadCheck]:
    """Every check of a module."""
    whole = partial(loss_of, batch=instance.rows(0, instance.count))
    reason = find_unsteadiness(lambda: quiet(instance.model()), lambda model: run(model, whole).gradients)
    yield from _accumulation(instance, whole, reason)
    yield from _recomputation(instance, whole)
    yield from check_precision(quiet(instance.model()), whole, formats, reason)
    yield _resume(instance, whole)


def _accumulation(instance: ModuleAndBatch, whole: Any, reason: str) -> Iterator[HeadCheck]:
    model = quiet(instance.model())
    if reason:
        yield from (left_out(clause, "", reason) for clause in (EQUAL, ONCE))
        return
    loss_bound, bound = bounds(model, whole, FLOAT32)
    one, parts = run(quiet(instance.model()), whole), _run_micro_batches(instance)
    limits = (loss_bound + FLOAT32 * abs(one.loss) * instance.count, bound)
    for clause in (EQUAL, ONCE):
        check = check_windows(
            clause, "", one, parts, limits=limits, cause=lambda difference: _NO_MEAN if difference > bound else ""
        )
        evaluated = " (batch norm in evaluation mode)" if has_batch_norm(model) else ""
        yield replace(check, want=check.want + evaluated)


def _run_micro_batches(instance: ModuleAndBatch) -> MeasuredPass:
    """Runs micro-batches, each loss divided by their number, as in PyTorch's notes on accumulation."""
    model, total, size = quiet(instance.model()), 0.0, instance.count // K
    for start in range(0, instance.count, size):
        loss = loss_of(model, instance.rows(start, start + size)) / K
        loss.backward()
        total += float(loss.detach())
    return MeasuredPass(total, gradients_of(model))


def _recomputation(instance: ModuleAndBatch, whole: Any) -> Iterator[HeadCheck]:
    plain, other, segments = instance.model(), instance.model(), Segments()
    layers = _layers(other)
    if len(layers) < 2:
        yield from (left_out(clause, "", "the module has fewer than two layers") for clause in RECOMPUTED)
        return
    for layer in layers:
        layer.forward = partial(segments.call, partial(checkpoint, use_reentrant=False), layer.forward)
    bound = partial(bounds, quiet(instance.model()), whole, FLOAT32)
    inner_bytes = partial(_inner_bytes, instance, whole)
    yield from check_recomputation(plain, other, segments, whole, bound=bound, inner_bytes=inner_bytes)


def _inner_bytes(instance: ModuleAndBatch, whole: Any) -> int:
    """Bytes that autograd saves within the layers."""
    model = instance.model()
    inner = InnerBytes(model)
    for layer in _layers(model):
        layer.forward = partial(inner.call, layer.forward)
    whole(model)
    return inner.size


def _layers(model: nn.Module) -> list[nn.Module]:
    """The children, and what they contain if they are containers."""
    return [
        layer
        for child in model.children()
        for layer in (child if isinstance(child, nn.Sequential | nn.ModuleList) else [child])
    ]


def _resume(instance: ModuleAndBatch, whole: Any) -> HeadCheck:
    """Compares four updates by AdamW with two, a save, a load into a new module and two more."""
    torch.manual_seed(5)
    unbroken = instance.model()
    optimizer = torch.optim.AdamW(unbroken.parameters(), lr=2.0**-10)
    saved = io.BytesIO()
    for step in range(4):
        if step == 2:
            state = {"model": unbroken.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save({**state, "random": torch.get_rng_state()}, saved)
        _update(unbroken, optimizer, whole)
    end = state_of(unbroken, optimizer)
    torch.manual_seed(6)
    resumed = _shift_parameters(instance.model())
    other = torch.optim.AdamW(resumed.parameters(), lr=2.0**-10)
    saved.seek(0)
    state = torch.load(saved, weights_only=True)
    resumed.load_state_dict(state["model"])
    other.load_state_dict(state["optimizer"])
    torch.set_rng_state(state["random"])
    for _ in range(2):
        _update(resumed, other, whole)
    differs = first_difference(end, state_of(resumed, other))
    got = f"{differs} differs" if differs else "the same bits"
    cause = "the module has state that its state_dict does not have" if differs else ""
    return make_check(RESUME, "", not differs, got, "weights, moments and random state of the run", cause)


def _shift_parameters(model: nn.Module) -> nn.Module:
    """The module with changed parameters, so that a parameter that a load leaves out is visible."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1.0)
    return model


def _update(model: nn.Module, optimizer: torch.optim.Optimizer, whole: Any) -> None:
    optimizer.zero_grad()
    whole(model).backward()
    optimizer.step()
