"""Checks of any model: exact and randomly rounded passes, mixed precision and recomputation."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache, partial
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._python_dispatch import TorchDispatchMode

from frameworks.torch.core.settings import SavedBytes

PASS, FAIL, NOT_JUDGED = "pass", "fail", "not judged"
EQUAL, ONCE, RESUME = "accumulation.equals-full-batch", "accumulation.normalised-once", "resume.bit-identical"
RECOMPUTED = ("recompute.same-loss", "recompute.same-gradients", "recompute.frees-activations")
K = 4
"""Number of micro-batches of the window that is compared with a whole batch."""
UNBOUNDED = "a randomly rounded pass is not finite, so that there is no bound"


@dataclass(frozen=True)
class HeadCheck:
    """One check of one clause.

    Attributes:
        case: name of the check among several of the clause, "" for its only one.
        outcome: `PASS`, `FAIL` or `NOT_JUDGED`.
        got, want: values of a failure; if the check was not judged, `got` is the reason.
        cause: cause of the failure in the same words for all models that share it, "" for a cause in this model only.
    """

    clause: str
    case: str
    outcome: str
    got: str
    want: str = ""
    cause: str = ""


def make_check(clause: str, case: str, holds: bool, got: str, want: str, cause: str = "") -> HeadCheck:
    """A check that passes if `holds`."""
    return HeadCheck(clause, case, PASS if holds else FAIL, got, want, "" if holds else cause)


def left_out(clause: str, case: str, reason: str) -> HeadCheck:
    """A check that was not judged, with the reason."""
    return HeadCheck(clause, case, NOT_JUDGED, reason)


def check_windows(
    clause: str,
    case: str,
    whole: Any,
    parts: Any,
    *,
    limits: tuple[float, float],
    cause: Callable[[float], str],
    source: str = "k=1",
) -> HeadCheck:
    """A check that an update of `K` micro-batches has the loss and gradients of one of a whole batch.

    Args:
        limits: limits of the distances of losses and of gradients.
        cause: the cause of a failure, from the distance of the gradients.
        source: what made the pass of the whole batch.
    """
    of_gradients, of_loss = distance(whole.gradients, parts.gradients), abs(whole.loss - parts.loss)
    holds = of_loss <= limits[0] and of_gradients <= limits[1]
    got = f"k={K}: loss {parts.loss:.6g}, gradient norm {norm(parts.gradients):.6g}, {of_gradients:.3g} apart"
    want = f"{source}: loss {whole.loss:.6g}, gradient norm {norm(whole.gradients):.6g}, at most {limits[1]:.3g} apart"
    return make_check(clause, case, holds, got, want, "" if holds else cause(of_gradients))


def name_fraction(part: float, whole: float, most: int) -> str:
    """The fraction of numbers up to `most` that a loss is of another one by float32's accuracy, "" if there is none."""
    fraction = Fraction(part / whole).limit_denominator(most) if math.isfinite(part) and whole else Fraction(1)
    near = math.isclose(part, float(fraction) * whole, rel_tol=64 * FLOAT32)
    return str(fraction) if near and fraction.denominator > 1 else ""


Gradients = dict[str, torch.Tensor]
Loss = Callable[[Any], torch.Tensor]
"""The loss of a model on the batch of a head."""

FLOAT32 = torch.finfo(torch.float32).eps
MEMBERS = 4
"""Number of passes of an ensemble."""

_EXACT = (
    "empty", "zeros", "ones", "full", "clone", "copy", "arange", "index", "gather", "scatter", "embedding.", "cat",
    "stack", "where", "masked", "max", "min", "relu", "neg", "abs", "sort", "topk", "view", "slice", "select", "detach",
    "eye", "tril", "triu", "round", "floor", "ceil", "fill", "bernoulli", "rand", "sign", "one_hot", "pad", "roll",
    "histc",
    "new_",
)  # fmt: skip


@dataclass(frozen=True)
class MeasuredPass:
    """The loss and gradients of one pass."""

    loss: float
    gradients: Gradients


