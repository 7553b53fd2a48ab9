"""The law of single operations in nested precision scopes."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace

import numpy as np

from conformance.checks.evidence import same_bits, short_text
from conformance.checks.subject import Subject
from conformance.generative.programs.ensemble import MEMBERS
from conformance.oracle.errormodel import IMPLEMENTATION_FREEDOM
from conformance.search.adapter_settings import GenerativeSettings
from conformance.search.arrays import Layout, gaps, laid_out, unit
from conformance.search.properties import Failure
from fixtures.arrays import FORMATS, Array, format_of
from fixtures.recipe import FormatName, Precision
from frameworks.contract import OpResult, Unsupported
from frameworks.operations import CATALOGUE
from frameworks.reference import ReferenceFramework
from frameworks.reference.core.rounding import Nearest, Rounding, Stochastic

FIXED = ("kl_divergence", "binary_cross_entropy_logits", "gather_ids")
"""Operations whose operands are restricted; they keep the catalogue's shapes and values."""
OWN_EPSILON = ("layer_norm", "instance_norm", "batch_norm", "rms_norm")
"""Operations to which the catalogue gives no epsilon, so that each framework takes its own."""
UNBOUNDED = (
    *("softmax", "log_softmax", "logsumexp", "exp", "sigmoid", "tanh", "relu", "max", "maximum", "softplus", "elu"),
)
"""Operations that minus infinity is an ordinary operand of, as a class that is masked out is."""
SHIFTED = ("softmax", "log_softmax", "logsumexp", "cross_entropy")
"""Operations whose result hardly depends on what is added to a whole row, however far from zero that brings it."""
MIXED = ("add", "subtract", "multiply", "divide", "maximum", "where", "concatenate", "stack")
"""Operations of two like operands, which may come in two formats."""
RANDOM = ("dropout",)
"""Operations with random results."""


@dataclass(frozen=True)
class NestedScope:
    """A precision scope; `wide` and `low` name operations for the framework's own lists."""

    format: FormatName
    enabled: bool = True
    wide: tuple[str, ...] = ()
    low: tuple[str, ...] = ()


