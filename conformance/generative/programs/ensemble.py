"""The oracle's plays of a case on the reference: rounded to nearest, at random, or not; and factors of the bounds."""

import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, reduce
from typing import Any

import autograd.numpy as anp
import numpy as np
from autograd.extend import defvjp, primitive
from autograd.scipy.special import erf
from autograd.tracer import isbox

from conformance.generative.programs.case import (
    DamageOffloaded,
    GeneratedCase,
    OpenScope,
    Restore,
    RestoreDamaged,
    StartAgain,
    scales_dynamically,
)
from conformance.generative.programs.executor import Executor, NotPlayed, Play
from conformance.oracle.errormodel import IMPLEMENTATION_FREEDOM
from conformance.search import REFERENCE_MOMENTS, Observation, canonical, ends_by_itself, equal, wide
from fixtures.arrays import Array, format_of, wider
from fixtures.model import Batch, BatchNorm, Embedding
from fixtures.recipe import SGD
from frameworks.contract import Conventions, Trainer
from frameworks.reference import ReferenceFramework
from frameworks.reference.core import scope
from frameworks.reference.core.arithmetic import UNARY, Operations, Round, Variance, normalise
from frameworks.reference.core.rounding import LANES, Exact, Rounding, Stochastic
from frameworks.reference.core.scope import NORMS
from frameworks.reference.core.tape import Tensor, plain, round_values
from frameworks.reference.training.decisions import OpenWindow
from frameworks.reference.training.trainer import ReferenceTrainer

MEMBERS = 8
"""Number of plays with random roundings."""
LARGEST_FLOAT32 = float(np.finfo(np.float32).max)
LONG_SUM, REORDERED = 256, 2.0
"""The order of more terms than this, which no member changes, matters more than rounding: factor of the bound then."""
CANCELLED = 4.0
"""Factor of the bound after a batch norm.

A batch norm cancels the gradient of what all samples have in common, such as the bias before it. What is left is
rounding error, whose size depends on the order of sums.
"""
NEARLY_ZERO = 2.0**-18
"""Values below this share of the largest one may be pure rounding error."""
_HALF_A_UNIT_UP = 1.0 + 2.0**-25
"""A factor that moves a value by half a float32 unit, which random rounding turns into zero or one unit."""
ERF_TERMS = 16
"""A library's float32 erf is as inaccurate as a sum of this many terms: four units."""
_SLOPES: dict[str, Callable[[Array], Array]] = {"tanh": lambda y: 1.0 - y * y, "sigmoid": lambda y: y * (1.0 - y)}
MANY_TERMS = 32
"""Sums of at least so many terms get an error of their own, since their partial sums are rounded."""
Slice = tuple[Array, Array]
"""Row ids of a table, and the gradients of these rows."""


class NotesDrops(ReferenceTrainer):
    """The oracle's run, which counts the micro-batches dropped so far."""

    dropped = 0

    def take_micro_batch(self, gradients: dict[str, Array]) -> None:
        before = self.window.dropped
        super().take_micro_batch(gradients)
        self.dropped += self.window.dropped - before

    def unscale_gradients(self) -> None:
        """Do nothing if gradients were unscaled as each micro-batch arrived; otherwise unscale as usual."""
        alone = self.conventions.nonfinite_micro_batch == "drop-micro-batch"
        if not (alone and self.window.unscaled):
            super().unscale_gradients()


class NotesKinks(Operations):
    """The oracle's operations, which note if an operand of a rectifier is nearly zero, but not zero.

    Rounding then decides whether the rectifier has a slope there. At exactly zero the slope is 0 in every framework.
    """

    kinked = False

    def activation(self, kind: str, x: Tensor) -> Tensor:
        if kind == "relu" and isbox(x.value):
            size = np.abs(x.plain())
            largest = size[np.isfinite(size)].max(initial=0.0)
            self.kinked |= bool(((size > 0.0) & (size <= NEARLY_ZERO * largest)).any())
        return super().activation(kind, x)


@primitive  # type: ignore[untyped-decorator]
def _rows(table: Array, ids: Array, format_name: str, slices: list[Slice]) -> Array:  # noqa: ARG001
    """Return rows of a table; their gradient is summed row by row in format `format_name`, and added to `slices`."""
    return np.asarray(table[ids])


def _added_up(_rows: Array, table: Array, ids: Array, name: str, slices: list[Slice]) -> Callable[[Array], Array]:
    def gradient(rows: Array) -> Array:
        slices.append((ids, rows))
        total = np.zeros(table.shape, format_of(name).dtype)
        np.add.at(total, ids, rows.astype(total.dtype))
        return total.astype(np.float64)

    return gradient


