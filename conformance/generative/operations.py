"""The laws of single operations in nested precision scopes, and of recomputed calls."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, replace

import numpy as np
from hypothesis import strategies as st

from conformance.checks.evidence import clean_message, same_bits, short_text
from conformance.checks.subject import Subject, supports
from conformance.generative.programs.ensemble import MEMBERS
from conformance.generative.programs.executor import open_and_leave
from conformance.generative.programs.recipes import scope_formats
from conformance.oracle.errormodel import IMPLEMENTATION_FREEDOM, distance
from conformance.search import LAYOUTS, Failure, GenerativeSettings, Layout, gaps, laid_out, nth, unit
from conformance.techniques.recompute import function_bounds, of_two_runs
from fixtures.arrays import FORMATS, Array, format_of
from fixtures.recipe import FormatName, Precision
from frameworks.contract import Capability, Framework, OpResult, RecomputeCase, RecomputeResult, Unsupported
from frameworks.operations import CATALOGUE
from frameworks.reference import ReferenceFramework
from frameworks.reference.core.rounding import Nearest, Rounding, Stochastic

FIXED = ("kl_divergence", "binary_cross_entropy_logits", "gather_ids")
"""Operations with restricted operands; they keep the shapes and values of the catalogue."""
OWN_EPSILON = ("layer_norm", "instance_norm", "batch_norm", "rms_norm")
"""Operations to which the catalogue passes no epsilon, so that each framework uses its own."""
UNBOUNDED = (
    *("softmax", "log_softmax", "logsumexp", "exp", "sigmoid", "tanh", "relu", "max", "maximum", "softplus", "elu"),
)
"""Operations for which minus infinity is an ordinary operand, such as a masked class."""
SHIFTED = ("softmax", "log_softmax", "logsumexp", "cross_entropy")
"""Operations whose result hardly changes when a constant is added to a whole row, however large."""
MIXED = ("add", "subtract", "multiply", "divide", "maximum", "where", "concatenate", "stack")
"""Operations of two like operands, whose formats may differ."""
RANDOM = ("dropout",)
"""Operations with random results."""
WAYS: tuple[RecomputeCase, ...] = ("positional", "tuple", "list", "dict", "keyword", "no-grad-input", "raises")
SIZES = (4, 5, 7, 8, 9, 16, 33)
"""Sizes of operands; the smallest is 4, since the catalogue's labels go up to 3."""
PRODUCTS = ("matmul", "batched_matmul", "einsum", "linear", "attention")
FEW = (1, 1, 2, 3)
"""Further sizes for products, since frameworks may compute products with vectors or single numbers differently."""
LONG = ((5, 2051), (65_539, 4))
"""Rows and columns that exceed the sizes at which kernels switch or count in 16 bits, for row-wise operations."""
BY_ROW = frozenset(op for op in CATALOGUE if all(array.shape[:1] == (4,) for array in CATALOGUE[op]())) - {
    *("matmul", "einsum", "linear", "gather_ids", "embedding"),
    *("sum", "mean", "variance", "norm", "prod"),  # reduce all elements, like the mean of a loss
    *("cross_entropy", "squared_error", "absolute_error", "huber"),
    "cumsum",  # its rounding errors lean to one side, unlike those of random rounding
}
"""Operations whose rows do not depend on each other."""
MANY_CLASSES = (5, 2051)
"""Rows and classes of a loss; the classes exceed a kernel's block."""
SEVERAL_WAYS = ("layer_norm", "rms_norm", "softmax", "log_softmax", "conv2d", "concatenate", "cross_entropy")
"""Operations for which frameworks have separate kernels for some shapes or values; they are drawn more often."""
SMALLEST = {"norm": -4, "elu": 0}
"""Exponents that make operands small, -12 by default; squares underflow in float16, and elu cancels."""
REFUSABLE: tuple[RecomputeCase, ...] = ("tuple", "list", "dict", "keyword", "raises")
"""Ways to pass arguments that a framework may refuse with an exception; "raises" must raise."""


@dataclass(frozen=True)
class NestedScope:
    """A precision scope; `wide` and `low` name operations that the user adds to the framework's lists."""

    format: FormatName
    enabled: bool = True
    wide: tuple[str, ...] = ()
    low: tuple[str, ...] = ()


