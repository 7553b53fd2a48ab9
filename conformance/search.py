"""Search for failing cases with Hypothesis; laws and their settings, array distances, layouts, canonical names."""

import functools
import inspect
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from typing import Any, Generic, Literal, NamedTuple, TypeVar

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.errors import Unsatisfiable
from hypothesis.internal.conjecture.providers import AVAILABLE_PROVIDERS, GLOBAL_CONSTANTS, HypothesisProvider
from hypothesis.strategies import SearchStrategy

from conformance.checks.evidence import Abstention, Check, Verdict, Violation, clean_message
from conformance.checks.subject import Subject
from conformance.known_failures.entries import Exclusion
from fixtures.arrays import Array, format_of
from fixtures.recipe import Optimizer
from frameworks.contract import Capability, Conventions, Framework, Unsupported
from frameworks.reference import ReferenceFramework
from frameworks.registry import adapter_file, find_adapters


def unit(array: Array) -> float:
    """Return the unit in the last place of 1 in the array's format, or float32's for dtypes that are no known float."""
    name = array.dtype.name if array.dtype.name in ("float16", "bfloat16", "float32") else "float32"
    return 2.0 * format_of(name).unit_roundoff


def narrow(array: Array) -> bool:
    """Return whether float16 can represent all values, so that they have few significant bits."""
    with np.errstate(over="ignore"):
        return equal(array.astype(np.float16), array)


def wide(array: Array) -> Array:
    """Return the array in float64."""
    return np.asarray(array).astype(np.float64)


def equal(a: Array, b: Array) -> bool:
    """Return whether the distance of two arrays is 0."""
    return distance(a, b) == 0.0


def distance(a: Array, b: Array) -> float:
    """Return the largest difference of an element; infinite for different shapes, or if only one value is finite.

    NaN equals infinity, since the order of a sum decides which of them results.
    """
    if a.shape != b.shape:
        return float("inf")
    if a.dtype == b.dtype and a.tobytes() == b.tobytes():
        return 0.0
    return float(gaps(wide(a).ravel(), wide(b).ravel()).max(initial=0.0))


def gaps(a: Array, b: Array) -> Array:
    """Return the difference of each element of two float64 arrays, by the rules of `distance`."""
    with np.errstate(invalid="ignore"):
        gap = np.abs(a - b)
    finite = np.isfinite(a) | np.isfinite(b)
    same = (a == b) | ((np.isnan(a) | np.isnan(b)) & ~finite)
    return np.where(same, 0.0, np.where(np.isnan(gap), np.inf, gap))


Layout = Literal["rows", "columns", "strided"]
LAYOUTS: tuple[Layout, ...] = ("rows", "columns", "strided")


def laid_out(array: Array, layout: Layout) -> Array:
    """Return the same values in C order, transposed, or as every second element of a larger array."""
    match layout:
        case "columns":
            return np.asfortranarray(array)
        case "strided" if array.ndim:
            larger = np.zeros((*array.shape[:-1], 2 * array.shape[-1]), array.dtype)
            larger[..., ::2] = array
            return larger[..., ::2]
        case _:
            return np.ascontiguousarray(array)


def nth(count: int) -> Layout:
    """Return a layout; consecutive counts give all layouts in turn."""
    return LAYOUTS[count % len(LAYOUTS)]


Observation = dict[str, Array]

COMPARED_PREFIXES = (
    *("result/", "parameter/", "master/", "buffer/", "scaler/", "accumulator/", "moment/", "steps/", "average/"),
    "window/",
)
"""Prefixes of canonical names of values that are compared with the oracle's."""
REFERENCE_MOMENTS = {slot: slot for slot in ("momentum", "first_moment", "second_moment")}
"""Canonical slot for each of the reference's."""
STEPS = "steps"
"""Canonical slot of a parameter's count of updates."""


def canonical(observation: Observation, moments: Mapping[str, str]) -> Observation:
    """Return an observation whose optimizer state is "moment/SLOT/PARAMETER", "steps/PARAMETER" or "average/PARAMETER".

    Args:
        moments: canonical slot by the framework's own; slots that are not among these are left out.
    """
    named: Observation = {}
    for name, value in observation.items():
        if not name.startswith("optimizer/"):
            named[name] = value
            continue
        slot, _, parameter = name.removeprefix("optimizer/").partition("/")
        if slot.startswith("steps."):
            named[f"steps/{slot.removeprefix('steps.')}"] = value
        elif slot == "average" and parameter:
            named[f"average/{parameter}"] = value
        elif not parameter and slot in ("steps", "schedule"):
            named[f"steps/{slot}"] = value
        elif parameter and (moment := moments.get(slot)):
            named[f"steps/{parameter}" if moment == STEPS else f"moment/{moment}/{parameter}"] = value
    return {name: value for name, value in named.items() if name.startswith(COMPARED_PREFIXES)}