defvjp(_rows, _added_up, None, None, None)


class NormsInParts(Operations):
    """Normalisation whose gradient is the sum of two parts, each of which is rounded to the operand's format.

    The operand is cast once for its mean and variance, and once to be normalised. In low formats the gradient may be
    far smaller than its two parts, so that their rounding decides all of its digits. Mean and variance are those of
    values moved by half a unit: a mean that is updated value by value may be off by as much, even if all are equal. The
    gradient assumes that normalised values have mean zero, which is untrue of large values that lie close together.
    """

    def layer_norm(self, x: Tensor, scale: Tensor, shift: Tensor, epsilon: float) -> Tensor:
        def compute(a: Any, measured: Any, g: Any, b: Any, r: Round) -> Any:
            y, _, variance = normalise(a, (-1,), epsilon, r, self.variance, r(_HALF_A_UNIT_UP * measured))
            return r(y + _mean_taken_for_zero(a, y, variance + epsilon, (-1,))) * g + b

        return self.apply("layer_norm", compute, x, x, scale, shift)

    def batch_norm(
        self, x: Tensor, scale: Tensor, shift: Tensor, epsilon: float, running_statistics: tuple[Array, Array] | None
    ) -> tuple[Tensor, Array, Array]:
        axes = tuple(range(len(x.shape) - 1))
        statistics: list[Array] = []

        def compute(a: Any, measured: Any, g: Any, b: Any, r: Round) -> Any:
            if running_statistics is None:
                y, mean, variance = normalise(a, axes, epsilon, r, self.variance, r(_HALF_A_UNIT_UP * measured))
                y = y + _mean_taken_for_zero(a, y, variance + epsilon, axes)
            else:
                mean, variance = running_statistics
                y = r(a - mean) * r(1.0 / np.sqrt(variance + epsilon))
            statistics.extend(plain(s).reshape(-1) for s in (mean, variance))
            return r(y) * g + b + self.offset(statistics[0], np.sqrt(statistics[1] + epsilon), plain(g))

        return self.apply("batch_norm", compute, x, x, scale, shift), statistics[0], statistics[1]

    def offset(self, mean: Array, deviation: Array, scale: Array) -> Array:
        """Return the error, by channel, of the term that batch norm adds."""
        return np.zeros_like(mean)


def _mean_taken_for_zero(x: Any, normalised: Any, variance: Any, axes: tuple[int, ...]) -> Any:
    """Return 0 with a gradient by x that turns the exact one into dx = (dy − mean(dy) − y·mean(dy·y)) / deviation."""
    y = plain(normalised)
    share = y.mean(axis=axes, keepdims=True) / np.sqrt(plain(variance)) / math.prod(y.shape[axis] for axis in axes)
    return -y * share * anp.sum(x - plain(x), axis=axes, keepdims=True)


