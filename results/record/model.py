"""The parts of a record, and its JSON form: `to_document`, `from_document`, `validate`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cache
from importlib.resources import files
from itertools import pairwise
from typing import Any, ClassVar, Literal

import jsonschema

from results.record.fingerprints import Fingerprint
from results.record.outcomes import Outcome
from results.record.values import Json, check, decode, decode_number, plain

SCHEMA_VERSION = 1

Status = Literal["complete", "partial", "interrupted"]
"""Whether every test of the suites was judged; `partial`: all that were collected, of some only."""

Part = Literal["verdict", "measurement", "trace", "tensors"]


@dataclass(frozen=True)
class Suite:
    """The suite that wrote a record; its clauses by whether a test names them."""

    version: str
    clauses_with_tests: tuple[str, ...] = ()
    clauses_without_tests: tuple[str, ...] = ()


@dataclass(frozen=True)
class Series:
    """What makes two records comparable: `device` as asked for ("cuda"), `device_kind` the model that it was."""

    framework: str
    device: str
    device_kind: str
    mode: str


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
class ClauseText:
    """A clause as it read when it was judged."""

    level: str
    requirement: str
    source: str
    history: tuple[str, ...]
    family: str


class FindingKind(StrEnum):
    """What a known failure is.

    DEFECT: it contradicts the framework's documentation, or mathematics. DOCUMENTED: the framework says so, or it is by
    design. NUMERICS: the last bits of a compiler or kernel. LIMITATION: the framework refuses clearly.
    """

    DEFECT = "defect"
    DOCUMENTED = "documented"
    NUMERICS = "numerics"
    LIMITATION = "limitation"


class Consequence(StrEnum):
    """What a known failure does to its user, the worst first.

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
    """One cause of known failures, as it read when they were judged.

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


@dataclass(frozen=True)
class CheckResult:
    """One comparison of a test: what was measured, what it was held against and how that was derived."""

    what: str
    measured: Json
    bound: Json
    expected: Json
    passed: bool
    derivation: Mapping[str, Json] = field(default_factory=dict)


@dataclass(frozen=True)
class TestVerdict:
    """What one test came to.

    Attributes:
        test: node id. case: its parameters' id, or "".
        signature: short name of the way it failed, or "".
        reason, link: why a failure is known or a capability unsupported, or "".
        finding: id of the finding that a known failure rests on, or "".
        code_hash: hash of the test's code; tests with different hashes are not comparable.
        repro: command that repeats the test.
        leaks: global settings that the test left changed.
        inferred_from: the judged version whose expectation was taken, where nobody has judged this one yet, or "".
        repeats: what each repeat in a new process came to, of a verdict that was new: an outcome, and in parentheses
            its signature if it has one.
    """

    __test__: ClassVar[bool] = False
    """Keeps pytest from collecting it where a test module imports it."""

    test: str
    clause: str
    outcome: Outcome
    case: str = ""
    signature: str = ""
    message: str = ""
    checks: tuple[CheckResult, ...] = ()
    reason: str = ""
    link: str = ""
    code_hash: str = ""
    seed: int | None = None
    repro: str = ""
    duration_s: float = 0.0
    leaks: tuple[str, ...] = ()
    finding: str = ""
    inferred_from: str = ""
    repeats: tuple[str, ...] = ()


@dataclass(frozen=True)
class Measurement:
    """Raw samples of one cost, in `unit`.

    Attributes:
        control: what the samples are held against, in the same unit: sample i was taken in the same process right next
            to `samples[i]`, of work of the same framework that does without what is measured. Empty for a cost that is
            counted; costs that vary are judged against it, inside the process (see `results.compare.ratio`).
    """

    unit: str
    samples: tuple[float, ...]
    clause: str
    control: tuple[float, ...] = ()


Trace = Mapping[str, tuple[float, ...]]
"""Series of one run, one number a step: "loss", "scale", ..."""


@dataclass(frozen=True)
class Header:
    """What is known when a run starts.

    Attributes:
        started: ISO 8601 date and time with its offset from UTC (`journal.now()`).
        selection: arguments that selected tests, "" for all.
        clauses: texts by id; a record keeps those that it judges.
        findings: texts by id; a record keeps those that a verdict rests on.
    """

    suite: Suite
    series: Series
    variant: Variant
    started: str
    seed: int
    selection: str
    clauses: Mapping[str, ClauseText]
    findings: Mapping[str, FindingText] = field(default_factory=dict, kw_only=True)


@dataclass(frozen=True)
class Record(Header):
    """One run: its header and what was seen.

    Attributes:
        verdicts: sorted by test, one a test.
        observations: legitimate differences by "CLAUSE/KEY".
        tensors: fingerprints by "KIND/CASE" in the order of the computation: "first/CASE" are the parameters' gradients
            of a run's first window, "layers/CASE" outputs and gradients of every layer too.
        notes: what a reader should know about the record itself, such as damaged journal lines that were left out.
    """

    finished: str
    duration_s: float
    status: Status
    verdicts: tuple[TestVerdict, ...] = ()
    observations: Mapping[str, Json] = field(default_factory=dict)
    measurements: Mapping[str, Measurement] = field(default_factory=dict)
    traces: Mapping[str, Trace] = field(default_factory=dict)
    tensors: Mapping[str, tuple[Fingerprint, ...]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def sorted(self) -> Record:
        """This record with its verdicts in order, and only the clauses and findings that they name."""
        judged = {v.clause for v in self.verdicts} | {m.clause for m in self.measurements.values()}
        judged |= {key.split("/", 1)[0] for key in self.observations}
        rested = {verdict.finding for verdict in self.verdicts}
        return replace(
            self,
            verdicts=tuple(sorted(self.verdicts, key=lambda verdict: verdict.test)),
            clauses={name: text for name, text in self.clauses.items() if name in judged},
            findings={name: text for name, text in self.findings.items() if name in rested},
        )


def to_document(record: Record) -> dict[str, Any]:
    """The JSON document of a record."""
    return {"schema_version": SCHEMA_VERSION, **plain(record.sorted())}


@cache
def schema() -> dict[str, Any]:
    """The published JSON Schema (draft 2020-12) of a record."""
    found: dict[str, Any] = json.loads(files("results").joinpath("schema.json").read_text("utf-8"))
    return found


@cache
def _validator(part: Part | None = None) -> jsonschema.Draft202012Validator:
    whole = schema()
    return jsonschema.Draft202012Validator(
        whole if part is None else {"$ref": f"#/$defs/{part}", "$defs": whole["$defs"]}
    )


def _conform(document: object, part: Part | None) -> None:
    error = next(_validator(part).iter_errors(document), None)
    if error is not None:
        raise ValueError(f"{error.json_path[:120]}: {error.message[:200]}")


def plain_part(part: Part, value: object) -> Any:
    """The JSON form of one part of a record.

    Raises:
        ValueError: the schema refuses it.
        TypeError: something in it has no JSON form.
    """
    document = plain(value)
    _conform(document, part)
    return document


class VersionError(ValueError):
    """A record of another version of the schema; `remedy` says what to do with it."""

    def __init__(self, version: object) -> None:
        super().__init__(f"schema_version is {str(version)[:40]!r} where this suite reads {SCHEMA_VERSION}")
        anew = "run the suite again to write it anew, or remove it"
        newer = isinstance(version, int) and version > SCHEMA_VERSION
        self.remedy = f"a newer suite wrote it: update this one, {anew}" if newer else anew


def validate(document: object) -> None:
    """Refuses what is no record of this version.

    Raises:
        VersionError: it is of another version.
        ValueError: where and why, in one sentence.
    """
    if not isinstance(document, dict) or "schema_version" not in document:
        raise ValueError("not a record: it has no schema_version")
    version = document["schema_version"]
    if version != SCHEMA_VERSION or isinstance(version, bool):
        raise VersionError(version)
    _conform(document, None)
    tests = [verdict["test"] for verdict in document["verdicts"]]
    for before, after in pairwise(tests):
        if before >= after:
            raise ValueError(f"$.verdicts: {after[:120]!r} stands twice or out of order")
    for name, clause in _named(document):
        if clause not in document["clauses"]:
            raise ValueError(f"{name} names clause {clause[:80]!r}, whose text is missing")
    for verdict in document["verdicts"]:
        if (finding := verdict.get("finding")) and finding not in document.get("findings", {}):
            raise ValueError(f"a verdict names finding {finding[:80]!r}, whose text is missing")


def _named(document: dict[str, Any]) -> list[tuple[str, str]]:
    named = [("a verdict", verdict["clause"]) for verdict in document["verdicts"]]
    named += [("a measurement", measurement["clause"]) for measurement in document["measurements"].values()]
    return named + [("an observation", key.split("/", 1)[0]) for key in document["observations"]]


def from_document(document: Any) -> Record:
    """The record of a document.

    Raises:
        ValueError: `validate` refuses it.
    """
    validate(document)
    suite, variant = document["suite"], document["variant"]
    return Record(
        suite=Suite(suite["version"], tuple(suite["clauses_with_tests"]), tuple(suite["clauses_without_tests"])),
        series=Series(**document["series"]),
        variant=Variant(**{**variant, "instruction_sets": tuple(variant.get("instruction_sets", ()))}),
        started=document["started"],
        seed=_seed(document["seed"]),
        selection=document["selection"],
        clauses={
            name: ClauseText(**{**text, "history": tuple(text["history"])})
            for name, text in document["clauses"].items()
        },
        findings={name: _finding(text) for name, text in document.get("findings", {}).items()},
        finished=document["finished"],
        duration_s=float(document["duration_s"]),
        status=document["status"],
        verdicts=tuple(_verdict(verdict) for verdict in document["verdicts"]),
        observations=decode(document["observations"]),
        measurements={
            name: Measurement(m["unit"], _numbers(m["samples"]), m["clause"], _numbers(m.get("control", [])))
            for name, m in document["measurements"].items()
        },
        traces={
            name: {series: _numbers(points) for series, points in trace.items()}
            for name, trace in document["traces"].items()
        },
        tensors={name: tuple(map(_fingerprint, each)) for name, each in document.get("tensors", {}).items()},
        notes=tuple(document["notes"]),
    )


def _verdict(document: dict[str, Any]) -> TestVerdict:
    changes = {
        "outcome": Outcome(document["outcome"]),
        "checks": tuple(_check(check) for check in document["checks"]),
        "seed": None if document["seed"] is None else _seed(document["seed"]),
        "duration_s": float(document["duration_s"]),
        "leaks": tuple(document["leaks"]),
        "repeats": tuple(document.get("repeats", ())),
    }
    return TestVerdict(**{**document, **changes})


def _fingerprint(document: dict[str, Any]) -> Fingerprint:
    changes = {"shape": tuple(int(size) for size in document["shape"]), "norm": float(decode_number(document["norm"]))}
    return Fingerprint(**{**document, **changes})


def _finding(document: dict[str, Any]) -> FindingText:
    kinds = {"kind": FindingKind(document["kind"]), "consequence": Consequence(document["consequence"])}
    return FindingText(**{**document, **kinds})


def _seed(number: float) -> int:
    check(int(number))
    return int(number)


def _check(document: dict[str, Any]) -> CheckResult:
    values = {name: decode(document[name]) for name in ("measured", "bound", "expected", "derivation")}
    return CheckResult(what=document["what"], passed=document["passed"], **values)


def _numbers(points: list[Any]) -> tuple[float, ...]:
    return tuple(float(decode_number(point)) for point in points)
