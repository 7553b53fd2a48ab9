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
    Verb,
    WrongWidth,
    step_text,
)
from conformance.generative.programs.ensemble import MEMBERS, Ensemble
from conformance.generative.programs.executor import Play, PlayFailed, SubjectExecutor
from conformance.search import (
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

FLOAT64_TOLERANCE = 64 * 2.0**-53
"""Relative tolerance of a float64 value, for values on which the ensemble's members agree within this tolerance."""
UNDERFLOW = 2.0**-100
"""Float32 values below this may be 0: a factor underflows, or an implementation's slope is 0 there."""
REPORTED_TOLERANCE = 4 * 2.0**-24
"""Relative tolerance of a reported loss or norm: it may be computed in float32 and divided by the number of items."""
LARGEST_SQUARABLE = 2.0**64
"""Square root of the largest magnitude of float32; the square of a larger value overflows."""
CHAOTIC = 0.2
"""A bound above this share of the largest value says nothing, so the value is not judged."""
COUNTERS = (
    *("skipped", "scale_before", "scale_after", "good_steps", "raised", "refused", "steps", "schedule", "scale"),
    *("dropped", "overflowed"),
)
"""Last parts of the names of counters and of values that change only by powers of two; all other values are rounded."""
_BACKWARD_PREFIXES = ("accumulator/", "result/gradient.", "result/back.")
"""Prefixes of a backward pass' results. If it overflows, no clause says which gradients change, nor their values."""
_PREFIXES_IN_ORDER = ("result/", "accumulator/", "moment/", "master/", "parameter/", "average/", "buffer/")
"""Prefixes of rounded values, in the order in which an update computes them."""
_STATE_PREFIXES = ("parameter/", "master/", "optimizer/", "buffer/", "scaler/")
"""Prefixes of the state whose format never changes."""
_PASS_PREFIXES = ("buffer/", "random/")
"""Prefixes of the state that a pass in training mode changes."""
_WINDOW_PREFIXES = {"parameter/", "master/", "moment/", "steps/", "average/", "accumulator/", "scaler/"}
"""Canonical prefixes of the state that the end of a window changes."""
_SCALE_SETTINGS = {"result/setting.growth", "result/setting.backoff", "result/setting.interval"}
"""Settings that have no effect on a static scale; a dynamic scaler that is kept from moving may report some of them."""
_TRAINING_LOOKS = (Gradients, TraceLayers, CountBytes)
"""Verbs that update nothing, and run the model in training mode."""
_LOOKS = (Predict, Save, OpenScope, *_TRAINING_LOOKS)
"""Verbs that update nothing."""
_WITHOUT_STATISTICS = (Predict, Save, OpenScope, DamageOffloaded)
"""Verbs that change no running statistics in any framework."""

Judge = Callable[[GeneratedCase], Failure | None]


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
        measured, expected = (np.asarray(value, np.float64) for value in (self.measured, self.expected))
        differing = gaps(measured, expected) > self.bound
        if differing.any():
            return f"{self.name}: {element(measured, expected, differing, self.bound)}"
        return f"{self.name}: {got_want(self.measured, self.expected)}"


def is_counter(name: str) -> bool:
    """Return whether this is the name of a counter, which is never rounded."""
    return name.rsplit("/", 1)[-1].rsplit(".", 1)[0] in COUNTERS or name.startswith("steps/")


def first_difference(
    observations: Sequence[Observation | None], ensemble: Ensemble, excluded: Mapping[int, frozenset[str]]
) -> Mismatch | None:
    """Return the first value, by verb and name, whose distance from the oracle's exceeds the bound; None if none does.

    Args:
        observations: after each verb, by canonical name; only names that the oracle has too are compared.
        excluded: prefixes of names that are not judged, by the verb's place.
    """
    for index, (measured, expected) in enumerate(zip(observations, ensemble.nearest.observations, strict=True)):
        if measured is None or expected is None:
            continue
        names = [n for n in expected if n in measured and not n.startswith(tuple(excluded.get(index, ())))]
        names = [n for n in names if _is_determined(n, measured, expected)]
        measured, expected = _where_finite(measured, expected)
        unequal = [name for name in names if not equal(measured[name], expected[name])]
        if unequal and ensemble.adrift(index):
            continue
        if unequal and (ensemble.is_kinked(index) or ensemble.has_diverged(index)):
            return None
        infinite = any(is_counter(n) or not np.array_equal(_finite(measured[n]), _finite(expected[n])) for n in unequal)
        if infinite and not all(_agrees(play, ensemble.nearest, index) for play in ensemble.of_other_ranges):
            return None  # with another exponent range, other values overflow up to this verb
        if ensemble.is_lost(index):
            unequal = [name for name in unequal if is_counter(name)]
        for name in sorted(unequal, key=_order):
            value = _OracleValue(name, index, expected[name], ensemble)
            if value.find_exceeded_bound(measured[name], ensemble.fewer()) is None:
                continue
            if not _is_decided(ensemble, index):
                return None
            bound = value.find_exceeded_bound(measured[name], ensemble.further())
            if bound is not None:
                return Mismatch(index, name, measured[name], expected[name], bound)
    return None


@dataclass(frozen=True, eq=False)
class _OracleValue:
    """A value of the oracle's play that rounds to nearest, and how far other plays may be from it.

    Attributes:
        name: the value's name, such as "parameter/0.weight".
        place: the place of the verb after which it is observed.
        ensemble: the oracle's plays.
    """

    name: str
    place: int
    array: Array
    ensemble: Ensemble

    def find_exceeded_bound(self, measured: Array, growing: Iterator[tuple[Play, ...]]) -> float | None:
        """Return the bound that a value exceeds for all sets of members; None if it does not, or is not judged."""
        gap, bound = distance(measured, self.array), 0.0
        if is_counter(self.name):
            return bound if gap else None
        for members in growing:
            allowed = self.bound(members)
            if allowed is None:
                return None
            bound = allowed
            if self.name.startswith(("result/output.", "result/back.")) and unit(measured) > unit(self.array):
                # The framework's own format is coarser: allow one of its units.
                bound += unit(measured) * float(np.abs(wide(self.array)).max(initial=0.0))
            if gap <= bound:
                return None
        return bound

    def bound(self, members: Sequence[Play]) -> float | None:
        """Return how far a play may be from the value; None if it is not judged. The bound grows with the members."""
        if is_counter(self.name):
            return 0.0
        spread = self._spread(members)
        finite = np.abs(wide(self.array))[np.isfinite(wide(self.array))]
        largest = float(finite.max()) if finite.size else 0.0
        reported = self.name.startswith("result/") and "." not in self.name
        if spread <= FLOAT64_TOLERANCE * largest and self.array.dtype == np.float64:
            if reported:
                return largest * REPORTED_TOLERANCE
            return 0.0 if narrow(self.array) else largest * FLOAT64_TOLERANCE
        if spread == 0.0:
            is_exact = narrow(self.array) and self.ensemble.exact(self.place)
            return 0.0 if is_exact else unit(self.array) * largest + UNDERFLOW
        if self.ensemble.freedom * spread > CHAOTIC * largest:
            return None
        rounding = self.ensemble.freedom * spread + unit(self.array) * largest
        return max(rounding, REPORTED_TOLERANCE * largest if reported else 0.0) + UNDERFLOW

    def bound_from_exact_value(self) -> float | None:
        """Return how far a play may be from the exact value, which two programs share; None if it is not judged.

        The play may be one bound away from its oracle. The oracle may be one bound away from the exact value, or as far
        as the unrounded play if that is more: members lie around the oracle, and if a low format almost holds a value,
        hardly any member differs from rounding to nearest.
        """
        bound = self.bound(self.ensemble.members)
        return None if bound is None else bound + max(bound, self._rounding_error())

    def _spread(self, members: Sequence[Play]) -> float:
        """Return the largest distance of a member, 0.0 if none moves the value.

        Other roundings may move it nevertheless. The spread is then the unrounded play's distance, but only for the
        full set of members. A compiled framework's spread is always at least that distance.
        """
        observations = (member.observations[self.place] for member in members)
        spread = max(distance(seen[self.name], self.array) for seen in observations if seen is not None)
        if (spread == 0.0 and len(members) > MEMBERS) or self.ensemble.conventions.compiled:
            return max(spread, self._rounding_error())
        return spread

    def _rounding_error(self) -> float:
        """Return the unrounded play's distance from the value, since members may agree with it by chance.

        If a counter differs in the unrounded play, for example because nothing overflows there, the distance means
        nothing and the value counts as not rounded: return 0.
        """
        for step in range(self.place + 1):
            nearest, unrounded = (play.observations[step] for play in (self.ensemble.nearest, self.ensemble.unrounded))
            if nearest is None or unrounded is None:
                continue
            if any(not equal(unrounded[n], nearest[n]) for n in nearest if is_counter(n)):
                return 0.0
        observation = self.ensemble.unrounded.observations[self.place]
        return 0.0 if observation is None else distance(observation[self.name], self.array)


def _is_determined(name: str, measured: Observation, expected: Observation) -> bool:
    """Return whether a clause determines the value.

    No clause determines an average before the first applied update, how NaN spreads through a layer, or a gradient
    whose square, as in a loss, overflows float32.
    """
    if name.startswith("result/back.") and bool(np.isnan(wide(expected[name])).any()):
        return False
    if name.startswith("result/output.") and measured[name].shape == expected[name].shape:
        missing = np.isnan(wide(expected[name]))
        if missing.any() and bool(np.isnan(wide(measured[name]))[missing].all()):
            return False
    if name.startswith("result/gradient.") and bool((np.abs(wide(expected[name])) > LARGEST_SQUARABLE).any()):
        return False
    return not name.startswith("average/") or bool(expected.get("steps/steps", 0))


def _where_finite(measured: Observation, expected: Observation) -> tuple[Observation, Observation]:
    """Return both observations with gradients set to 0 where either is not finite, if the oracle's overflow.

    All returned gradients are set to 0 if the framework's have no value that is finite and nonzero after unscaling.
    """
    gradients = [name for name in expected if name in measured and name.startswith(_BACKWARD_PREFIXES)]
    if all(np.isfinite(wide(expected[name])).all() for name in gradients):
        return measured, expected
    measured, expected = dict(measured), dict(expected)
    returned = [name for name in gradients if name.startswith("result/gradient.")]
    nothing = all(not np.nan_to_num(wide(measured[name]), posinf=0.0, neginf=0.0).any() for name in returned)
    for name in gradients:
        if measured[name].shape == expected[name].shape:
            judged = np.isfinite(wide(measured[name])) & np.isfinite(wide(expected[name]))
            judged &= not (nothing and name in returned)
            for observation in (measured, expected):
                observation[name] = np.where(judged, observation[name], np.zeros_like(observation[name]))
    return measured, expected


def _order(name: str) -> tuple[int, str]:
    """Return a sort key: counters first, then rounded values in the order in which an update computes them."""
    if is_counter(name):
        return 0, name
    matching = (i for i, prefix in enumerate(_PREFIXES_IN_ORDER, 1) if name.startswith(prefix))
    return next(matching, len(_PREFIXES_IN_ORDER) + 1), name


def _is_decided(ensemble: Ensemble, index: int) -> bool:
    """Return whether all members equal the oracle, up to this verb, in counters and in which values are finite."""
    return all(_agrees(member, ensemble.nearest, index) for member in ensemble.members)


def _agrees(member: Play, nearest: Play, index: int) -> bool:
    """Return whether a member equals the oracle, up to a verb, in counters and in which values are finite."""
    pairs = zip(member.observations[: index + 1], nearest.observations[: index + 1], strict=True)
    return all(exact is None or (other is not None and _observation_agrees(other, exact)) for other, exact in pairs)


def _observation_agrees(other: Observation, exact: Observation) -> bool:
    return other.keys() == exact.keys() and all(
        equal(other[n], exact[n]) if is_counter(n) else np.array_equal(_finite(other[n]), _finite(exact[n]))
        for n in exact
    )


def _finite(array: Array) -> Array:
    return np.isfinite(wide(array))


def find_twin_mismatch(
    measured: Play,
    twin: Play,
    *,
    ensembles: tuple[Ensemble, ...] = (),
    excluded: tuple[str, ...] = (),
    underflow: float = 0.0,
) -> Mismatch | None:
    """Return the first value in which two plays of a framework differ, verb by verb; None if there is none.

    Args:
        ensembles: of both programs, if they may round differently: each play may be one bound away from its oracle,
            and its oracle one bound away from the exact value. Empty if the plays must be equal bit for bit.
        excluded: prefixes of names that are not compared.
        underflow: values smaller than this are equal.
    """
    for index, (own, other) in enumerate(zip(measured.observations, twin.observations, strict=True)):
        if own is None or other is None:
            continue
        if not _oracles_agree(index, ensembles):
            return None
        names = [name for name in other if name in own and not name.startswith(excluded)]
        for name in sorted((n for n in names if not _same(own[n], other[n], underflow)), key=_order):
            bounds = [_bound_from_exact_value(name, index, ensemble) for ensemble in ensembles]
            if None in bounds or (ensembles and not np.isfinite(wide(other[name])).all()):
                continue
            bound = sum(bound for bound in bounds if bound is not None)
            if not ensembles or not distance(own[name], other[name]) <= bound:
                return Mismatch(index, name, own[name], other[name], bound)
    return None


def _same(a: Array, b: Array, underflow: float) -> bool:
    """Return whether two values have the same bits, apart from the sign of zero and values up to `underflow`."""
    if same_bits(a, b) or a.shape != b.shape or a.dtype != b.dtype or a.dtype.kind in "USO":
        return same_bits(a, b)
    small = np.maximum(np.abs(wide(a)), np.abs(wide(b))) <= underflow
    return same_bits(np.where(small, np.zeros_like(a), a), np.where(small, np.zeros_like(b), b))


def _oracles_agree(index: int, ensembles: tuple[Ensemble, ...]) -> bool:
    """Return whether the oracles of all programs agree after a verb in counters and in which values are finite."""
    observations = [o for o in (ensemble.nearest.observations[index] for ensemble in ensembles) if o is not None]
    pairs = [(name, o[name], observations[0][name]) for o in observations[1:] for name in o]
    return all(
        equal(a, b) if is_counter(name) else a.shape != b.shape or not distance(0.0 * wide(a), 0.0 * wide(b))
        for name, a, b in pairs
    )


def _bound_from_exact_value(name: str, index: int, ensemble: Ensemble) -> float | None:
    exact = ensemble.nearest.observations[index]
    if exact is None or name not in exact or not _is_decided(ensemble, index):
        return None
    return _OracleValue(name, index, exact[name], ensemble).bound_from_exact_value()


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
    lengths = [len(case.program) for case in cases]
    return [Play(tuple(step[i] for step in rounds[:length])) for i, length in enumerate(lengths)]


def against_the_oracle(subject: Subject, laws: GenerativeSettings, case: GeneratedCase) -> Failure | None:
    """Return the first difference between the framework's play and the oracle's; None if there is none."""
    try:
        measured = play(subject, case)
    except PlayFailed as failed:
        return make_failure(failed)
    ensemble = ensemble_of(subject, case, measured)
    for find_change in (_find_leak, _find_format_change, _find_state_change):
        if (failure := find_change(case, measured)) is not None:
            return failure
    observations = canonical_play(measured, laws, case).observations
    mismatch = first_difference(observations, ensemble, not_judged(subject, laws, case, ensemble))
    return describe(case, mismatch, skipped=mismatch is not None and ensemble.is_skipped(mismatch.place))


def failure_after(program: Sequence[Verb], index: int, name: str, text: str) -> Failure:
    """Return the failure of a value after the verb at a place; `name` is the value's."""
    return Failure(index, name, False, f"after step {index + 1}, {step_text(program[index])}: {text}")


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
                text = f"{name} got {value}, want {first.get(name)} as before"
                return failure_after(case.program, index, name, text)
    return None


def _find_format_change(case: GeneratedCase, measured: Play) -> Failure | None:
    """Return a failure at the first verb after which a part of the state has changed its format."""
    first: Observation = {}
    for index, observation in enumerate(measured.observations):
        for name, value in (observation or {}).items():
            if name.startswith(_STATE_PREFIXES) and value.dtype != first.setdefault(name, value).dtype:
                text = f"{name} got {value.dtype}, want {first[name].dtype} as before"
                return failure_after(case.program, index, name, text)
    return None


def _find_state_change(case: GeneratedCase, measured: Play) -> Failure | None:
    """Return a failure at the first read-only verb after which a part of the state has changed, bit for bit."""
    before: Observation | None = None
    for index, (verb, after) in enumerate(zip(case.program, measured.observations, strict=True)):
        if before is not None and after is not None and isinstance(verb, _LOOKS):
            excluded = ("result/", *(_PASS_PREFIXES if isinstance(verb, _TRAINING_LOOKS) else ()))
            for name, value in after.items():
                if name.startswith(excluded) or name not in before or same_bits(value, before[name]):
                    continue
                text = f"after step {index + 1}, {step_text(verb)}, which only reads: {name} has changed"
                return Failure(index, name, False, text)
        before = after
    return None


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


def describe(case: GeneratedCase, mismatch: Mismatch | None, *, skipped: bool = False) -> Failure | None:
    """Return the failure that reports a difference; None if there is none."""
    if mismatch is None:
        return None
    index = mismatch.place
    text = f"after step {index + 1} of {len(case.program)}, {step_text(case.program[index])}: {mismatch}"
    return Failure(index, mismatch.name, skipped, text)


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
        always |= _SCALE_SETTINGS
    if case.recipe.optimizers > 1 and case.recipe.scaling is not None:
        always |= {"steps/steps"}
    normalised = any(isinstance(layer, BatchNorm) for _, layer, _ in case.drawn.model.shapes())
    excluded: dict[int, frozenset[str]] = {}
    raised = statistics_moved = uncounted = other_ranks = False
    for index, verb in enumerate(case.program):
        raised = raised or isinstance(verb, WrongWidth)
        if isinstance(verb, Train):
            statistics_moved = ensemble.is_skipped(index)
        else:
            statistics_moved = statistics_moved or not isinstance(verb, _WITHOUT_STATISTICS)
        if isinstance(verb, ApplyGradients):
            uncounted = uncounted or all(gradient.nothing for gradient in verb.window)
        if isinstance(verb, StartAgain):
            other_ranks = False
        elif isinstance(verb, Restore) and verb.into != "same" and index not in ensemble.left_out:
            other_ranks = verb.by_others(case.recipe)
        prefixes = always | ({"steps/steps", "steps/schedule"} if uncounted else set())
        prefixes |= {"buffer/"} if raised else set()
        prefixes |= {"accumulator/"} if other_ranks else set()
        prefixes |= {"result/micro_losses"} if isinstance(verb, ApplyGradients) else set()
        if isinstance(verb, Predict) and verb.averaged and normalised and (statistics_moved or raised):
            prefixes |= {"result/output."}
        if isinstance(verb, Accumulate) and _ends_early(subject, case, index):
            prefixes |= _WINDOW_PREFIXES
        excluded[index] = prefixes
    return excluded


def _ends_early(subject: Subject, case: GeneratedCase, index: int) -> bool:
    """Return whether the framework has already ended its window after this micro-batch, and the oracle has not."""
    scaler = case.recipe.scaling
    if subject.conventions.scaler.counts == "micro-batches" and isinstance(scaler, DynamicScaling):
        return True
    following = case.program[index + 1 : index + 2]
    return ends_by_itself(subject.conventions) and bool(following) and isinstance(following[0], Apply)


def make_failure(failed: PlayFailed) -> Failure:
    """Return the failure for a verb that raised."""
    return Failure(failed.place, failed.name, False, str(failed))