@dataclass(frozen=True)
class ScopedOperation:
    """An operation in nested scopes, after other scopes were opened and left.

    Attributes:
        op: the operation's name in the catalogue.
        sizes: replacements of the catalogue's sizes 4 and 8.
        format: of the float operands.
        before: scopes that are opened and left beforehand, each by an exception if `raises`.
        nest: scopes that are open, the innermost last.
        left: scopes that are opened and left inside all scopes of `nest`.
        seed: of the operands' values.
        magnitude: float operands are multiplied by 2 to this power.
        constant: whether every float operand has one value everywhere.
        second: format of the second of two like operands, None for the first one's.
        special: value of the last element of the first operand, None for an ordinary value.
        empty: whether the second operand of a concatenation has no columns.
        offset: is added to the first operand of an operation in `SHIFTED`.
        layout: memory layout of the operands.
        prepared: whether all scopes are created before the first of them is opened.
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
        """Return the features that exclusions may name."""
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
        active_flags = {word for word, applies in flags.items() if applies}
        return frozenset({f"operation={self.op}", f"operand={self.format}", *scopes, *lists, *active_flags})

    def arrays(self) -> tuple[Array, ...]:
        """Return the operands, in their memory layout."""
        return tuple(laid_out(array, self.layout) for array in self._values())

    def _values(self) -> tuple[Array, ...]:
        rng = np.random.default_rng([self.seed, 25])
        operands = CATALOGUE[self.op]()
        if self.op in FIXED:
            return tuple(self._cast(array) for array in operands)
        arrays: list[Array] = []
        for array, shape in zip(operands, self._shapes([array.shape for array in operands]), strict=True):
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
        """Return the operands' shapes: the catalogue's with other sizes, or a picture and a kernel of size 1 or more.

        Pooled pictures have even sides, since no clause says what happens to a remaining row.
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
        """Return the difference between the operation here and in the innermost scope alone; None if there is none.

        If the framework refuses the operation there, for example operands in another low format, nothing is judged.
        """
        arrays = self.arrays()
        try:
            alone = _run(subject, self.nest[-1:], self.op, arrays)
        except (Unsupported, NameError):  # a wrong name is an error in the code of an adapter
            raise
        except Exception:  # refused in the innermost scope alone: a version may even lack the function
            return None
        for region in self.before:
            open_and_leave(open_scope(subject, region), self.raises)
        try:
            here = self._run_nested(subject, arrays)
        except Exception as error:  # the same call has just succeeded, so any exception is a failure
            return failure_of_call("raised", f"{self.op} raises {error!r} here, but not in only the innermost scope")
        if here.dtype != alone.dtype:
            formats = f"got {here.dtype}, want {alone.dtype} as in only the innermost scope"
            return failure_of_call("format", f"format of {self.op}: {formats}")
        if (other := self._find_format_change(subject, arrays, alone.dtype)) is not None:
            return other
        if not same_bits(here.value, alone.value):
            values = f"got {short_text(here.value)}, want {short_text(alone.value)} as in only the innermost scope"
            return failure_of_call("value", f"{self.op}: {values}")
        if self.second is not None:
            return None
        usual = _run(subject, self.nest[-1:], self.op, tuple(self._cast(array) for array in CATALOGUE[self.op]()))
        if usual.dtype != alone.dtype:
            shapes = [array.shape for array in arrays]
            formats = f"got {alone.dtype} for shapes {shapes}, want {usual.dtype} as for others"
            return failure_of_call("shape", f"format of {self.op}: {formats}")
        return self._find_value_error(subject, arrays, alone)

    def _run_nested(self, subject: Subject, arrays: tuple[Array, ...]) -> OpResult:
        """Return the operation's result in the nest, after the scopes of `left` were opened and left inside it."""
        one_by_one = (open_scope(subject, region) for region in (*self.nest, *self.left))
        scopes = iter([*one_by_one]) if self.prepared else one_by_one
        with ExitStack() as entered:
            for _ in self.nest:
                entered.enter_context(next(scopes))
            for _ in self.left:
                open_and_leave(next(scopes), self.raises)
            return subject.framework.run_op(self.op, *arrays)

    def _find_format_change(self, subject: Subject, arrays: tuple[Array, ...], dtype: str) -> Failure | None:
        """Return the first change that affects the result's format but must not: an empty operand, the names of other
        operations in lists, or operand order."""
        innermost, formats = self.nest[-1], f"{self.format} and {self.second or self.format}"

        def differs(region: NestedScope, operands: tuple[Array, ...]) -> str | None:
            try:
                result = _run(subject, (region,), self.op, operands)
            except NameError:
                raise
            except Exception:  # an operation that is refused has no format to compare
                return None
            return None if result.dtype == dtype else result.dtype

        if self.empty and (full := differs(innermost, replace(self, empty=False).arrays())) is not None:
            text = f"got {dtype} with an empty second operand, want {full} as otherwise, for {formats}"
            return failure_of_call("order", f"format of {self.op}: {text}")
        named, bare = (*innermost.wide, *innermost.low), replace(innermost, wide=(), low=())
        if named and self.op not in named and (plain := differs(bare, arrays)) is not None:
            text = f"got {dtype} in a scope that names other operations, want {plain} as without"
            return failure_of_call("lists", f"format of {self.op}: {text}")
        if self.second is not None and (turned := differs(innermost, arrays[::-1])) is not None:
            return failure_of_call(
                "order", f"format of {self.op}: got {dtype} for {formats}, want {turned} as in reverse order"
            )
        return None

    def _find_value_error(self, subject: Subject, arrays: tuple[Array, ...], result: OpResult) -> Failure | None:
        """Compare the value with the oracle's, which is computed in the result's format."""
        scope = self.nest[-1].format
        if self.op in OWN_EPSILON or result.value.dtype.kind in "iub" or result.dtype not in (scope, "float32"):
            return None
        named = (self.op,)
        low, wide = (named, ()) if result.dtype == scope else ((), named)

        def compute(rounding: Rounding, operands: tuple[Array, ...] = arrays) -> Array:
            oracle = ReferenceFramework("cpu", conventions=subject.conventions, rounding=rounding)
            with oracle.autocast(Precision("O1", scope), wide=wide, low=low):
                return oracle.run_op(self.op, *operands).value.astype(np.float64)

        exact = compute(Nearest())
        members: list[Array] = []
        for rng in (np.random.default_rng([self.seed, 27, i]) for i in range(MEMBERS)):
            near = wide or self.op == "attention"
            operands = tuple(_nearby(array, rng, result.dtype) for array in arrays) if near else arrays
            members.append(compute(Stochastic(rng), operands))
        judged = np.isfinite([exact, *members]).all(axis=0)
        if not judged.all() and self.special != -math.inf:
            return None
        exact, measured = exact[judged], result.value.astype(np.float64)[judged]
        spread = max(float(np.abs(member[judged] - exact).max(initial=0.0)) for member in members)
        largest = float(np.abs(exact).max(initial=0.0))
        terms = max(array.size for array in arrays) / max(1, measured.size)
        bound = IMPLEMENTATION_FREEDOM * spread + unit(result.value) * largest * max(1.0, math.sqrt(terms) / 2.0)
        gap = float(gaps(measured, exact).max(initial=0.0))
        if gap <= bound:
            return None
        text = f"distance of {self.op} in {result.dtype}: got {gap:.3g}, want at most {bound:.3g}"
        return failure_of_call("value", text)

    def clause(self, subject: Subject, laws: GenerativeSettings, failure: Failure) -> tuple[str, str]:
        """Return the clause that a failure breaks, and the message."""
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
    """Return the operand with every float value moved by one unit of format `name`, in float32.

    This models rounding inside a sum: the rounded sum is the exact sum of operands that are near (Higham, "Accuracy and
    Stability of Numerical Algorithms", 2002, section 4.2). Attention may divide an operand by the root of the width.
    """
    if array.dtype.kind in "iub":
        return array
    signs = rng.choice([-1.0, 1.0], array.shape)
    moved = array.astype(np.float64) * (1.0 + 2.0 * signs * format_of(name).unit_roundoff)
    return np.asarray(moved.astype(np.float32))