class PartsAndTiles(NormsInParts):
    """Adds attention as tiled kernels compute it: the backward pass takes rowsum(dO ∘ O) from the rounded output.

    It recomputes the shares P from the scores S and the rounded logarithm L of their sum; large scores lose digits.

    The slopes of tanh and sigmoid are computed from their rounded outputs. Gelu rounds erf, so that 1 + erf keeps no
    digits far below zero. If a value has several uses, the sum of its gradients is rounded, and so is each element of
    the gradient that a product receives: in sums that cancel, little but rounding error is left.
    Source: Dao et al., "FlashAttention", NeurIPS 2022, algorithm 4: P = exp(S − L), dS = P ∘ (dP − rowsum(dO ∘ O)).
    """

    slices: Sequence[Slice] = ()
    """The slices of the embedding in the last pass."""

    def attention(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        mixed = super().attention(query, key, value)
        computing, _ = self.formats("attention", query.format, key.format, value.format)
        q, k, v = (self.cast(x, computing).value for x in (query, key, value))
        scores = anp.matmul(q, anp.swapaxes(k, -1, -2)) / np.sqrt(q.shape[-1])
        powers = np.exp(plain(scores) - plain(scores).max(axis=-1, keepdims=True))
        shares = powers / powers.sum(axis=-1, keepdims=True)
        off = mixed.plain() - shares @ plain(v)
        if not (np.isfinite(off).all() and np.isfinite(plain(scores)).all()):
            return mixed
        nothing = anp.sum(shares * (scores - plain(scores)), axis=-1, keepdims=True)
        logsum = np.log(powers.sum(axis=-1, keepdims=True)) + plain(scores).max(axis=-1, keepdims=True)
        again = shares * np.expm1(self.rounding.round(logsum, "float32") - logsum)
        return Tensor(mixed.value - off * nothing + anp.matmul(again, v - plain(v)), mixed.format)

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return self.fan_out(super().linear(x, weight, bias))

    def convolution(self, x: Tensor, weight: Tensor, bias: Tensor, stride: int, padding: int) -> Tensor:
        return self.fan_out(super().convolution(x, weight, bias, stride, padding))

    def embedding(self, ids: Tensor, table: Tensor) -> Tensor:
        """Return rows; their gradients are added one after the other, in float32 or a wider format."""
        name, slices = wider(table.format, "float32"), list[Slice]()
        self.slices = slices
        return self.apply("embedding", lambda i, t, _: _rows(t, plain(i).astype(np.int64), name, slices), ids, table)

    def fan_out(self, x: Tensor) -> Tensor:
        return Tensor(round_values(x.value, self.rounding, x.format), x.format, x.owned)

    def activation(self, kind: str, x: Tensor) -> Tensor:
        slope = _SLOPES.get(kind)
        if (slope is None and kind != "gelu") or not np.isfinite(x.plain()).all():
            return super().activation(kind, x)

        terms = ERF_TERMS if x.format == "float32" else 1

        def compute(a: Any, r: Round) -> Any:
            if slope is None:
                error = erf(plain(a) / np.sqrt(2.0))
                off = plain(r(_HALF_A_UNIT_UP * error, terms)) - error
                return UNARY[kind](a) + 0.5 * off * plain(a) + 0.5 * off * (a - plain(a))
            y = plain(r(_HALF_A_UNIT_UP * UNARY[kind](plain(a))))
            return y + slope(y) * (a - plain(a))

        return self.apply(kind, compute, x, keep="operands" if slope is None else "result")


class NarrowNorms(PartsAndTiles):
    """Adds normalisation that returns the recipe's format; no clause fixes the format of operations without a product.

    At O3, batch norm is a product and a sum of numbers that are rounded to that format.
    """

    def formats(self, op: str, *operands: str) -> tuple[str, str]:
        computing, yielding = super().formats(op, *operands)
        here = scope.current()
        return computing, here.precision.format if op in NORMS and here.active and yielding != "float64" else yielding

    def offset(self, mean: Array, deviation: Array, scale: Array) -> Array:
        here = scope.current().precision
        exact = mean / deviation * scale
        return self.rounding.round(exact, here.format) - exact if here.level == "O3" else np.zeros_like(mean)


class OverflowsEarly(Operations):
    """Operations in which values and their gradients already overflow at a sixteenth of their format's largest value.

    If this changes which values are finite, the order of operations decides whether anything overflows.
    """

    times = 1.0 / 16.0

    def __init__(self, rounding: Rounding, variance: Variance = "centred") -> None:
        super().__init__(OtherRange(rounding, self.times), variance)


class OverflowsNever(OverflowsEarly):
    """Operations in which values and their gradients never overflow, as if computed in a wider format."""

    times = np.inf


class OtherRange:
    """A rounding in which every format but float64 has `times` its largest value.

    Attributes:
        overflowed: whether a finite value has exceeded its format's largest value so far, even if no result shows it.
    """

    def __init__(self, rounding: Rounding, times: float) -> None:
        self._rounding, self._times = rounding, times
        self.overflowed = False
        self.constant, self.dtype = rounding.constant, rounding.dtype

    def round(self, array: Array, format_name: str, terms: int = 1) -> Array:
        """Return the array in the format; values above the changed limit become infinite."""
        value = self._rounding.round(array, format_name, terms)
        if format_name == "float64":
            return value
        largest = self._times * format_of(format_name).largest
        finite = np.where(np.isfinite(value), value, array)
        self.overflowed |= bool((np.isfinite(finite) & ~np.isfinite(value)).any())
        return np.where(np.abs(finite) > largest, np.copysign(np.inf, finite), finite)


class Float64Rounding(Stochastic):
    """Also rounds float64 values, each by up to half a unit, to show what cancels in only one order of a sum.

    Sums of many terms get an error even if the format holds the result, since it may not hold the partial sums.
    """

    def round(self, array: Array, format_name: str, terms: int = 1) -> Array:
        if format_name in ("float32", "float64") and terms >= MANY_TERMS:
            units = format_of(format_name).unit_roundoff * max(math.sqrt(terms), terms / LANES)
            array = np.asarray(array * (1.0 + units * (2.0 * self._rng.random(np.shape(array)) - 1.0)))
        if format_name != "float64":
            return super().round(array, format_name, terms)
        return np.asarray(array * (1.0 + 2.0**-52 * (self._rng.random(np.shape(array)) - 0.5)))


class IndependentRounding(Float64Rounding):
    """Rounds equal values independently, as kernels do that compute the rows of one product in different ways."""

    def _truncate_with_noise(self, value: Array, dropped: int) -> Array:
        bits = value.reshape(-1).view(np.uint64)
        bits = bits + self._rng.integers(1 << dropped, size=bits.size, dtype=np.uint64)
        bits &= np.uint64((1 << 64) - (1 << dropped))
        return bits.view(np.float64).reshape(value.shape)


class NarrowWhereAllowed(NotesDrops):
    """A member that uses the narrowest formats that the clauses allow.

    It computes the norm of a gradient from squares in float32 or in the gradient's format if that is wider. Each norm
    has its gradient's format, and the total norm the widest of these. Unscaling multiplies by the reciprocal of the
    scale. At O3, averages and running statistics have the model's format.
    """

    def gradient_norm(self, gradients: Mapping[str, Array]) -> float:
        if not gradients:
            return 0.0
        formats = {name: self.master_formats[name] for name in gradients}
        norms = [self._norm(g, formats[n]) for n, g in gradients.items()]
        return float(self._norm(np.asarray(norms), reduce(wider, formats.values())))

    def clip_factor(self, coefficient: float, gradients: Mapping[str, Array]) -> float:
        widest = reduce(wider, (self.master_formats[name] for name in gradients), "float32")
        return float(self.rounding.round(np.asarray(coefficient), widest))

    def unscale(self, name: str, gradient: Array) -> Array:
        assert self.scaler is not None
        scale, format_name = self.scaler.scale, self.accumulator_format(name)
        uneven_in_low = math.frexp(scale)[0] != 0.5 and format_name in ("float16", "bfloat16")
        reciprocal = self.rounding.round(np.asarray(1.0 / scale), format_name if uneven_in_low else "float32")
        return self.rounding.round(gradient * reciprocal, format_name)

    def _norm(self, values: Array, name: str) -> float:
        squares = self.rounding.round(np.asarray(np.vdot(values, values)), wider(name, "float32"))
        return float(self.rounding.round(np.sqrt(squares), name, max(1, values.size)))

    def average_format(self, name: str) -> str:
        return self.master_formats[name] if self.recipe.precision.level == "O3" else super().average_format(name)

    def update_running_statistics(self, path: str, mean: Array, variance: Array, count: int, momentum: float) -> None:
        super().update_running_statistics(path, mean, variance, count, momentum)
        if self.recipe.precision.level == "O3":
            for name in (f"{path}.mean", f"{path}.variance"):
                self.statistics[name] = self.rounding.round(self.statistics[name], self.recipe.precision.format)


class Float32Updates(NarrowWhereAllowed):
    """A member whose optimizer computes in float32 and stores the results in a low format.

    SGD subtracts the rows of an embedding's gradient one by one, each rounded, as `scatter_sub` does under Keras.
    """

    slices: tuple[tuple[OpenWindow, Sequence[Slice]], ...] = ()
    """Slices of the embedding's gradients, each with the window that they belong to."""

    def accumulate(self, batch: Batch, items: int) -> float:
        assert isinstance(self.ops, PartsAndTiles)
        loss = super().accumulate(batch, items)
        self.slices += ((self.window, self.ops.slices),)
        return loss

    def apply_update(self, gradients: dict[str, Array], rate: float) -> None:
        formats, before = self.master_formats, dict(self.masters)
        self.master_formats = {name: wider(formats[name], "float32") for name in formats}
        super().apply_update(gradients, rate)
        for name in self._sparse() & gradients.keys():
            step, dtype = self.rate_of(name, rate) / self.window.scale, format_of(self.master_formats[name]).dtype
            slices = [pair for window, pairs in self.slices if window is self.window for pair in pairs]
            self.masters[name] = self.masters[name] + _gap(before[name], slices, step, dtype)
        self.slices, self.master_formats = (), formats
        for values in (self.masters, *self.slots.values()):
            for name in gradients:
                values[name] = self.rounding.round(values[name], formats[name])

    def _sparse(self) -> set[str]:
        """Return the names of tables whose gradients stay sparse until they are subtracted."""
        recipe, plain_sgd = self.recipe, SGD(self.recipe.optimizer.learning_rate)
        dense = recipe.optimizer != plain_sgd or recipe.accumulation > 1 or recipe.clip is not None
        if dense or any(head.tied is not None for head in self.model.heads.heads):
            return set()
        return {f"{path}.weight" for path, layer, _ in self.model.shapes() if isinstance(layer, Embedding)}


@np.errstate(all="ignore")
def _gap(table: Array, slices: Sequence[Slice], rate: float, dtype: np.dtype[Any]) -> Array:
    """Return a table with rows subtracted one by one, minus the same table with their sum subtracted."""
    one_by_one, total = table.astype(dtype), np.zeros(table.shape)
    for ids, rows in slices:
        steps = (rate * rows).astype(dtype)
        np.subtract.at(one_by_one, ids, steps)
        np.add.at(total, ids, steps)
    return np.asarray(one_by_one.astype(np.float64) - (table - total).astype(dtype))


class OracleExecutor(Executor):
    """Plays a case on the reference, which follows a framework's conventions; a save is a copy in memory."""

    def __init__(
        self,
        conventions: Conventions,
        case: GeneratedCase,
        rounding: Rounding | None,
        trainers: type[NotesDrops] = NotesDrops,
        operations: type[Operations] = Operations,
    ) -> None:
        self._framework = ReferenceFramework("cpu", conventions=conventions, rounding=rounding)
        self._framework.trainer_class, self._framework.operations_class = trainers, operations
        self._copies: dict[int, Trainer] = {}
        super().__init__(case)

    def make(self, weights: dict[str, Array] | None = None) -> Trainer:
        return self._framework.trainer(self.case.drawn.model, self.case.recipe, weights)

    def state(self) -> Observation:
        dropped = self.trainer.dropped if isinstance(self.trainer, NotesDrops) else 0
        ops = self.trainer.ops if isinstance(self.trainer, NotesDrops) else None
        overflowed = ops is not None and isinstance(ops.rounding, OtherRange) and ops.rounding.overflowed
        notes = {"dropped": dropped, "overflowed": overflowed, "kinked": isinstance(ops, NotesKinks) and ops.kinked}
        return self.trainer.state() | {f"window/{name}": np.array(value) for name, value in notes.items()}

    def save(self, slot: int) -> None:
        self._copies[slot] = copy.deepcopy(self.trainer)

    def restore(self, verb: Restore) -> None:
        if verb.slot not in self._copies:
            raise NotPlayed
        self.trainer = copy.deepcopy(self._copies[verb.slot])

    def restore_damaged(self, verb: RestoreDamaged) -> bool:
        if verb.slot not in self._copies:
            raise NotPlayed
        return True

    def damage_offloaded(self, verb: DamageOffloaded) -> bool:
        return True

    def scope(self, verb: OpenScope) -> None:
        """Do nothing: no process-wide scope affects a run."""


class Ensemble:
    """The oracle's plays of a case: rounded to nearest and, on demand, at random."""

    def __init__(self, conventions: Conventions, case: GeneratedCase, left_out: frozenset[int], seed: int) -> None:
        self.conventions, self._case, self.left_out, self._seed = conventions, case, left_out, seed
        self._exact: dict[int, bool] = {}
        self._rounded: list[Play] = []

    @cached_property
    def freedom(self) -> float:
        """The bound as a multiple of the spread."""
        cancels = any(isinstance(layer, BatchNorm) for _, layer, _ in self._case.drawn.model.shapes())
        terms = self._case.drawn.longest_sum
        return IMPLEMENTATION_FREEDOM * (CANCELLED if cancels else 1.0) * (REORDERED if terms > LONG_SUM else 1.0)

    @cached_property
    def nearest(self) -> Play:
        """The play that rounds to nearest."""
        return self._play(None)

    @property
    def members(self) -> tuple[Play, ...]:
        """The plays with random roundings, and one in the narrowest formats that rounds to nearest.

        Every second random play rounds equal values independently and updates in float32, row by row where allowed. The
        play to nearest covers values that it leaves unchanged in every update, and that random rounding moves.
        """
        return (*self.play_rounded(MEMBERS), self._narrow)

    def fewer(self) -> Iterator[tuple[Play, ...]]:
        """Yield growing subsets of the members, then all: a value within a subset's bound is within that of all."""
        yield from (self.play_rounded(count) for count in (MEMBERS // 4, MEMBERS // 2, MEMBERS))
        yield self.members

    def further(self) -> Iterator[tuple[Play, ...]]:
        """Yield all members with a growing number of others: on a single value, eight may agree closely by chance."""
        for count in range(MEMBERS + MEMBERS // 2, 4 * MEMBERS + 1, MEMBERS // 2):
            yield (*self.play_rounded(count), self._narrow)

    def play_rounded(self, count: int) -> tuple[Play, ...]:
        """Return `count` plays with random roundings; each is played only once."""
        for number in range(len(self._rounded), count):
            rng = np.random.default_rng([self._seed, 24, number])
            everywhere = Float64Rounding(rng), PartsAndTiles, NarrowWhereAllowed
            self._rounded.append(
                self._play(*((IndependentRounding(rng), NarrowNorms, Float32Updates) if number % 2 else everywhere))
            )
        return tuple(self._rounded[:count])

    @cached_property
    def _narrow(self) -> Play:
        return self._play(None, NarrowNorms, NarrowWhereAllowed)

    @cached_property
    def unrounded(self) -> Play:
        """The play without rounding."""
        return self._play(Exact())

    def exact(self, index: int) -> bool:
        """Return whether no play has a rounded value in the observation after the verb at a place."""
        if index not in self._exact:
            nearest = self.nearest.observations[index] or {}
            others = [play.observations[index] or {} for play in (*self.members, self.unrounded)]
            pairs = ((other[name], value) for other in others for name, value in nearest.items() if name in other)
            self._exact[index] = all(equal(a, b) for a, b in pairs)
        return self._exact[index]

    def is_skipped(self, index: int) -> bool:
        """Return whether the verb at a place is an update that the oracle skips."""
        observation = self.nearest.observations[index]
        return observation is not None and bool(observation.get("result/skipped", False))

    def is_kinked(self, index: int) -> bool:
        """Return whether rounding decided the slope of a rectifier in the run at this verb."""
        plays = (self.nearest, self.unrounded)
        return any(bool(o["window/kinked"]) for play in plays for o in self._of_run(index, play))

    def has_diverged(self, index: int) -> bool:
        """Return whether a finite loss has exceeded the range of float32 in the run at this verb."""
        losses = [wide(o["result/loss"]) for o in self._of_run(index, self.unrounded) if "result/loss" in o]
        return any(bool(np.isfinite(loss) and abs(loss) > LARGEST_FLOAT32) for loss in losses)

    def adrift(self, index: int) -> bool:
        """Return whether dropped micro-batches have shifted the run's windows, in a framework that ends windows itself.

        Later micro-batches then take the place of the dropped ones, so this window and all later ones differ.
        """
        several = self._case.recipe.accumulation > 1 and ends_by_itself(self.conventions)
        return several and any(bool(o.get("window/dropped", 0)) for o in self._of_run(index))

    def is_lost(self, index: int) -> bool:
        """Return whether non-finite values have entered the run at this verb, and nothing rejects them.

        Details of arithmetic, such as 0 · inf, decide how they spread, and the run is of no use.
        """
        return any(
            not np.isfinite(wide(v)).all() for o in self._of_run(index) for n, v in o.items() if self._persists(n)
        )

    def _persists(self, name: str) -> bool:
        """Return whether a value of this name persists in the run; under dynamic scaling an accumulator does not."""
        prefixes = ("master/", "moment/")
        return name.startswith(prefixes if scales_dynamically(self._case.recipe) else (*prefixes, "accumulator/"))

    def _of_run(self, index: int, play: Play | None = None) -> Iterator[Observation]:
        """Yield the observations of the run at a verb, last first, and of the runs whose weights it started from."""
        for step in range(index, -1, -1):
            observation, verb = (play or self.nearest).observations[step], self._case.program[step]
            if observation is not None:
                yield observation
            if isinstance(verb, StartAgain) and not verb.onward:
                return

    @cached_property
    def of_other_ranges(self) -> tuple[Play, ...]:
        """Two plays that round to nearest: one whose values overflow early, and one in which overflow is only noted."""
        return tuple(self._play(None, operations) for operations in (OverflowsEarly, OverflowsNever))

    def _play(
        self,
        rounding: Rounding | None,
        operations: type[Operations] = NotesKinks,
        trainers: type[NotesDrops] = NotesDrops,
    ) -> Play:
        executor = OracleExecutor(self.conventions, self._case, rounding, trainers, operations)
        play = executor.play(self.left_out)
        return Play(tuple(None if o is None else canonical(o, REFERENCE_MOMENTS) for o in play.observations))
