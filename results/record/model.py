"""The parts of a record and the outcomes of a test. `results.record.reading` has their JSON form."""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Annotated, Any, ClassVar, Literal, NoReturn, Self, TypeVar

from msgspec import Meta

from results.record.values import (
    END,
    ClauseId,
    ClauseText,
    FindingId,
    FindingText,
    Json,
    NonEmpty,
    Number,
    decode,
    number,
    numbers,
)

SAMPLE = 32
"""Number of sampled values in a fingerprint."""


class Outcome(StrEnum):
    """The outcome of a test. It has no truth value: compare it, or use `bad`.

    PASS: the clause holds.
    FAIL: it fails, and no expectation names the failure.
    KNOWN: it fails as an expectation describes.
    FIXED: an expectation names a failure that no longer happens; an error until the expectation is removed.
    UNSUPPORTED: the adapter refuses it, and the framework's own call was tried and did not act.
    NOT_OFFERED: the adapter refuses it and has no call to try, which says nothing of the framework.
    MISDECLARED: declared one way, observed another.
    ABSTAIN: two identical runs differ, so there is no verdict.
    UNSTABLE: it got worse, but not again when repeated in a new process.
    ERROR: the test raised an unexpected exception. TIMEOUT: it did not end in time. CRASH: the process died.
    """

    PASS = "pass"
    KNOWN = "known"
    UNSUPPORTED = "unsupported"
    NOT_OFFERED = "not offered"
    ABSTAIN = "abstain"
    FAIL = "fail"
    MISDECLARED = "misdeclared"
    FIXED = "fixed"
    UNSTABLE = "unstable"
    ERROR = "error"
    TIMEOUT = "timeout"
    CRASH = "crash"

    @property
    def bad(self) -> bool:
        """Return whether somebody has to act on it: an unexpected and repeatable failure."""
        return self not in _QUIET

    def __bool__(self) -> NoReturn:
        raise TypeError(f"an outcome is neither true nor false: compare {self.value!r} with an Outcome, or use .bad")


REFUSED = frozenset({Outcome.UNSUPPORTED, Outcome.NOT_OFFERED})
"""The adapter refused what the test asks for."""

UNJUDGED = REFUSED | {Outcome.ABSTAIN}
"""Nothing was judged."""

_QUIET = UNJUDGED | {Outcome.PASS, Outcome.KNOWN, Outcome.UNSTABLE}


Status = Literal["complete", "partial", "interrupted"]
"""Status of a run. `complete`: all tests of the suites were judged; `partial`: all collected tests, which are fewer."""

Seed = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Seconds = Annotated[float, Meta(ge=0.0)]
_DAY, _TIME = "[0-9]{4}-[0-9]{2}-[0-9]{2}", "[0-9]{2}:[0-9]{2}:[0-9]{2}"
Date = Annotated[str, Meta(pattern=rf"^{_DAY}T{_TIME}(\.[0-9]{{1,9}})?(Z|[+-][0-9]{{2}}:[0-9]{{2}}){END}")]
"""ISO 8601 date and time with its offset from UTC."""


@dataclass(frozen=True)
class Suite:
    """The suite that wrote a record.

    Attributes:
        clauses_with_tests, clauses_without_tests: its clauses, by whether a test names them.
        commit: of its checkout, followed by "+" if files differed from it; "" where it is unknown.
        areas: digest of each area of its files, such as "judging" or "adapter"; none in records of older suites.
    """

    version: str
    clauses_with_tests: tuple[ClauseId, ...] = ()
    clauses_without_tests: tuple[ClauseId, ...] = ()
    commit: str = ""
    areas: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Series:
    """What two comparable records share: `device` as requested ("cuda"), `device_kind` its model."""

    framework: NonEmpty
    device: str
    device_kind: str
    mode: str

    @property
    def key(self) -> tuple[str, str, str]:
        """Framework, kind of device and mode: equal for records that are compared."""
        return self.framework, self.device_kind, self.mode

    @property
    def mode_and_device(self) -> str:
        """Mode and requested device in words."""
        return f"{self.mode} {self.device}".strip()


@dataclass(frozen=True)
class Variant:
    """What may differ between comparable records.

    Attributes:
        environment: what the adapter says: device model, driver, precision and determinism switches, thread counts.
        packages: version of every installed distribution by its normalized name.
        variables: environment variables that frameworks and their libraries read, as they were set.
        instruction_sets: what the processor offers of what kernels choose by, such as "avx2".
    """

    framework_version: str
    environment: Mapping[str, str] = field(default_factory=dict)
    packages: Mapping[str, str] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)
    instruction_sets: tuple[str, ...] = ()