class RandomRounding(TorchDispatchMode):
    """Multiplies every result of arithmetic by 1 + u, u uniform within one unit in the last place of a format."""

    def __init__(self, ulp: float, seed: int) -> None:
        super().__init__()
        self._ulp = ulp
        self._generator = torch.Generator().manual_seed(seed)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if not _rounds(func):
            return result
        return type(result)(map(self._round, result)) if isinstance(result, tuple | list) else self._round(result)

    def _round(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or not value.is_floating_point() or value.device.type == "meta":
            return value
        factor = torch.empty(value.shape, dtype=value.dtype)
        factor.uniform_(1.0 - self._ulp, 1.0 + self._ulp, generator=self._generator)
        rounded = value * factor
        return torch.where(torch.isfinite(rounded), rounded, value)


@cache
def _rounds(func: Any) -> bool:
    """Returns whether an operation computes new values by arithmetic, which rounds."""
    if any(value.alias_info is not None for value in func._schema.returns):
        return False
    plain = str(func).removeprefix("aten.").removeprefix("_")
    return "backward" in plain or not any(plain.startswith(word) for word in _EXACT)


def run(model: Any, loss_of: Loss) -> MeasuredPass:
    """Runs one pass; drops the gradients of former passes."""
    model.zero_grad(set_to_none=True)
    loss = loss_of(model)
    loss.backward()
    return MeasuredPass(float(loss.detach()), gradients_of(model))


def gradients_of(model: Any) -> Gradients:
    """Copies of all gradients by name, without parameters that have none."""
    return {
        name: parameter.grad.detach().clone()
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    }


def ensemble(model: Any, loss_of: Loss, ulp: float) -> tuple[float, float]:
    """The largest distances of loss and gradient from the exact pass among `MEMBERS` randomly rounded passes."""
    exact = run(model, loss_of)
    losses, distances = [], []
    for seed in range(MEMBERS):
        torch.manual_seed(0)
        with RandomRounding(ulp, seed):
            member = run(model, loss_of)
        losses.append(abs(member.loss - exact.loss))
        distances.append(distance(member.gradients, exact.gradients))
    return max(losses), max(distances)


def bounds(model: Any, loss_of: Loss, ulp: float) -> tuple[float, float]:
    """Tolerances of loss and gradient: twice the largest distances of the ensemble."""
    of_loss, of_gradients = ensemble(model, loss_of, ulp)
    return 2 * of_loss, 2 * of_gradients


def norm(gradients: Mapping[str, torch.Tensor]) -> float:
    """2-norm of all gradients."""
    return math.sqrt(sum(float(gradient.double().square().sum()) for gradient in gradients.values()))


def distance(first: Mapping[str, torch.Tensor], second: Mapping[str, torch.Tensor]) -> float:
    """2-norm of the difference; a missing gradient counts as zero."""
    return norm(
        {
            name: first.get(name, torch.zeros(())).double() - second.get(name, torch.zeros(())).double()
            for name in {**first, **second}
        }
    )


def first_difference(first: Mapping[str, torch.Tensor], second: Mapping[str, torch.Tensor]) -> str:
    """The name of the first tensor that differs, "" if none does."""
    for name in {**first, **second}:
        if name not in first or name not in second or first[name].dtype != second[name].dtype:
            return name
        if not torch.equal(first[name].nan_to_num(), second[name].nan_to_num()):
            return name
    return ""


def state_of(model: Any, optimizer: Any) -> dict[str, torch.Tensor]:
    """Weights, buffers, the optimizer's moments and the CPU's random state."""
    state = {f"model/{name}": value.detach().clone() for name, value in model.state_dict().items()}
    for number, slots in optimizer.state_dict()["state"].items():
        state |= {f"optimizer/{number}/{slot}": torch.as_tensor(value).clone() for slot, value in slots.items()}
    return state | {"random": torch.get_rng_state()}


DROPOUT = 0.1


def quiet(model: Any) -> Any:
    """The model without dropout, and with batch norm permanently in evaluation mode."""
    for module in model.modules():
        for name, value in list(vars(module).items()):
            if "drop" in name and isinstance(value, float):
                setattr(module, name, 0.0)
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.p = 0.0
        if isinstance(module, _BatchNorm):
            module.eval()
            module.train = lambda mode=True, module=module: module  # noqa: ARG005
    return model


def loud(model: Any) -> Any:
    """The model with dropout in all its dropout layers."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = DROPOUT
    return model


def has_batch_norm(model: Any) -> bool:
    """Returns whether outputs depend on statistics of the micro-batch."""
    return any(isinstance(module, _BatchNorm) for module in model.modules())


DRAWS = "two equal runs differ: the model draws random numbers in training"
KEEPS = "a second pass from the same random state differs from the first: the model keeps state between passes"


def find_unsteadiness(make: Callable[[], Any], gradients: Callable[[Any], Gradients]) -> str:
    """The reason why two passes of a model cannot be compared, "" if they can.

    Args:
        make: returns a new model with equal weights at each call.
        gradients: gradients of one pass.
    """
    model, equal_model = make(), make()
    torch.manual_seed(1)
    expected = gradients(model)
    torch.manual_seed(2)
    if first_difference(expected, gradients(equal_model)):
        return DRAWS
    torch.manual_seed(1)
    return KEEPS if first_difference(expected, gradients(model)) else ""


FORMATS = {"bfloat16": ("autocast.bf16-parity", torch.bfloat16), "float16": ("autocast.fp16-parity", torch.float16)}


def check_precision(model: Any, loss_of: Loss, formats: tuple[str, ...], unsteady: str = "") -> Iterator[HeadCheck]:
    """Checks of the clauses of autocast, for one model on the CPU.

    Args:
        unsteady: why two passes of the model cannot be compared, "" if they can.
    """
    wide = run(model, loss_of)
    before = {name: (value.dtype, value.detach().clone()) for name, value in model.named_parameters()}
    for name in formats:
        clause, low = FORMATS[name]
        former = _scope_state()
        kinds: list[torch.dtype] = []

        def loss_in_scope(batch: Any, low: torch.dtype = low, kinds: list[torch.dtype] = kinds) -> torch.Tensor:
            with torch.autocast("cpu", dtype=low):
                loss = loss_of(batch)
            kinds.append(loss.dtype)
            return loss

        try:
            mixed = run(model, loss_in_scope)
        except (RuntimeError, TypeError, ValueError, NotImplementedError) as error:
            yield left_out(clause, name, f"raises {type(error).__name__}: {' '.join(str(error).split())[:160]}")
            continue
        yield from _check_formats(model, before, name, kinds[0])
        yield make_check(
            "autocast.scope-restored", name, _scope_state() == former, _scope_text(_scope_state()), _scope_text(former)
        )
        if unsteady:
            yield left_out(clause, name, unsteady)
            continue
        loss_bound, bound = bounds(model, loss_of, torch.finfo(low).eps)
        of_gradients, of_loss = distance(mixed.gradients, wide.gradients), abs(mixed.loss - wide.loss)
        size = norm(wide.gradients)
        if not math.isfinite(bound + loss_bound):
            yield left_out(clause, name, UNBOUNDED)
            continue
        loss_bound += torch.finfo(low).eps * abs(wide.loss)
        holds = math.isfinite(of_gradients) and of_gradients <= bound and of_loss <= loss_bound
        got = f"gradient {of_gradients:.3g} and loss {of_loss:.3g} from float32's ({size:.3g}, {wide.loss:.6g})"
        yield make_check(clause, name, holds, got, f"at most {bound:.3g} and {loss_bound:.3g}, of {MEMBERS} members")


def _check_formats(model: Any, before: dict[str, Any], name: str, loss: torch.dtype) -> Iterator[HeadCheck]:
    now = {key: (value.dtype, value) for key, value in model.named_parameters()}
    changed = [
        key for key, (kind, value) in now.items() if kind != before[key][0] or not torch.equal(value, before[key][1])
    ]
    low = [key for key, (kind, value) in now.items() if value.grad is not None and value.grad.dtype != kind]
    wrong = [*changed, *low]
    got = f"{wrong[0]} and {len(wrong) - 1} more" if wrong else "all parameters and gradients float32"
    yield make_check("autocast.parameters-stay-float32", name, not wrong, got, "float32, unchanged")
    yield make_check("autocast.loss-is-wide", name, loss == torch.float32, str(loss), "torch.float32")


def _scope_text(state: tuple[Any, ...]) -> str:
    enabled, low, default, gradients = state
    formats = f"autocast's format {low}, default format {default}".replace("torch.", "")
    return f"autocast {_switch(enabled)}, gradients {_switch(gradients)}, {formats}"


def _switch(on: bool) -> str:
    return "on" if on else "off"


def _scope_state() -> tuple[Any, ...]:
    return (
        torch.is_autocast_enabled("cpu"),
        torch.get_autocast_dtype("cpu"),
        torch.get_default_dtype(),
        torch.is_grad_enabled(),
    )


@dataclass
class Segments:
    """The calls of checkpointed segments, and the trainable tensors and modules that each call used."""

    calls: int = 0
    used: dict[int, int] = field(default_factory=dict)
    references: list[Any] = field(default_factory=list)

    def call(self, checkpoint: Callable[..., Any], segment: Any, *arguments: Any, **named: Any) -> Any:
        """Calls a segment through a checkpointing function, and records the call."""
        self.calls += 1
        parts = {id(part): part for part in _parts((segment, arguments, named))}
        for number, part in parts.items():
            self.references.append(part)
            self.used[number] = self.used.get(number, 0) + 1
        return checkpoint(segment, *arguments, **named)

    @property
    def shared(self) -> int:
        """The number of tensors and modules that more than one call used."""
        return sum(count > 1 for count in self.used.values())


@dataclass
class InnerBytes:
    """Bytes that autograd saves within segments and checkpointing frees: no arguments, results, parameters."""

    model: Any
    size: int = 0

    def call(self, function: Any, *arguments: Any, **named: Any) -> Any:
        """Calls a segment without checkpointing, and adds its bytes to `size`."""
        storages: dict[int, int] = {}

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        with saved_tensors_hooks(pack, lambda saved: saved):
            result = function(*arguments, **named)
        kept = (*self.model.parameters(), *self.model.buffers(), *tensors((arguments, named, result)))
        for tensor in kept:
            storages.pop(tensor.untyped_storage().data_ptr(), None)
        self.size += sum(storages.values())
        return result


def tensors(value: Any) -> Iterator[torch.Tensor]:
    """The tensors in a value, including those in dictionaries, tuples and lists."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict | tuple | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from tensors(part)


def _parts(value: Any) -> Iterator[Any]:
    if isinstance(value, torch.Tensor):
        if value.requires_grad:
            yield value
    elif isinstance(value, partial):
        yield from _parts((value.func, value.args, value.keywords))
    elif isinstance(value, dict):
        yield from _parts(tuple(value.values()))
    elif isinstance(value, tuple | list):
        for item in value:
            yield from _parts(item)
    elif isinstance(getattr(value, "__self__", None), torch.nn.Module):
        yield value.__self__


def _measure_pass(model: Any, loss_of: Loss) -> tuple[MeasuredPass, int]:
    """One pass from a fixed random state, and the bytes that autograd saves for it."""
    torch.manual_seed(3)
    saved = SavedBytes(lambda: [*model.parameters(), *model.buffers()])

    def compute_loss(module: Any) -> torch.Tensor:
        with saved.counting():
            return loss_of(module)

    return run(model, compute_loss), saved.bytes()


def check_recomputation(
    plain_model: Any,
    checkpointed_model: Any,
    segments: Segments,
    loss_of: Loss,
    *,
    bound: Callable[[], tuple[float, float]],
    inner_bytes: Callable[[], int],
) -> Iterator[HeadCheck]:
    """Checks of the clauses of recomputation, by a pass of each of two equal models from one random state.

    Args:
        bound: tolerances of loss and gradient by rounding. It is called only if the loss differs, because a model takes
            other kernels, or if several segments use one tensor or module, whose gradient is then summed in another
            order.
        inner_bytes: bytes that checkpointing can free; called only if it frees none.
    """
    plain, plain_bytes = _measure_pass(plain_model, loss_of)
    checkpointed, checkpointed_bytes = _measure_pass(checkpointed_model, loss_of)
    of_loss, want = abs(plain.loss - checkpointed.loss), repr(plain.loss)
    holds = of_loss == 0.0
    if not holds:
        limit = bound()[0]
        holds, want = of_loss <= limit, f"{want} within {limit:.3g}"
    yield make_check("recompute.same-loss", "", holds, repr(checkpointed.loss), want)
    differs = first_difference(plain.gradients, checkpointed.gradients)
    of_gradients = distance(plain.gradients, checkpointed.gradients)
    got, want = "the same bits", "the same bits"
    holds = not differs
    if differs:
        got = f"gradients {of_gradients / max(norm(plain.gradients), 1e-300):.3g} of their norm apart, first {differs}"
        if segments.shared:
            limit = bound()[1]
            holds, want = of_gradients <= limit, f"{limit:.3g} apart ({segments.shared} shared by several segments)"
            got = f"gradients {of_gradients:.3g} apart, first {differs}"
    yield make_check("recompute.same-gradients", "", holds, got, want)
    clause, got = "recompute.frees-activations", f"{checkpointed_bytes:,} bytes in {segments.calls} segments"
    freed = segments.calls > 0 and checkpointed_bytes < plain_bytes
    if segments.calls and not freed and not inner_bytes():
        yield left_out(clause, "", "nothing is to be freed: no segment saves more than its inputs and results")
        return
    yield make_check(clause, "", freed, got, f"fewer than {plain_bytes:,} bytes")
