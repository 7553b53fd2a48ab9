"""The parts of a record, the outcomes of a test, and plain JSON values. `results.record.reading` has the JSON form.

JSON has no infinity and no NaN. Wherever a record has a value (a check's `measured`, `bound`, `expected` and
`derivation`, a recipe's field, an observation, a sample, a point of a curve, a norm) the strings "inf", "-inf" and
"nan" stand for those numbers.
"""

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NoReturn, Self, SupportsFloat, TypeAlias, TypeVar

import msgspec
from msgspec import Meta

if TYPE_CHECKING:
    Json: TypeAlias = "bool | int | float | str | Sequence[Json] | Mapping[str, Json] | None"
    """A JSON value; floats may be infinite or NaN, sequences may be tuples."""

    Number: TypeAlias = float
    """A number, which may be infinite or NaN."""
else:  # what a document has there
    Json = Any
    Number = float | Literal["inf", "-inf", "nan"]


MAX_DEPTH = 64
"""Deepest nesting of a document that is written."""

MAX_VALUE_DEPTH = MAX_DEPTH - 8
"""Deepest nesting of a value that is read, so that the record around it can be written again."""

MAX_BITS = 1023
"""Longest integer of a value: any of them fits a float's range."""

_NONFINITE = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}
_AS_THEY_ARE = frozenset({float, bool, type(None)})
_LONGEST_NUMBER = 40


def encode_number(value: float) -> int | float | str:
    """The number itself if it is finite, else "inf", "-inf" or "nan"."""
    if isinstance(value, int) or math.isfinite(value):
        return value
    return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"


def numbers(points: Sequence[Number]) -> tuple[float, ...]:
    """Return the points of a document with "inf", "-inf" and "nan" turned back into numbers."""
    if str in map(type, points):
        return tuple(_NONFINITE[point] if isinstance(point, str) else point for point in points)
    return tuple(points)


def number(point: Number) -> float:
    """Return one point of a document as a number."""
    return _NONFINITE[point] if isinstance(point, str) else point


def decode(value: Any, depth: int = 0) -> Any:
    """Return a document's value with "inf", "-inf" and "nan" turned back into numbers.

    Raises:
        ValueError: it nests too deeply, or an integer is out of range.
    """
    if depth > MAX_VALUE_DEPTH:
        raise ValueError(f"nested more than {MAX_VALUE_DEPTH} deep")
    kind = type(value)
    if kind is str:
        return _NONFINITE.get(value, value)
    if kind is int:
        if value.bit_length() > MAX_BITS:
            raise ValueError("a number is out of range")
    elif kind is list or kind is tuple:
        return kind([item if type(item) in _AS_THEY_ARE else decode(item, depth + 1) for item in value])
    elif kind is dict:
        return {key: item if type(item) in _AS_THEY_ARE else decode(item, depth + 1) for key, item in value.items()}
    return value


def as_number(text: str) -> int | float | str:
    """Return the number of which `text` is the Python literal, else the text."""
    if len(text) <= _LONGEST_NUMBER:
        for kind in (int, float):
            try:
                value = kind(text)
            except ValueError:
                continue
            if repr(value) == text:
                return value
    return text


def plain(value: object, depth: int = 0) -> Any:
    """`value` as dicts, lists and scalars that JSON can hold; dataclasses become objects, arrays and scalars of array
    libraries (whatever has `tolist`) lists and numbers, and lone surrogates in text question marks.

    Raises:
        TypeError: something in it has no JSON form, or a key is no string.
        ValueError: it is nested too deeply, or an integer is out of range.
    """
    if depth > MAX_DEPTH:
        raise ValueError(f"nested more than {MAX_DEPTH} deep")
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str(value) if value.isascii() else str(value).encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, int):
        if value.bit_length() > MAX_BITS:
            raise ValueError("a number is out of range")
        return int(value)
    if isinstance(value, float):
        return encode_number(float(value))
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name), depth + 1) for field in fields(value)}
    if isinstance(value, Mapping):
        return {_key(key): plain(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item, depth + 1) for item in value]
    if hasattr(value, "tolist"):
        listed = value.tolist()
        if type(listed) is not type(value):
            return plain(listed, depth + 1)
    if isinstance(value, SupportsFloat):
        return encode_number(float(value))
    raise TypeError(f"a {type(value).__name__} has no JSON form: {str(value)[:80]}")


def _key(key: object) -> str:
    if not isinstance(key, str):
        raise TypeError(f"a key of a JSON object is a string, not {key!r}")
    return str(plain(key))


