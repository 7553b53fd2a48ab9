"""Judge a case: compare its play on the framework with the oracle's, verb by verb.

Where a verb rounds nothing, values must equal the oracle's bit for bit. Elsewhere the bound is `Ensemble.freedom` times
the largest distance between the oracle and a member of an ensemble of randomly rounded runs, plus one unit in the last
place of the largest value. Where members disagree on a counter, or on which values are finite, rounding decides, and
the program is judged only up to that verb.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from conformance.checks.evidence import element, got_want, same_bits
from conformance.checks.subject import Subject
from conformance.generative.programs.case import (
    Accumulate,
    Apply,
    ApplyGradients,
    CountBytes,
    DamageOffloaded,
    GeneratedCase,
    Gradients,
    OpenScope,
    Predict,
    Restore,
    Save,
    StartAgain,
    TraceLayers,
    Train,
    WrongWidth,
    step_text,
)
from conformance.generative.programs.ensemble import MEMBERS, Ensemble
from conformance.generative.programs.executor import Play, PlayFailed, SubjectExecutor
from conformance.search.properties import (
    Failure,
    GenerativeSettings,
    Observation,
    canonical,
    distance,
    ends_by_itself,
    equal,
    gaps,
    narrow,
    unit,
    wide,
)
from fixtures.arrays import Array
from fixtures.model import BatchNorm
from fixtures.recipe import DynamicScaling, StaticScaling

FLOAT64 = 64 * 2.0**-53
"""Relative tolerance of a float64 value, for values on which the ensemble's members agree within this tolerance."""
UNDERFLOW = 2.0**-100
"""Float32 values below this may be 0: a factor underflows, or an implementation's slope is 0 there."""
REPORTED = 4 * 2.0**-24
"""Relative tolerance of a reported loss or norm: it may be computed in float32 and divided by the number of items."""
ROOT = 2.0**64
"""Square root of the largest magnitude of float32; the square of a larger value overflows."""
CHAOTIC = 0.2
"""A bound above this share of the largest value says nothing, so the value is not judged."""
COUNTED = (
    *("skipped", "scale_before", "scale_after", "good_steps", "raised", "refused", "steps", "schedule", "scale"),
    *("dropped", "overflowed"),
)
"""Last parts of the names of counters and of values that change only by powers of two; all other values are rounded."""


@dataclass(frozen=True)
class Mismatch:
    """The first difference between a play and the one that it is compared with.

    Attributes:
        place: the verb's place in the program.
        name: the value's name, such as "parameter/0.weight".
        measured, expected: the two values.
        bound: the largest difference allowed, 0 where the bits must be equal.
    """

    place: int
    name: str
    measured: Array
    expected: Array
    bound: float

    def __str__(self) -> str:
        if self.measured.shape != self.expected.shape or self.measured.size == 0:
            return f"{self.name}: got shape {list(self.measured.shape)}, want {list(self.expected.shape)}"
        left, right = (np.asarray(value, np.float64) for value in (self.measured, self.expected))
        differing = gaps(left, right) > self.bound
        apart = (
            element(left, right, differing, self.bound) if differing.any() else got_want(self.measured, self.expected)
        )
        return f"{self.name}: {apart}"


def is_counter(name: str) -> bool:
    """Return whether this is the name of a counter, which is never rounded."""
    return name.rsplit("/", 1)[-1].rsplit(".", 1)[0] in COUNTED or name.startswith("steps/")


def first_difference(
    measured: Sequence[Observation | None], ensemble: Ensemble, left: Mapping[int, frozenset[str]]
) -> Mismatch | None:
    """Return the first value, by verb and name, whose distance from the oracle's exceeds the bound; None if none does.

    Args:
        measured: the observation after each verb, by canonical name; only names that the oracle has too are compared.
        left: prefixes of names that are not judged, by the verb's place.
    """
    for index, (mine, exact) in enumerate(zip(measured, ensemble.nearest.observations, strict=True)):
        if mine is None or exact is None:
            continue
        names = [n for n in exact if n in mine and not n.startswith(tuple(left.get(index, ())))]
        names = [n for n in names if _is_determined(n, mine, exact)]
        mine, exact = _where_finite(mine, exact)
        unequal = [name for name in names if not equal(mine[name], exact[name])]
        if unequal and ensemble.adrift(index):
            continue
        if unequal and (ensemble.is_kinked(index) or ensemble.has_diverged(index)):
            return None
        infinite = any(is_counter(n) or not np.array_equal(_finite(mine[n]), _finite(exact[n])) for n in unequal)
        if infinite and not all(_agrees(play, ensemble.nearest, index) for play in ensemble.of_other_ranges):
            return None  # with another exponent range, other values overflow up to this verb
        if ensemble.is_lost(index):
            unequal = [name for name in unequal if is_counter(name)]
        for name in sorted(unequal, key=_order):
            if _find_exceeded_bound(name, index, mine[name], exact[name], ensemble, ensemble.fewer()) is None:
                continue
            if not _is_decided(ensemble, index):
                return None
            bound = _find_exceeded_bound(name, index, mine[name], exact[name], ensemble, ensemble.further())
            if bound is not None:
                return Mismatch(index, name, mine[name], exact[name], bound)
    return None