def _run(subject: Subject, nest: tuple[NestedScope, ...], op: str, arrays: tuple[Array, ...]) -> OpResult:
    with ExitStack() as scopes:
        for region in nest:
            scopes.enter_context(open_scope(subject, region))
        return subject.framework.run_op(op, *arrays)


def open_scope(subject: Subject, region: NestedScope) -> AbstractContextManager[None]:
    """Return the scope, as the framework opens it."""
    precision = Precision("O1", region.format)
    return subject.framework.autocast(precision, enabled=region.enabled, wide=region.wide, low=region.low)


def failure_of_call(name: str, text: str) -> Failure:
    """Return the failure of a single operation or call."""
    return Failure(0, name, False, text)


@dataclass(frozen=True)
class Calls:
    """Consecutive recomputed calls, any of which may raise; all run in one precision scope if `scope` is set."""

    calls: tuple[Call, ...]
    scope: NestedScope | None = None

    def words(self) -> frozenset[str]:
        """Return the features that exclusions may name."""
        scope = {f"scope={self.scope.format}"} if self.scope is not None else set()
        return frozenset(word for call in self.calls for word in call.words()) | scope

    def failure(self, subject: Subject, laws: GenerativeSettings) -> Failure | None:
        """Return the first difference from the plain call, which is made before all others in the same scope."""
        plain: list[RecomputeResult] = []
        for call in self.calls:
            try:
                with self._open_scope(subject):
                    plain.append(subject.framework.recompute("plain", *call.operands()))
            except Unsupported:
                raise
            except Exception as error:  # nothing is recomputed yet, so any exception is a failure
                text = f"a plain call raised {type(error).__name__}: {clean_message(str(error))[:200]}"
                return failure_of_call("raised", text)
        with self._open_scope(subject):
            pairs = zip(self.calls, plain, strict=True)
            failures = (call.find_difference(subject, result) for call, result in pairs)
            return next((failure for failure in failures if failure is not None), None)

    def _open_scope(self, subject: Subject) -> AbstractContextManager[None]:
        return nullcontext() if self.scope is None else open_scope(subject, self.scope)

    def clause(self, subject: Subject, laws: GenerativeSettings, failure: Failure) -> tuple[str, str]:
        """Return the clause that a failure breaks, and the message."""
        clause = "recompute.same-loss" if failure.name == "value" else "recompute.same-gradients"
        if len(self.calls) > 1 and Calls(self.calls[-1:], self.scope).failure(subject, laws) is None:
            clause = "recompute.failure-leaves-no-trace"
        return clause, failure.breaking(clause)