def ends_by_itself(conventions: Conventions) -> bool:
    """Return whether the framework ends a window itself at its last micro-batch, so that `apply` only reports."""
    return conventions.remainder != "flush"


PROGRAMS = 96
"""Default number of programs in the profile "ci"."""
REFERENCE_PROGRAMS = 768
"""Number of programs for the reference, which takes a hundredth of a second for each."""


@dataclass(frozen=True)
class GenerativeSettings:
    """The table `[laws]` of an adapter.

    Attributes:
        programs: number of programs that the profile "ci" plays for each kind that needs an oracle.
        seed_bits: number of bits of a run's seed that are documented to count, 32 or 64.
        moments: canonical slot ("momentum", "first_moment", "second_moment", "steps") for each of the framework's,
            by kind of optimizer.
        not_compared: reasons why parts of the state cannot be compared with the oracle's, by prefix of their names.
        not_judged: reasons why the profile "ci" generates nothing in a mode, by mode.
        not_drawn: reasons why generated recipes lack a technique, by the recipe's field: "ranks", "offload" or
            "quantization".
    """

    programs: int = PROGRAMS
    seed_bits: int = 32
    moments: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    not_compared: Mapping[str, str] = field(default_factory=dict)
    not_judged: Mapping[str, str] = field(default_factory=dict)
    not_drawn: Mapping[str, str] = field(default_factory=dict)

    def slots(self, optimizer: Optimizer) -> Mapping[str, str]:
        """Return the canonical slot for each of the framework's, for a recipe's optimizer."""
        return self.moments.get(type(optimizer).__name__, {})


def generative_settings(framework: Framework) -> GenerativeSettings:
    """Return the settings of a framework's adapter; the reference and its faults need none.

    Raises:
        ValueError: a key or value is not valid.
    """
    if isinstance(framework, ReferenceFramework):
        kinds = ("SGD", "Adam", "AdamW")
        return GenerativeSettings(REFERENCE_PROGRAMS, 64, dict.fromkeys(kinds, REFERENCE_MOMENTS))
    name, its_class = framework.name, type(framework)
    own_path = f"{its_class.__module__}:{its_class.__qualname__}"
    table = adapter_file(name if name in find_adapters() else own_path).laws
    if unknown := sorted(table.keys() - {item.name.replace("_", "-") for item in fields(GenerativeSettings)}):
        raise ValueError(f"{name}: adapter.toml: [laws] has no key {unknown[0]!r}")
    return GenerativeSettings(**{key.replace("-", "_"): value for key, value in table.items()})


@dataclass(frozen=True)
class Failure:
    """The failure of a case.

    Attributes:
        place: place of the verb after which the failure appears.
        name: name of the value that differs, "raised" if the verb raised.
        skipped: whether the oracle skips the update of that verb.
        text: the difference, in one sentence.
    """

    place: int
    name: str
    skipped: bool
    text: str

    def breaking(self, clause: str) -> str:
        """Return the message, with the clause that the failure breaks."""
        return f"{self.text}; this breaks {clause}"


INDEPENDENT = "conformance-independent"
"""Name of the Hypothesis backend that generates every case independently.

The default backend of Hypothesis makes most cases from an earlier one by repeating parts of it. That finds a parser's
crashes sooner, but of a few hundred programs only a few dozen differ.
"""


class IndependentDraws(HypothesisProvider):
    """The default distributions. Hypothesis draws each case from scratch for a backend of another name.

    The constants of loaded source files are left out, so that a seed gives the same cases in every process.
    """

    _local_constants = GLOBAL_CONSTANTS


AVAILABLE_PROVIDERS[INDEPENDENT] = f"{IndependentDraws.__module__}.{IndependentDraws.__qualname__}"

C = TypeVar("C")
F = TypeVar("F")


class _ShrinkingOver(BaseException):
    """The time for shrinking is over. It is not an `Exception`, so that Hypothesis stops."""


