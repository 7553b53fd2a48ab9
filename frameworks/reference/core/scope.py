"""The precision scope: class and format of each operation.

    low:  products. They run in the scope's format.
    wide: reductions, softmax, losses, statistics, exponentials and powers. They run in float32 or wider.
    rest: they run in the widest format of their operands; O2 and O3 cast float32 operands to the scope's format.

A float64 operand makes any operation float64, and integers are never cast. At O3 the result of a wide operation, unless
it is a loss, is rounded to the scope's format. Source: Micikevicius et al. 2018, section 3.3; torch.amp's operation
reference.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import reduce

from fixtures.arrays import wider
from fixtures.recipe import FLOAT32, Precision

LOW = frozenset({"matmul", "batched_matmul", "einsum", "linear", "conv2d", "attention"})
LOSSES = frozenset(
    {"cross_entropy", "squared_error", "absolute_error", "huber", "kl_divergence", "binary_cross_entropy_logits"}
)
NORMS = frozenset({"layer_norm", "batch_norm", "instance_norm", "rms_norm"})
REDUCTIONS = frozenset(
    {"sum", "mean", "variance", "norm", "prod", "cumsum", "cumprod", "logsumexp", "softmax", "log_softmax"}
)
POWERS = frozenset({"exp", "expm1", "log", "log1p", "pow", "square", "rsqrt", "reciprocal", "softplus"})
WIDE = LOSSES | NORMS | REDUCTIONS | POWERS


@dataclass(frozen=True)
class Scope:
    """Autocast settings of a region; the user's lists `wide` and `low` take precedence over the built-in ones."""

    precision: Precision = FLOAT32
    wide: frozenset[str] = frozenset()
    low: frozenset[str] = frozenset()

    @property
    def active(self) -> bool:
        """True if the scope casts operands."""
        return self.precision.level != "O0"

    def kind(self, op: str) -> str:
        """ "low", "wide" or "follows"."""
        if op in self.wide:
            return "wide"
        if op in self.low or op in LOW:
            return "low"
        return "wide" if op in WIDE else "follows"

    def formats(self, op: str, operands: Sequence[str]) -> tuple[str, str]:
        """The computing format and the result format of `op`, for floating operands of these formats."""
        widest = reduce(wider, operands)
        if not self.active or widest == "float64":
            return widest, widest
        kind, low = self.kind(op), self.precision.format
        if kind == "low":
            return low, low
        if kind == "wide":
            unchanged = self.precision.level != "O3" or op in LOSSES or op in self.wide
            return "float32", "float32" if unchanged else low
        return (widest, widest) if self.precision.level == "O1" else (low, low)

    def text(self) -> str:
        """The scope in one line, for `parse_scope`."""
        lists = (",".join(sorted(names)) for names in (self.wide, self.low))
        return ";".join((self.precision.level, self.precision.format, *lists))


def parse_scope(text: str) -> Scope:
    """The scope that `Scope.text` described."""
    level, name, wide, low = text.split(";")
    precision = Precision(level, name)  # type: ignore[arg-type]
    return Scope(precision, *(frozenset(part.split(",")) - {""} for part in (wide, low)))


_OFF = Scope()
_current: ContextVar[Scope] = ContextVar("reference_precision_scope", default=_OFF)


def current() -> Scope:
    """The open scope of this thread; a new thread has none."""
    return _current.get()


def enter(scope: Scope) -> None:
    """Makes `scope` the open scope and never restores the former one."""
    _current.set(scope)


@contextmanager
def open_scope(scope: Scope) -> Iterator[None]:
    """Opens a scope and restores the former one on exit, also if a generator is closed in another context."""
    former = _current.get()
    _current.set(scope)
    try:
        yield
    finally:
        _current.set(former)