@dataclass(frozen=True)
class Call:
    """A recomputed call of Σ tanh(x·w), with x (n, m) and w (m, k) of these sizes."""

    way: RecomputeCase
    variant: str | None
    sizes: tuple[int, int, int]
    seed: int

    def words(self) -> frozenset[str]:
        """Return the features that exclusions may name."""
        return frozenset({f"call={self.way}", f"recompute.variant={self.variant or 'default'}"})

    def operands(self) -> tuple[Array, Array]:
        """Return x and w, in their memory layout."""
        rng = np.random.default_rng([self.seed, 26])
        n, m, k = self.sizes
        x, w = rng.standard_normal((n, m)).astype(np.float32), rng.standard_normal((m, k)).astype(np.float32)
        return laid_out(x, nth(self.seed)), laid_out(w, nth(self.seed + n))

    def find_difference(self, subject: Subject, plain: RecomputeResult) -> Failure | None:
        """Return the difference from the plain call; a framework may refuse containers and keyword arguments."""
        x, w = self.operands()
        try:
            recomputed = subject.framework.recompute(self.way, x, w, self.variant)
        except Unsupported:
            raise
        except Exception as error:  # a refusal may be any exception, even of an attribute that a container lacks
            raised = f"a recomputed call, {self}, raised {type(error).__name__}: {clean_message(str(error))[:200]}"
            return None if self.way in REFUSABLE else failure_of_call("raised", raised)
        bounds = function_bounds(x, w, subject.seed) if subject.conventions.compiled else {}
        for name in ("value", "x", "w"):
            measured, expected = getattr(recomputed, name), getattr(plain, name)
            if name == "x" and self.way == "no-grad-input":
                continue
            if measured is not None and expected is not None and bounds:
                gap = distance(np.asarray(measured, np.float64), np.asarray(expected, np.float64))
                if gap <= of_two_runs(bounds[name]).value:
                    continue
            if not same_bits(measured, expected):
                values = f"got {short_text(measured)}, want {short_text(expected)} as in the plain call"
                return failure_of_call(name, f"{name} of the recomputed call: {values}")
        return None