class _Failing(Exception):
    """The law does not hold for a case."""


@dataclass
class Search(Generic[C, F]):
    """One exploration of a law.

    Attributes:
        judge: returns the failure of a case, None if there is none; raises `Unsupported` if the framework refuses it.
        enough: number of passing cases after which the search ends.
        refusals: exceptions by which `judge` says that a case cannot be judged.
        judged, refused: numbers of judged cases and of refused cases.
        refusal: the last exception of a refused case.
        smallest: the last failing case with its failure, shrunk as far as time allowed.
    """

    judge: Callable[[C], F | None]
    enough: float = math.inf
    refusals: tuple[type[Exception], ...] = (Unsupported,)
    judged: int = 0
    refused: int = 0
    refusal: Exception | None = None
    smallest: tuple[C, F] | None = None
    _end: float = field(default=math.inf, repr=False)
    _raised: Exception | None = field(default=None, repr=False)

    def run(self, cases: SearchStrategy[C | None], examples: int, chosen: int, shrinking_s: float) -> None:
        """Generate up to `examples` cases from the seed `chosen` until one breaks the law, and shrink that one.

        A drawn None means that there is no case to judge. Any other exception of `judge` ends the search and is raised.
        """
        phases = (Phase.generate, Phase.shrink) if shrinking_s > 0 else (Phase.generate,)

        def hold(case: C | None) -> None:
            if case is None or self._raised is not None or (self.judged >= self.enough and self.smallest is None):
                return
            if time.monotonic() > self._end:
                raise _ShrinkingOver
            try:
                failure = self.judge(case)
            except self.refusals as refusal:
                self.refused, self.refusal = self.refused + 1, refusal
                return
            except Exception as error:  # no failure of the law; Hypothesis must not take it for one
                self._raised = error
                raise
            self.judged += 1
            if failure is not None:
                if self.smallest is None:
                    self._end = time.monotonic() + shrinking_s
                self.smallest = case, failure
                raise _Failing

        configure = settings(
            max_examples=examples,
            database=None,
            deadline=None,
            derandomize=False,
            phases=phases,
            report_multiple_bugs=False,
            suppress_health_check=list(HealthCheck),
            print_blob=False,
            backend=INDEPENDENT,
        )
        try:
            seed(chosen)(configure(given(cases)(hold)))()
        except (_Failing, Unsatisfiable):  # `smallest` has the failure, or no case could be drawn
            pass
        except BaseException:
            if self._raised is not None:
                raise self._raised from None
            if self.smallest is None:
                raise


ATTEMPTS = 8
"""Largest number of attempts to generate a single instance that can be judged."""


@dataclass(frozen=True, kw_only=True)
class Property:
    """One law.

    Attributes:
        number: distinguishes the law's random stream from those of other laws.
        draw: returns the strategy of the law's instances for a framework.
        share: share of an adapter's number of programs, for all parts together; 0 for a single instance.
        parts: number of tests that share the work.
        needs: capabilities that the framework must declare.
        together: filters drawn instances by a condition; also joins them where a test takes several at once.
        always: features that every instance has.
    """

    number: int
    draw: Callable[[Framework], SearchStrategy[Any]]
    share: float
    parts: int = 1
    needs: tuple[Capability, ...] = ()
    together: Callable[[SearchStrategy[Any], Callable[[Any], bool]], SearchStrategy[Any]] = SearchStrategy.filter
    always: frozenset[str] = frozenset()

    def instances(self, framework: Framework, excluded: Collection[Exclusion]) -> SearchStrategy[Any]:
        """Return the strategy of the law's instances, without known defects."""

        def is_allowed(instance: Any) -> bool:
            features = instance.words() if excluded else frozenset()
            return not any(entry.leaves_out(features) for entry in excluded)

        return self.together(self.draw(framework), is_allowed)

    def count(self, laws: GenerativeSettings) -> int:
        """Return the number of examples of one part."""
        return max(1, round(laws.programs * self.share / self.parts)) if self.share else ATTEMPTS

    @property
    def enough(self) -> float:
        """The largest number of judged examples."""
        return math.inf if self.share else 1

    def seed(self, seed: int, part: int) -> int:
        """Return the seed of a part."""
        return 10_000 * seed + 10 * self.number + part


class ClauseBroken(Exception):
    """A check failed; `clause` is the clause that it breaks."""

    def __init__(self, clause: str, text: str) -> None:
        super().__init__(text)
        self.clause = clause