@dataclass(frozen=True)
class CheckResult:
    """One check of a test: the measured value, the expected value or bound, and its derivation."""

    what: str
    measured: Json
    bound: Json
    expected: Json
    passed: bool
    derivation: Mapping[str, Json] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("measured", "bound", "expected", "derivation"):
            value = getattr(self, name)
            if value is not None and type(value) is not float:
                object.__setattr__(self, name, decode(value))


@dataclass(frozen=True)
class RunSetup:
    """Fixture and recipe of one training run of a test.

    Attributes:
        fixture: name of the model and its data.
        recipe: fields of the recipe that are not at their defaults.
    """

    fixture: str
    recipe: Mapping[str, Json] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "recipe", decode(self.recipe))


@dataclass(frozen=True)
class TestVerdict:
    """The result of one test.

    Attributes:
        test: CLAUSE/CASE, where the case of a suite's test is "function[parameters]".
        signature: short name of the way it failed, or "".
        reason, link: why a failure is known or a capability refused, or "".
        finding: id of the finding that a known failure rests on, or "".
        setup_hash: of a scenario, hash of what a side was trained on in addition to its recipe; verdicts with different
            hashes are not comparable. Else "".
        repro: command that repeats the test.
        leaks: global settings that the test left changed.
        inferred_from: the judged series whose expectation was taken, its version alone where device and mode are the
            same, where nobody has judged this one, or "".
        repeats: of a new verdict, the outcome of each repetition in a new process, with its signature in parentheses
            if it has one.
        runs: the training runs that the verdict rests on, in order, each once.
    """

    __test__: ClassVar[bool] = False
    """Keeps pytest from collecting it where a test module imports it."""

    test: NonEmpty
    clause: ClauseId
    outcome: Outcome
    signature: str = ""
    message: str = ""
    checks: tuple[CheckResult, ...] = ()
    reason: str = ""
    link: str = ""
    setup_hash: str = ""
    seed: Seed | None = None
    repro: str = ""
    duration_s: Seconds = 0.0
    leaks: tuple[str, ...] = ()
    finding: str = ""
    inferred_from: str = ""
    repeats: tuple[str, ...] = ()
    runs: tuple[RunSetup, ...] = ()

    @property
    def case(self) -> str:
        """The test's name with its parameters, without the clause."""
        return self.test.partition("/")[2]


EXPLANATIONS = frozenset({"reason", "instead"})
"""Keys of texts about what was observed, such as a workaround's description, whose wording is not compared."""


@dataclass(frozen=True)
class _OfClause:
    clause: ClauseId
    key: NonEmpty
    case: str

    @property
    def place(self) -> tuple[str, str, str]:
        """The key of this part in its record."""
        return self.clause, self.key, self.case


@dataclass(frozen=True)
class _OfRun:
    key: NonEmpty
    case: str

    @property
    def place(self) -> tuple[str, str]:
        """The key of this part in its record."""
        return self.key, self.case


@dataclass(frozen=True)
class Observation(_OfClause):
    """An observed legitimate choice; one for each clause, key and case."""

    value: Json

    def __post_init__(self) -> None:
        object.__setattr__(self, "value", decode(self.value))


@dataclass(frozen=True)
class Measurement(_OfClause):
    """Raw samples of one cost, in `unit`; one a clause, key and case.

    Attributes:
        control: what the samples are compared with, in the same unit: sample i was taken in the same process right next
            to `samples[i]`, of work of the same framework that does without what is measured. Empty for a cost that is
            counted; costs that vary are judged against it, inside the process (see `results.compare.numbers`).
    """

    unit: str
    samples: tuple[Number, ...]
    control: tuple[Number, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "samples", numbers(self.samples))
        object.__setattr__(self, "control", numbers(self.control))


Curves = Mapping[str, tuple[Number, ...]]
"""Series of one run by name, one number a step: "loss", "scale", ..."""


@dataclass(frozen=True)
class Trace(_OfRun):
    """The course of one run; one a key and case, such as "loss" and a test's."""

    curves: Curves

    def __post_init__(self) -> None:
        object.__setattr__(self, "curves", {name: numbers(points) for name, points in self.curves.items()})


Size = Annotated[int, Meta(ge=0, le=2**63 - 1)]