@st.composite
def draw_scoped_operation(draw: st.DrawFn, framework: Framework) -> ScopedOperation:
    """Draw an operation in one to three scopes, after up to two others."""
    formats = scope_formats(framework)
    operations = sorted(op for op in CATALOGUE if op not in RANDOM)
    op = draw(st.sampled_from([*PRODUCTS]) | st.sampled_from(operations) | st.sampled_from([*SEVERAL_WAYS]))
    lists = supports(framework, Capability.AUTOCAST_LISTS)
    unrelated = "matmul" if op in ("tanh", "gelu") else "tanh"

    def region() -> NestedScope:
        named = draw(st.sampled_from([(op,), (op,), (unrelated,)]))
        listed = (named, ()) if lists and draw(st.integers(0, 3)) == 0 else ((), ())
        wide, low = listed if draw(st.booleans()) else listed[::-1]
        return NestedScope(draw(st.sampled_from(formats)), draw(st.integers(0, 3)) > 0, wide, low)

    before = tuple(region() for _ in range(draw(st.integers(0, 2))))
    nest = tuple(region() for _ in range(draw(st.integers(1, 3))))
    sized = st.sampled_from([*SIZES, *FEW * (op in PRODUCTS)])
    sizes = draw(sized), draw(sized)
    if op in BY_ROW and draw(st.integers(0, 3)) == 0:
        sizes = draw(st.sampled_from(LONG))
    if op == "cross_entropy" and draw(st.booleans()):
        sizes = MANY_CLASSES
    operand = draw(st.sampled_from(["float32", "float32", *formats]))
    left = (region(),) if draw(st.integers(0, 3)) == 0 else ()
    second = draw(st.sampled_from([None, "float32", *formats])) if op in MIXED else None
    specials = [0.0, *[-math.inf] * (op in UNBOUNDED)]
    magnitudes = [0, 0, 0, 0, SMALLEST.get(op, -12), 4, *_largest(op, (operand, nest[-1].format))]
    return ScopedOperation(
        op,
        sizes,
        operand,
        before,
        draw(st.booleans()),
        nest,
        draw(st.integers(0, 99)),
        magnitude=draw(st.sampled_from(magnitudes)),
        constant=draw(st.integers(0, 2 if op == "attention" else 7)) == 0,
        left=left,
        second=None if second == operand else second,
        offset=draw(st.sampled_from([0.0, 0.0, *[-120.0, -200.0, 150.0] * (op in SHIFTED)])),
        empty=op == "concatenate" and draw(st.booleans()),
        layout=draw(st.sampled_from(LAYOUTS)),
        prepared=draw(st.booleans()),
        special=draw(st.sampled_from(specials)) if draw(st.integers(0, 3)) == 0 else None,
    )


def _largest(op: str, formats: tuple[str, str]) -> tuple[int, ...]:
    """Return exponents that make operands large; attention scores are squares, and the largest overflow float16."""
    if op != "attention":
        return (10,)
    return (4, 4, 4) if "float16" in formats else (4, 9, 9)


@st.composite
def draw_calls(draw: st.DrawFn, framework: Framework) -> Calls:
    """Draw one to three calls. A compiled framework gets no scope, since its rounding is bounded in float32 only."""
    drawn = tuple(draw(st.lists(_draw_call(framework), min_size=1, max_size=3)))
    formats = scope_formats(framework) if not framework.conventions().compiled else []
    return Calls(drawn, draw(st.sampled_from([None, *(NestedScope(name) for name in formats)])))


@st.composite
def _draw_call(draw: st.DrawFn, framework: Framework) -> Call:
    """Draw a call with any way to pass arguments, at sizes from 1 on."""
    size = st.sampled_from([1, 2, 3, 5, 8, 17])
    variant = draw(st.sampled_from([None, *framework.recompute_variants()]))
    return Call(draw(st.sampled_from(WAYS)), variant, (draw(size), draw(size), draw(size)), draw(st.integers(0, 99)))