@contextmanager
def breaking(clause: str) -> Iterator[Verdict]:
    """Yield a verdict for the checks of one clause.

    Raises:
        ClauseBroken: a check fails.
    """
    try:
        yield Verdict()
    except Violation as broken:
        raise ClauseBroken(clause, clean_message(str(broken))) from None


class CheckedInstance(ABC):
    """An instance of a law whose checks name clauses."""

    @abstractmethod
    def check(self, subject: Subject) -> None:
        """Check the law.

        Raises:
            ClauseBroken: the law does not hold.
        """

    def failure(self, subject: Subject, laws: GenerativeSettings) -> Failure | None:
        """Return the first failed check, whose clause is the failure's name; None if none fails."""
        try:
            self.check(subject)
        except ClauseBroken as broken:
            return Failure(0, broken.clause, False, str(broken))
        return None

    def clause(self, subject: Subject, laws: GenerativeSettings, failure: Failure) -> tuple[str, str]:
        """Return the clause that a failure breaks, and the message."""
        return failure.name, failure.breaking(failure.name)


PropertyTest = Callable[..., None]

DRAWS = 4
"""Cases drawn at most for each one to judge: a framework that lacks a format refuses all cases with that format."""


class _Failed(NamedTuple):
    """The checks of a failing case, and the exception that it raised."""

    verdict: Verdict
    error: Exception


def explore(cases: SearchStrategy[Any], examples: int) -> Callable[[PropertyTest], PropertyTest]:
    """Turn a law into a test over `examples` cases, which are values whose `repr` recreates them.

    Cases that the framework does not support are replaced. If it supports none, the test is unsupported.
    """

    def decorate(law: PropertyTest) -> PropertyTest:
        signature = inspect.signature(law)
        wanted = [p for p in signature.parameters.values() if p.name != "case"]

        @functools.wraps(law)
        def test(subject: Subject, verdict: Verdict, **fixtures: Any) -> None:
            __tracebackhide__ = True
            global_state, profile, latest = subject.framework.global_state(), subject.profile, Verdict()

            def judge(case: Any) -> _Failed | None:
                nonlocal latest
                result = Verdict()
                subject.framework.restore_global_state(global_state)
                try:
                    law(subject, result, case, **fixtures)
                except (Unsupported, Abstention):
                    raise
                except Exception as error:  # a failed check, or an error of the law: `test` raises it again
                    return _Failed(result, error)
                latest = result
                return None

            enough = examples * profile.factor
            search: Search[Any, _Failed] = Search(judge, enough, refusals=(Unsupported, Abstention))
            chosen = subject.seed if profile.seed is None else profile.seed
            search.run(cases, DRAWS * enough, chosen, profile.shrinking_s)
            if search.smallest is not None:
                case, (result, error) = search.smallest
                _merge(verdict, result)
                pasted = _as_test(law, case, fixtures, getattr(test, "pytestmark", []))
                if isinstance(error, Violation):
                    raise Violation(error.signature, f"{error}\n{pasted}") from None
                error.__notes__ = [pasted]
                raise error from None
            if not search.judged and search.refusal is not None:
                raise search.refusal
            _merge(verdict, latest)
            verdict.checks.append(Check("the law holds for every drawn case", True, f"{search.judged} cases", "all"))

        test.__signature__ = signature.replace(parameters=wanted)  # type: ignore[attr-defined]
        test.law = law  # type: ignore[attr-defined]
        return test

    return decorate


def _as_test(law: PropertyTest, case: Any, fixtures: dict[str, Any], marks: list[Any]) -> str:
    names = [mark.args[0] for mark in marks if isinstance(mark, pytest.Mark) and mark.name == "clause"]
    others = "".join(f", {name}" for name in fixtures)
    arguments = "".join(f", {name}={name}" for name in fixtures)
    return (
        "the smallest case found, as a test of its own:\n\n"
        f'@clause("{names[0] if names else "..."}")\n'
        f"def {law.__name__}_example(subject: Subject, verdict: Verdict{others}) -> None:\n"
        f"    {law.__name__}.law(subject, verdict, {case!r}{arguments})\n"
    )


def _merge(verdict: Verdict, other: Verdict) -> None:
    verdict.checks.extend(other.checks)
    verdict.observations.update(other.observations)
    verdict.measurements.update(other.measurements)
    verdict.traces.update(other.traces)