def _find_exceeded_bound(
    name: str, index: int, mine: Array, exact: Array, ensemble: Ensemble, growing: Iterator[tuple[Play, ...]]
) -> float | None:
    """Return the bound that a value exceeds for all numbers of members; None if it does not, or is not judged."""
    gap, bound = distance(mine, exact), 0.0
    if is_counter(name):
        return bound if gap else None
    for members in growing:
        allowed = _bound(name, index, exact, ensemble, members)
        if allowed is None:
            return None
        bound = allowed
        if name.startswith(("result/output.", "result/back.")) and unit(mine) > unit(exact):
            bound += unit(mine) * float(np.abs(wide(exact)).max(initial=0.0))  # a unit of the framework's own format
        if gap <= bound:
            return None
    return bound


def _is_determined(name: str, mine: Observation, exact: Observation) -> bool:
    """Return whether a clause determines the value.

    No clause determines an average before the first applied update, how NaN spreads through a layer, or a gradient
    whose square, as in a loss, overflows float32.
    """
    if name.startswith("result/back.") and bool(np.isnan(wide(exact[name])).any()):
        return False
    if name.startswith("result/output.") and mine[name].shape == exact[name].shape:
        missing = np.isnan(wide(exact[name]))
        if missing.any() and bool(np.isnan(wide(mine[name]))[missing].all()):
            return False
    if name.startswith("result/gradient.") and bool((np.abs(wide(exact[name])) > ROOT).any()):
        return False
    return not name.startswith("average/") or bool(exact.get("steps/steps", 0))


_BACKWARD = ("accumulator/", "result/gradient.", "result/back.")
"""Prefixes of a backward pass' results. If it overflows, no clause says which gradients change, nor their values."""


def _where_finite(mine: Observation, exact: Observation) -> tuple[Observation, Observation]:
    """Return both observations with gradients set to 0 where either is not finite, if the oracle's overflow.

    All returned gradients are set to 0 if the framework's have no value that is finite and nonzero after unscaling.
    """
    gradients = [name for name in exact if name in mine and name.startswith(_BACKWARD)]
    if all(np.isfinite(wide(exact[name])).all() for name in gradients):
        return mine, exact
    mine, exact = dict(mine), dict(exact)
    returned = [name for name in gradients if name.startswith("result/gradient.")]
    nothing = all(not np.nan_to_num(wide(mine[name]), posinf=0.0, neginf=0.0).any() for name in returned)
    for name in gradients:
        if mine[name].shape == exact[name].shape:
            judged = np.isfinite(wide(mine[name])) & np.isfinite(wide(exact[name]))
            judged &= not (nothing and name in returned)
            for observation in (mine, exact):
                observation[name] = np.where(judged, observation[name], np.zeros_like(observation[name]))
    return mine, exact


_FLOW = ("result/", "accumulator/", "moment/", "master/", "parameter/", "average/", "buffer/")


def _order(name: str) -> tuple[int, str]:
    """Return a sort key: counters first, then rounded values in the order in which an update computes them."""
    position = next((i for i, prefix in enumerate(_FLOW, 1) if name.startswith(prefix)), len(_FLOW) + 1)
    return (0 if is_counter(name) else position, name)


def _is_decided(ensemble: Ensemble, index: int) -> bool:
    """Return whether all members equal the oracle, up to this verb, in counters and in which values are finite."""
    return all(_agrees(member, ensemble.nearest, index) for member in ensemble.members)


def _agrees(member: Play, nearest: Play, index: int) -> bool:
    """Return whether a member equals the oracle, up to a verb, in counters and in which values are finite."""
    pairs = zip(member.observations[: index + 1], nearest.observations[: index + 1], strict=True)
    return all(exact is None or (other is not None and _agree(other, exact)) for other, exact in pairs)


def _agree(other: Observation, exact: Observation) -> bool:
    return other.keys() == exact.keys() and all(
        equal(other[n], exact[n]) if is_counter(n) else np.array_equal(_finite(other[n]), _finite(exact[n]))
        for n in exact
    )