def same(a: Json, b: Json) -> bool:
    """Return whether two values are equal; NaN equals NaN, an int the float of its value, and neither equals a bool."""
    if isinstance(a, bool) or isinstance(b, bool):
        return a is b
    if isinstance(a, int | float) and isinstance(b, int | float):
        return a == b or (a != a and b != b)
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, str) or isinstance(b, str) or a is None or b is None:
        return a == b
    if isinstance(a, Sequence) and isinstance(b, Sequence):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    return False


def walk_values(
    value: Json, deepest: float = math.inf, way: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], Json]]:
    """Yield the values inside nested objects with their key paths; a value `deepest` keys down is not divided."""
    if isinstance(value, Mapping) and value and len(way) < deepest:
        for key, item in value.items():
            yield from walk_values(item, deepest, (*way, key))
    else:
        yield way, value


def to_text(document: object) -> str:
    """A document that `plain` gave as byte-stable text: sorted keys, one space of indent, a newline at the end."""
    return msgspec.json.format(to_line(document), indent=1) + "\n"


def to_line(document: object) -> str:
    """A document that `plain` gave in one line, with sorted keys and without a newline."""
    return msgspec.json.encode(document, order="sorted").decode("utf-8")


def parse(content: bytes, kind: Any = Any) -> Any:
    """The JSON document in `content`, as an instance of `kind`.

    Raises:
        ValueError: not UTF-8, not JSON, nested too deeply, or no such instance; in one line.
    """
    try:
        return msgspec.json.decode(content, type=kind)
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 at byte {error.start}") from None
    except RecursionError:
        raise ValueError("nested too deeply") from None
    except msgspec.MsgspecError as error:
        raise ValueError(str(error)) from None


END = r"(?!\n)$"
"""The end of a pattern, in Python and in JSON Schema: `$` alone is before a trailing newline too in Python."""

_LONGEST = 200

ClauseId = Annotated[str, Meta(pattern=rf"^[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)+{END}", max_length=_LONGEST)]
"""Id of a clause, such as "scaling.stays-finite"."""

FindingId = Annotated[str, Meta(pattern=f"^[a-z0-9]+(-[a-z0-9]+)*{END}", max_length=_LONGEST)]
"""Id of a finding, a slug."""

Revision = Annotated[int, Meta(ge=1, le=2**31)]

NonEmpty = Annotated[str, Meta(min_length=1)]
"""Any text but the empty one."""


@dataclass(frozen=True)
class ClauseText:
    """A clause as it was when it was judged.

    Attributes:
        revision: of its meaning; verdicts of different revisions are not comparable.
    """

    level: str
    requirement: str
    source: str
    history: tuple[str, ...]
    family: NonEmpty
    revision: Revision = 1


class FindingKind(StrEnum):
    """Class of a known failure.

    DEFECT: it contradicts the framework's documentation, or mathematics. DOCUMENTED: the framework says so, or it is by
    design. NUMERICS: the last bits of a compiler or kernel. LIMITATION: the framework refuses clearly.
    """

    DEFECT = "defect"
    DOCUMENTED = "documented"
    NUMERICS = "numerics"
    LIMITATION = "limitation"


class Consequence(StrEnum):
    """Consequence of a known failure for a user, the worst first.

    SILENT_CORRUPTION: parameters, gradients or results are wrong, and no more than a warning says so. SILENT_LOSS:
    state or data is dropped, and no more than a warning says so. LEAKED_SETTING: a process-wide setting stays changed.
    ERROR: a call raises or dies that should work. COST: more memory or time. LAST_BITS: results differ in their
    rounding.
    """

    SILENT_CORRUPTION = "silent-corruption"
    SILENT_LOSS = "silent-loss"
    LEAKED_SETTING = "leaked-setting"
    ERROR = "error"
    COST = "cost"
    LAST_BITS = "last-bits"

    @property
    def rank(self) -> int:
        """0 for the worst."""
        return list(Consequence).index(self)


@dataclass(frozen=True)
class FindingText:
    """One cause of known failures, as it was when they were judged.

    Attributes:
        reason: cause and effect, in one sentence.
        link: where it is reported, documented or was introduced, or "none found".
        link_shows: what is to be read there, in a few words; empty without a link.
    """

    kind: FindingKind
    consequence: Consequence
    reason: str
    link: str
    link_shows: str


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
            counted; costs that vary are judged against it, inside the process (see `results.compare.ratio`).
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