@dataclass(frozen=True)
class Fingerprint:
    """An array bit for bit, without all of its values.

    Attributes:
        name: "output/PATH" or "gradient/PATH" of a layer, or "parameter/NAME" for a parameter's gradient.
        format: "float32", "bfloat16", ...
        digest: first 16 hexadecimal digits of the SHA-256 of format, shape and bytes (C order, little-endian).
        norm: 2-norm, in float64.
        sample: bytes in base64 of `SAMPLE` values at evenly spread places, of all where there are no more.
    """

    name: NonEmpty
    format: str
    shape: tuple[Size, ...]
    digest: Annotated[str, Meta(pattern=f"^[0-9a-f]{{16}}{END}")]
    norm: Number
    sample: Annotated[str, Meta(pattern=f"^[A-Za-z0-9+/]*={{0,2}}{END}")]

    def __post_init__(self) -> None:
        if isinstance(self.norm, str):
            object.__setattr__(self, "norm", number(self.norm))


@dataclass(frozen=True)
class Tensors(_OfRun):
    """Fingerprints of arrays of one run in the order of the computation; one a key and case.

    Attributes:
        key: "first" for the parameters' gradients of the first window, "layers" for outputs and gradients of every
            layer too.
    """

    arrays: tuple[Fingerprint, ...]


PARTS = ("observations", "measurements", "traces", "tensors")
"""Fields of a record, and of a test's part of it, that have a place."""


@dataclass(frozen=True)
class JudgedTest:
    """The parts of a record from one test."""

    verdict: TestVerdict
    observations: tuple[Observation, ...] = ()
    measurements: tuple[Measurement, ...] = ()
    traces: tuple[Trace, ...] = ()
    tensors: tuple[Tensors, ...] = ()


@dataclass(frozen=True)
class Header:
    """The part of a record that is known when a run starts.

    Attributes:
        started: `journal.now()`.
        selection: arguments that selected tests, "" for all.
        clauses: texts by id; a record keeps those that it judges.
        findings: texts by id; a record keeps those that a verdict rests on.
    """

    suite: Suite
    series: Series
    variant: Variant
    started: Date
    seed: Seed
    selection: str
    clauses: Mapping[ClauseId, ClauseText]
    findings: Mapping[FindingId, FindingText] = field(default_factory=dict, kw_only=True)


@dataclass(frozen=True)
class Record(Header):
    """One run: its header and its results.

    Attributes:
        verdicts: sorted by test, one for each test.
        observations, measurements, traces, tensors: sorted by place, one a place.
        notes: what a reader should know about the record itself, such as damaged journal lines that were left out.
    """

    finished: Date
    duration_s: Seconds
    status: Status
    verdicts: tuple[TestVerdict, ...] = ()
    observations: tuple[Observation, ...] = ()
    measurements: tuple[Measurement, ...] = ()
    traces: tuple[Trace, ...] = ()
    tensors: tuple[Tensors, ...] = ()
    notes: tuple[str, ...] = ()

    def with_parts(self, change: Callable[[tuple[Any, ...]], tuple[Any, ...]]) -> Self:
        """This record with its observations, measurements, traces and tensors changed."""
        changed: dict[str, Any] = {name: change(getattr(self, name)) for name in PARTS}
        return replace(self, **changed)

    def only(self, tests: Collection[str]) -> Self:
        """This record with the parts of some tests, which are named as CLAUSE/CASE."""
        cases = {test.partition("/")[2] for test in tests}
        chosen = self.with_parts(lambda parts: tuple(part for part in parts if part.case in cases))
        return replace(chosen, verdicts=tuple(verdict for verdict in self.verdicts if verdict.test in tests))

    def sort_parts(self) -> Self:
        """This record with its parts in order, and only the clauses and findings that they name."""
        judged = {verdict.clause for verdict in self.verdicts} | {one.clause for one in self.observations}
        judged |= {one.clause for one in self.measurements}
        causes = {verdict.finding for verdict in self.verdicts}
        return replace(
            self.with_parts(lambda parts: tuple(sorted(parts, key=lambda part: part.place))),
            verdicts=tuple(sorted(self.verdicts, key=lambda verdict: verdict.test)),
            clauses={name: text for name, text in self.clauses.items() if name in judged},
            findings={name: text for name, text in self.findings.items() if name in causes},
        )


_Part = TypeVar("_Part", Observation, Measurement, Trace, Tensors)


def by_place(parts: Iterable[_Part]) -> dict[tuple[str, ...], _Part]:
    """Parts of a record by their keys: clause, key and case, or key and case."""
    return {part.place: part for part in parts}