def _finite(array: Array) -> Array:
    return np.isfinite(wide(array))


def _bound(name: str, index: int, exact: Array, ensemble: Ensemble, members: Sequence[Play]) -> float | None:
    """Return how far a value may be from the oracle's; None if it is not judged. The bound grows with the members.

    If no member moves the value, other roundings may still do so. The spread is then the unrounded play's distance,
    but only for the full set of members. A compiled framework's spread is always at least that distance.
    """
    if is_counter(name):
        return 0.0
    observations = (member.observations[index] for member in members)
    spread = max(distance(observation[name], exact) for observation in observations if observation is not None)
    finite = np.abs(wide(exact))[np.isfinite(wide(exact))]
    largest = float(finite.max()) if finite.size else 0.0
    if (spread == 0.0 and len(members) > MEMBERS) or ensemble.conventions.compiled:
        spread = max(spread, _measure_rounding_error(name, index, exact, ensemble))
    reported = name.startswith("result/") and "." not in name
    if spread <= FLOAT64 * largest and exact.dtype == np.float64:
        return largest * (REPORTED if reported else 0.0 if narrow(exact) else FLOAT64)
    if spread == 0.0:
        return 0.0 if narrow(exact) and ensemble.exact(index) else unit(exact) * largest + UNDERFLOW
    if ensemble.freedom * spread > CHAOTIC * largest:
        return None
    rounding = ensemble.freedom * spread + unit(exact) * largest
    return max(rounding, REPORTED * largest if reported else 0.0) + UNDERFLOW


def _measure_rounding_error(name: str, index: int, exact: Array, ensemble: Ensemble) -> float:
    """Return the distance of the unrounded play from the oracle's, since members may agree with the oracle by chance.

    If a counter differs in the unrounded play, for example because nothing overflows there, the distance means nothing
    and the value counts as not rounded: return 0.
    """
    for step in range(index + 1):
        nearest, unrounded = (play.observations[step] for play in (ensemble.nearest, ensemble.unrounded))
        if nearest is None or unrounded is None:
            continue
        if any(not equal(unrounded[n], nearest[n]) for n in nearest if is_counter(n)):
            return 0.0
    observation = ensemble.unrounded.observations[index]
    return 0.0 if observation is None else distance(observation[name], exact)


def apart_from_twin(
    measured: Play, twin: Play, ensembles: tuple[Ensemble, ...] = (), left: tuple[str, ...] = (), underflow: float = 0.0
) -> Mismatch | None:
    """Return the first value in which two plays of a framework differ, verb by verb; None if there is none.

    Args:
        ensembles: of both programs, if they may round differently: each play may be one bound away from its oracle,
            and its oracle one bound away from the exact value. Empty if the plays must be equal bit for bit.
        left: prefixes of names that are not compared.
        underflow: values smaller than this are equal.
    """
    for index, (mine, other) in enumerate(zip(measured.observations, twin.observations, strict=True)):
        if mine is None or other is None:
            continue
        if not _alike(index, ensembles):
            return None
        names = [name for name in other if name in mine and not name.startswith(left)]
        for name in sorted((n for n in names if not _same(mine[n], other[n], underflow)), key=_order):
            bounds = [_from_exact_value(name, index, ensemble) for ensemble in ensembles]
            if None in bounds or (ensembles and not np.isfinite(wide(other[name])).all()):
                continue
            bound = sum(bound for bound in bounds if bound is not None)
            if not ensembles or not distance(mine[name], other[name]) <= bound:
                return Mismatch(index, name, mine[name], other[name], bound)
    return None


def _same(a: Array, b: Array, underflow: float) -> bool:
    """Return whether two values have the same bits, apart from the sign of zero and values up to `underflow`."""
    if same_bits(a, b) or a.shape != b.shape or a.dtype != b.dtype or a.dtype.kind in "USO":
        return same_bits(a, b)
    small = np.maximum(np.abs(wide(a)), np.abs(wide(b))) <= underflow
    return same_bits(np.where(small, np.zeros_like(a), a), np.where(small, np.zeros_like(b), b))


def _alike(index: int, ensembles: tuple[Ensemble, ...]) -> bool:
    """Return whether the oracles of all programs agree after a verb in counters and in which values are finite."""
    observations = [o for o in (ensemble.nearest.observations[index] for ensemble in ensembles) if o is not None]
    pairs = [(name, o[name], observations[0][name]) for o in observations[1:] for name in o]
    return all(
        equal(a, b) if is_counter(name) else a.shape != b.shape or not distance(0.0 * wide(a), 0.0 * wide(b))
        for name, a, b in pairs
    )