@dataclass(frozen=True)
class ScopedOperation:
    """An operation in a nest of scopes, after other scopes that were left.

    Attributes:
        op: a name of the catalogue.
        sizes: by what the catalogue's sizes 4 and 8 are replaced.
        format: of the operands that are floats.
        before: scopes that were opened and left, each by an exception if `raises`.
        nest: scopes that are open, the innermost last.
        left: scopes that were opened and left inside all of those.
        seed: of the operands' values.
        magnitude: operands that are floats are multiplied by 2 to its power.
        constant: whether each of them is one value everywhere.
        second: format of the second of two like operands, None for that of the first.
        special: what stands in the last element of the first operand, None for an ordinary value.
        empty: whether the second operand has no column, as may be of a concatenation.
        offset: is added to the first operand, one of `SHIFTED`.
        layout: how operands lie in memory.
        prepared: whether all scopes are made before the first of them is opened.
    """

    op: str
    sizes: tuple[int, int]
    format: FormatName
    before: tuple[NestedScope, ...]
    raises: bool
    nest: tuple[NestedScope, ...]
    seed: int
    magnitude: int = 0
    constant: bool = False
    left: tuple[NestedScope, ...] = ()
    second: FormatName | None = None
    special: float | None = None
    empty: bool = False
    offset: float = 0.0
    layout: Layout = "rows"
    prepared: bool = False

    def words(self) -> frozenset[str]:
        """What exclusions may name."""
        regions = (*self.before, *self.nest, *self.left)
        scopes = {f"scope={region.format}" for region in regions}
        lists = {"scope=lists"} if any(region.wide or region.low for region in regions) else set()
        flags = {
            "scope=nested": len(self.nest) > 1,
            "operands=large": self.magnitude > 0,
            "operands=small": self.magnitude < 0,
            "operands=constant": self.constant,
            "operands=mixed": self.second is not None,
            "operands=special": self.special is not None,
            "operands=empty": self.empty,
            "operands=one-term": self.sizes[1] == 1,
            "operands=offset": self.offset != 0.0,
        }
        words = {word for word, there in flags.items() if there}
        return frozenset({f"operation={self.op}", f"operand={self.format}", *scopes, *lists, *words})

    def arrays(self) -> tuple[Array, ...]:
        """The operands, as they lie in memory."""
        return tuple(laid_out(array, self.layout) for array in self._values())

    def _values(self) -> tuple[Array, ...]:
        rng = np.random.default_rng([self.seed, 25])
        made = CATALOGUE[self.op]()
        if self.op in FIXED:
            return tuple(self._cast(array) for array in made)
        arrays: list[Array] = []
        for array, shape in zip(made, self._shapes([array.shape for array in made]), strict=True):
            if array.dtype.kind in "iu":
                arrays.append(rng.integers(0, self.sizes[1], shape))
                continue
            positive = bool((array > 0).all())
            values = np.asarray(rng.uniform(0.25, 1.75, shape) if positive else rng.standard_normal(shape))
            values = np.full_like(values, values.reshape(-1)[-1]) if self.constant else values
            values = np.ldexp(values, self.magnitude)
            if not arrays:
                values += self.offset
            if self.special is not None and not arrays:
                values.reshape(-1)[-1] = self.special
            arrays.append(self._cast(values.astype(np.float32)))
        if self.second is not None:
            arrays[1] = arrays[1].astype(FORMATS[self.second].dtype)
        if self.empty:
            arrays[1] = arrays[1][..., :0]
        return tuple(arrays)

    def _shapes(self, usual: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
        """The operands' shapes: those of the catalogue with other sizes, or a picture and a kernel that may be of one.

        What is pooled has even sides, since no clause says what becomes of a row that is left over.
        """
        a, b = self.sizes
        if self.op == "conv2d":
            side = 1 + a % 3
            return [(2, 3 + a % 6, 3 + b % 5, 1 + a % 4), (side, side, 1 + a % 4, 1 + b % 5)]
        if self.op in ("max_pool", "average_pool"):
            return [(2, 2 + 2 * (a % 4), 2 + 2 * (b % 3), 1 + b % 5)]
        sizes = {4: a, 8: b}
        return [tuple(sizes.get(n, n) for n in shape) for shape in usual]

    def _cast(self, array: Array) -> Array:
        return array if array.dtype.kind in "iu" else array.astype(FORMATS[self.format].dtype)

    def failure(self, subject: Subject, laws: GenerativeSettings) -> Failure | None:
        """The difference between the operation here and in only the innermost scope.

        What the framework refuses there, such as operands in another low format, is not judged.
        """
        arrays = self.arrays()
        try:
            alone = _run(subject, self.nest[-1:], self.op, arrays)
        except Unsupported:
            raise
        except Exception:
            return None
        for region in self.before:
            _leave(opened(subject, region), self.raises)
        try:
            here = self._here(subject, arrays)
        except Exception as error:
            return failed("raised", f"{self.op} raises {error!r} here, but not in only the innermost scope")
        if here.dtype != alone.dtype:
            formats = f"got {here.dtype}, want {alone.dtype} as in only the innermost scope"
            return failed("format", f"format of {self.op}: {formats}")
        if (other := self._other_format(subject, arrays, alone.dtype)) is not None:
            return other
        if not same_bits(here.value, alone.value):
            values = f"got {short_text(here.value)}, want {short_text(alone.value)} as in only the innermost scope"
            return failed("value", f"{self.op}: {values}")
        if self.second is not None:
            return None
        usual = _run(subject, self.nest[-1:], self.op, tuple(self._cast(array) for array in CATALOGUE[self.op]()))
        if usual.dtype != alone.dtype:
            shapes = [array.shape for array in arrays]
            formats = f"got {alone.dtype} for shapes {shapes}, want {usual.dtype} as for others"
            return failed("shape", f"format of {self.op}: {formats}")
        return self._beyond_rounding(subject, arrays, alone)

    def _here(self, subject: Subject, arrays: tuple[Array, ...]) -> OpResult:
        """The operation in the nest, after the scopes that were left inside of it."""
        one_by_one = (opened(subject, region) for region in (*self.nest, *self.left))
        scopes = iter([*one_by_one]) if self.prepared else one_by_one
        with ExitStack() as entered:
            for _ in self.nest:
                entered.enter_context(next(scopes))
            for _ in self.left:
                _leave(next(scopes), self.raises)
            return subject.framework.run_op(self.op, *arrays)

    def _other_format(self, subject: Subject, arrays: tuple[Array, ...], dtype: str) -> Failure | None:
        """Changes that must not affect the result's format: an empty operand, names of other operations, operand
        order."""
        innermost, formats = self.nest[-1], f"{self.format} and {self.second or self.format}"

        def differs(region: NestedScope, operands: tuple[Array, ...]) -> str | None:
            try:
                result = _run(subject, (region,), self.op, operands)
            except Exception:
                return None
            return None if result.dtype == dtype else result.dtype

        if self.empty and (full := differs(innermost, replace(self, empty=False).arrays())) is not None:
            text = f"got {dtype} with an empty second operand, want {full} as otherwise, for {formats}"
            return failed("order", f"format of {self.op}: {text}")
        named, bare = (*innermost.wide, *innermost.low), replace(innermost, wide=(), low=())
        if named and self.op not in named and (plain := differs(bare, arrays)) is not None:
            text = f"got {dtype} in a scope that names other operations, want {plain} as without"
            return failed("lists", f"format of {self.op}: {text}")
        if self.second is not None and (turned := differs(innermost, arrays[::-1])) is not None:
            return failed("order", f"format of {self.op}: got {dtype} for {formats}, want {turned} as in reverse order")
        return None

    def _beyond_rounding(self, subject: Subject, arrays: tuple[Array, ...], result: OpResult) -> Failure | None:
        """Compares the value with the oracle's, which is computed in the result's format."""
        scope = self.nest[-1].format
        if self.op in OWN_EPSILON or result.value.dtype.kind in "iub" or result.dtype not in (scope, "float32"):
            return None
        here = (self.op,)
        low, wide = (here, ()) if result.dtype == scope else ((), here)

        def computed(rounding: Rounding, operands: tuple[Array, ...] = arrays) -> Array:
            oracle = ReferenceFramework("cpu", conventions=subject.conventions, rounding=rounding)
            with oracle.autocast(Precision("O1", scope), wide=wide, low=low):
                return oracle.run_op(self.op, *operands).value.astype(np.float64)

        exact = computed(Nearest())
        members: list[Array] = []
        for rng in (np.random.default_rng([self.seed, 27, i]) for i in range(MEMBERS)):
            near = wide or self.op == "attention"
            operands = tuple(_nearby(array, rng, result.dtype) for array in arrays) if near else arrays
            members.append(computed(Stochastic(rng), operands))
        judged = np.isfinite([exact, *members]).all(axis=0)
        if not judged.all() and self.special != -math.inf:
            return None
        exact, mine = exact[judged], result.value.astype(np.float64)[judged]
        spread = max(float(np.abs(member[judged] - exact).max(initial=0.0)) for member in members)
        largest = float(np.abs(exact).max(initial=0.0))
        terms = max(array.size for array in arrays) / max(1, mine.size)
        bound = IMPLEMENTATION_FREEDOM * spread + unit(result.value) * largest * max(1.0, math.sqrt(terms) / 2.0)
        apart = float(gaps(mine, exact).max(initial=0.0))
        if apart <= bound:
            return None
        return failed("value", f"distance of {self.op} in {result.dtype}: got {apart:.3g}, want at most {bound:.3g}")

    def clause(self, subject: Subject, laws: GenerativeSettings, failure: Failure) -> tuple[str, str]:
        """The clause that a failure breaks, and the message."""
        named = {
            "shape": "autocast.matmul-is-low",
            "order": "autocast.promotes-to-widest",
            "lists": "autocast.user-lists",
        }
        clause = named.get(failure.name, "autocast.scope-nests")
        if len(self.nest) == 1 and self.before and failure.name not in named:
            clause = "autocast.scope-restored"
        return clause, failure.breaking(clause)


def _nearby(array: Array, rng: np.random.Generator, name: str) -> Array:
    """The operand with every float value moved by a unit of a format, in float32: what rounding on the way is like.

    A sum that is rounded on its way is the exact sum of operands that are near (Higham, "Accuracy and Stability of
    Numerical Algorithms", 2002, section 4.2); attention may divide one of them by the root of the width.
    """
    if array.dtype.kind in "iub":
        return array
    signs = rng.choice([-1.0, 1.0], array.shape)
    moved = array.astype(np.float64) * (1.0 + 2.0 * signs * format_of(name).unit_roundoff)
    return np.asarray(moved.astype(np.float32))


def _run(subject: Subject, nest: tuple[NestedScope, ...], op: str, arrays: tuple[Array, ...]) -> OpResult:
    with ExitStack() as scopes:
        for region in nest:
            scopes.enter_context(opened(subject, region))
        return subject.framework.run_op(op, *arrays)


def opened(subject: Subject, region: NestedScope) -> AbstractContextManager[None]:
    """The scope, as the framework opens it."""
    precision = Precision("O1", region.format)
    return subject.framework.autocast(precision, enabled=region.enabled, wide=region.wide, low=region.low)


def _leave(scope: AbstractContextManager[None], raises: bool) -> None:
    try:
        with scope:
            if raises:
                raise ZeroDivisionError
    except ZeroDivisionError:
        pass


def failed(name: str, text: str) -> Failure:
    """The failure of a single operation or call."""
    return Failure(0, name, False, text)