def _from_exact_value(name: str, index: int, ensemble: Ensemble) -> float | None:
    """Return how far a play's value may be from the exact one, which two programs share; None if it is not judged.

    The play may be one bound away from its oracle. The oracle may be one bound away from the exact value, or as far as
    the unrounded play if that is more: members lie around the oracle, and if a low format almost holds a value, hardly
    any member differs from rounding to nearest.
    """
    exact = ensemble.nearest.observations[index]
    if exact is None or name not in exact or not _is_decided(ensemble, index):
        return None
    bound = _bound(name, index, exact[name], ensemble, ensemble.members)
    return None if bound is None else bound + max(bound, _measure_rounding_error(name, index, exact[name], ensemble))


Judge = Callable[[GeneratedCase], Failure | None]


def play(subject: Subject, case: GeneratedCase) -> Play:
    """Play a case on the framework under test.

    Raises:
        PlayFailed: a verb raised.
        Unsupported: the framework refuses the recipe.
    """
    with TemporaryDirectory() as folder:
        return SubjectExecutor(subject, case, Path(folder)).play()


def play_in_turn(subject: Subject, *cases: GeneratedCase) -> list[Play]:
    """Play cases on the framework under test, one verb of each in turn; all offload to files in one folder.

    Raises:
        PlayFailed: a verb raised.
        Unsupported: the framework refuses a recipe.
    """
    with ExitStack() as folders:
        offloaded = Path(folders.enter_context(TemporaryDirectory()))
        saves = [Path(folders.enter_context(TemporaryDirectory())) for _ in cases]
        players = [SubjectExecutor(subject, case, folder, offloaded) for case, folder in zip(cases, saves, strict=True)]
        rounds = list(zip_longest(*(executor.steps() for executor in players)))
    return [
        Play(tuple(observations[i] for observations in rounds[: len(case.program)])) for i, case in enumerate(cases)
    ]


def against_the_oracle(subject: Subject, laws: GenerativeSettings, case: GeneratedCase) -> Failure | None:
    """Return the first difference between the framework's play and the oracle's; None if there is none."""
    try:
        measured = play(subject, case)
    except PlayFailed as failed:
        return make_failure(failed)
    ensemble = ensemble_of(subject, case, measured)
    if (
        stray := _find_leak(case, measured) or _find_format_change(case, measured) or _find_state_change(case, measured)
    ) is not None:
        return stray
    observations = canonical_play(measured, laws, case).observations
    apart = first_difference(observations, ensemble, not_judged(subject, laws, case, ensemble))
    return describe(case, apart, skipped=apart is not None and ensemble.is_skipped(apart.place))


def _find_leak(case: GeneratedCase, measured: Play) -> Failure | None:
    """Return a failure at the first verb after which a process-wide setting has changed."""
    first: Observation | None = None
    for index, observation in enumerate(measured.observations):
        if observation is None:
            continue
        settings = {name: value for name, value in observation.items() if name.startswith("global/")}
        first = settings if first is None else first
        for name, value in settings.items():
            if name not in first or not same_bits(value, first[name]):
                where = f"after step {index + 1}, {step_text(case.program[index])}"
                return Failure(index, name, False, f"{where}: {name} got {value}, want {first.get(name)} as before")
    return None


_STATE_PREFIXES = ("parameter/", "master/", "optimizer/", "buffer/", "scaler/")


def _find_format_change(case: GeneratedCase, measured: Play) -> Failure | None:
    """Return a failure at the first verb after which a part of the state has changed its format."""
    first: Observation = {}
    for index, observation in enumerate(measured.observations):
        for name, value in (observation or {}).items():
            if name.startswith(_STATE_PREFIXES) and value.dtype != first.setdefault(name, value).dtype:
                was = first[name].dtype
                where = f"after step {index + 1}, {step_text(case.program[index])}"
                return Failure(index, name, False, f"{where}: {name} got {value.dtype}, want {was} as before")
    return None


def _find_state_change(case: GeneratedCase, measured: Play) -> Failure | None:
    """Return a failure at the first read-only verb after which a part of the state has changed, bit for bit."""
    before: Observation | None = None
    for index, (verb, after) in enumerate(zip(case.program, measured.observations, strict=True)):
        if before is not None and after is not None and isinstance(verb, _LOOKS):
            left = _PASSES if isinstance(verb, _IN_TRAINING) else ()
            for name, value in after.items():
                if name.startswith(("result/", *left)) or name not in before or same_bits(value, before[name]):
                    continue
                text = f"after step {index + 1}, {step_text(verb)}, which only reads: {name} has changed"
                return Failure(index, name, False, text)
        before = after
    return None


_IN_TRAINING = (Gradients, TraceLayers, CountBytes)
_LOOKS = (Predict, Save, OpenScope, *_IN_TRAINING)
"""Verbs that update nothing; those of `_IN_TRAINING` run the model in training mode."""
_PASSES = ("buffer/", "random/")
"""Prefixes of the state that a pass in training mode changes."""


def canonical_play(measured: Play, laws: GenerativeSettings, case: GeneratedCase) -> Play:
    """Return a play of the framework under canonical names."""
    slots = laws.slots(case.recipe.optimizer)
    return Play(
        tuple(None if observation is None else canonical(observation, slots) for observation in measured.observations)
    )


def ensemble_of(subject: Subject, case: GeneratedCase, measured: Play) -> Ensemble:
    """Return the ensemble for the same verbs, without recomputation and offload, since these must have no effect."""
    plain = replace(case, recipe=subject.complete_recipe(case.recipe).replace(recompute=None, offload=None))
    return Ensemble(subject.conventions, plain, measured.left_out, subject.seed)


def describe(case: GeneratedCase, apart: Mismatch | None, *, skipped: bool = False) -> Failure | None:
    """Return the failure that reports a difference; None if there is none."""
    if apart is None:
        return None
    where = f"after step {apart.place + 1} of {len(case.program)}, {step_text(case.program[apart.place])}"
    return Failure(apart.place, apart.name, skipped, f"{where}: {apart}")


def not_judged(
    subject: Subject, laws: GenerativeSettings, case: GeneratedCase, ensemble: Ensemble
) -> Mapping[int, frozenset[str]]:
    """Return prefixes of names that are not compared with the oracle's, by the verb's place.

    If one of two optimizers skips, the count of updates is only an observation (`scaling.two-optimizers-rule`). No
    clause says whether a window without any gradient counts, or which running statistics an evaluation of the average
    uses once they have moved on. The accumulator of ranks is rank 0's, whose part of a micro-batch depends on their
    number.
    """
    always = frozenset(laws.not_compared) | {"random/", "result/bytes"}
    if isinstance(case.recipe.scaling, StaticScaling):
        always |= _OF_MOVING_SCALES
    if case.recipe.optimizers > 1 and case.recipe.scaling is not None:
        always |= {"steps/steps"}
    counts = always | {"steps/steps", "steps/schedule"}
    moving = any(isinstance(layer, BatchNorm) for _, layer, _ in case.drawn.model.shapes())
    left: dict[int, frozenset[str]] = {}
    broken = apart = uncounted = others = False
    for index, verb in enumerate(case.program):
        broken = broken or isinstance(verb, WrongWidth)
        apart = ensemble.is_skipped(index) if isinstance(verb, Train) else apart or not isinstance(verb, _STILL)
        uncounted = uncounted or (
            isinstance(verb, ApplyGradients) and all(gradient.nothing for gradient in verb.window)
        )
        left[index] = (counts if uncounted else always) | ({"buffer/"} if broken else set())
        if isinstance(verb, StartAgain):
            others = False
        elif isinstance(verb, Restore) and verb.into != "same" and index not in ensemble.left_out:
            others = verb.by_others(case.recipe)
        left[index] |= {"accumulator/"} if others else set()
        if isinstance(verb, ApplyGradients):
            left[index] |= {"result/micro_losses"}
        if isinstance(verb, Predict) and verb.averaged and moving and (apart or broken):
            left[index] |= {"result/output."}
        if isinstance(verb, Accumulate) and _ends_early(subject, case, index):
            left[index] |= _STATE
    return left


_OF_MOVING_SCALES = {"result/setting.growth", "result/setting.backoff", "result/setting.interval"}
"""Settings that have no effect on a static scale; a dynamic scaler that is kept from moving may report some of them."""
_STILL = (Predict, Save, OpenScope, DamageOffloaded)
"""Verbs that change no running statistics in any framework."""
_STATE = {"parameter/", "master/", "moment/", "steps/", "average/", "accumulator/", "scaler/"}


def _ends_early(subject: Subject, case: GeneratedCase, index: int) -> bool:
    """Return whether the framework has already ended its window after this micro-batch, and the oracle has not."""
    scaler = case.recipe.scaling
    if subject.conventions.scaler.counts == "micro-batches" and isinstance(scaler, DynamicScaling):
        return True
    later = case.program[index + 1 : index + 2]
    return ends_by_itself(subject.conventions) and bool(later) and isinstance(later[0], Apply)


def make_failure(failed: PlayFailed) -> Failure:
    """Return the failure for a verb that raised."""
    return Failure(failed.place, failed.name, False, str(failed))
