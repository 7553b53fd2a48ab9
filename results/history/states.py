"""What a history keeps of a record: one short state for each test, so that hundreds of records fit in memory.

`pass`, `fail` and `unsupported` are statements about the framework. `abstain`, `unstable` and `not offered` are none: a
test in one of these states is left out of every comparison.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from results.compare.comparability import PASS_OUTCOMES
from results.compare.environment import labelled, public
from results.record.outcomes import Outcome
from results.record.reading import Record, RunSetup, TestVerdict
from results.record.values import plain, to_line
from results.show.clauses import FAILURE_OUTCOMES

CaseWord = Literal["pass", "fail", "unsupported", "abstain", "unstable", "not offered"]

GRAVITY: tuple[CaseWord, ...] = ("fail", "pass", "unsupported", "unstable", "abstain", "not offered")
"""The words of a clause, by which of its tests' words counts."""

STATEMENTS: frozenset[CaseWord] = frozenset({"pass", "fail", "unsupported"})
"""Words that say something about the framework."""

_TOKEN = re.compile(r"\w+")


@dataclass(frozen=True, slots=True)
class CaseState:
    """The result of one test.

    Attributes:
        identity: revision of its clause and hash of its setup; tests of different identities are not comparable.
        first, runs: digests of its first training run and of all of them, "" where the record has none.
        signature, finding, link: of a failure.
        reason: words of the reason of a refusal or a known failure.
    """

    word: CaseWord
    identity: tuple[int, str]
    first: str = ""
    runs: str = ""
    signature: str = ""
    finding: str = ""
    link: str = ""
    reason: frozenset[str] = frozenset()
    passed: bool = False


@dataclass(frozen=True, slots=True)
class ClauseFacts:
    """The text of a clause."""

    level: str
    requirement: str
    family: str


@dataclass(frozen=True)
class JudgedVersion:
    """One record, condensed.

    Attributes:
        platform: architecture, operating system and device kind.
        version: the framework's, without its local label.
        labels: versions of the companions that the framework's version names, by name.
        tells_runs: whether the record says what its tests trained.
        cases: state of each test, by clause and test.
        findings: the reason and the link of each finding that a failure rests on.
    """

    framework: str
    mode: str
    device: str
    platform: str
    seed: int
    version: str
    labels: Mapping[str, str]
    python: str
    started: str
    status: str
    instruction_sets: frozenset[str]
    tells_runs: bool
    cases: Mapping[str, Mapping[str, CaseState]]
    clauses: Mapping[str, ClauseFacts]
    findings: Mapping[str, tuple[str, str]]


class Condenser:
    """Condenses records, with one object for equal parts of them."""

    def __init__(self) -> None:
        self._states: dict[CaseState, CaseState] = {}
        self._facts: dict[ClauseFacts, ClauseFacts] = {}
        self._texts: dict[str, str] = {}

    def __call__(self, record: Record) -> JudgedVersion:
        """The condensed form of a record."""
        cases: dict[str, dict[str, CaseState]] = {}
        for verdict in record.verdicts:
            state = self._state(verdict, record.clauses[verdict.clause].revision)
            cases.setdefault(self._text(verdict.clause), {})[self._text(verdict.test)] = state
        facts = {name: ClauseFacts(text.level, text.requirement, text.family) for name, text in record.clauses.items()}
        environment = record.variant.environment
        return JudgedVersion(
            framework=record.series.framework,
            mode=record.series.mode,
            device=record.series.device,
            platform=platform(record),
            seed=record.seed,
            version=public(record),
            labels=labelled(record),
            python=".".join(environment.get("python", "").split(".")[:2]),
            started=record.started,
            status=record.status,
            instruction_sets=frozenset(record.variant.instruction_sets),
            tells_runs=bool(record.suite.areas) or any(verdict.runs for verdict in record.verdicts),
            cases=cases,
            clauses={self._text(name): self._facts.setdefault(fact, fact) for name, fact in facts.items()},
            findings={name: (text.reason, text.link) for name, text in record.findings.items()},
        )

    def _state(self, verdict: TestVerdict, revision: int) -> CaseState:
        failed = verdict.outcome in FAILURE_OUTCOMES
        excused = verdict.outcome in (Outcome.UNSUPPORTED, Outcome.KNOWN)
        state = CaseState(
            word=word(verdict.outcome),
            identity=(revision, verdict.setup_hash),
            first=self._digest(verdict.runs[:1]),
            runs=self._digest(verdict.runs),
            signature=self._text(verdict.signature) if failed else "",
            finding=self._text(verdict.finding) if failed else "",
            link=self._text(verdict.link) if failed else "",
            reason=frozenset(_TOKEN.findall(verdict.reason)) if excused else frozenset(),
            passed=verdict.outcome in PASS_OUTCOMES,
        )
        return self._states.setdefault(state, state)

    def _text(self, text: str) -> str:
        return self._texts.setdefault(text, text)

    def _digest(self, runs: tuple[RunSetup, ...]) -> str:
        if not runs:
            return ""
        return self._text(hashlib.sha256(to_line(plain(_canonical(runs))).encode("utf-8")).hexdigest()[:16])


def _canonical(value: object) -> object:
    """The value with integers as floats of the same value, which compare equal."""
    if isinstance(value, RunSetup):
        return {"fixture": value.fixture, "recipe": _canonical(value.recipe)}
    if isinstance(value, Mapping):
        return {key: _canonical(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_canonical(item) for item in value]
    if isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    return value


def word(outcome: Outcome) -> CaseWord:
    """The word of an outcome; a failure is one whether or not it was expected."""
    if outcome in PASS_OUTCOMES:
        return "pass"
    if outcome in FAILURE_OUTCOMES:
        return "fail"
    return outcome.value  # type: ignore[return-value]


def gravest(words: Iterable[CaseWord]) -> CaseWord:
    """The word of a clause by those of its tests.

    A failure counts first. A clause passes if a test passed and none failed, whatever abstained or was refused.

    Raises:
        ValueError: there is none.
    """
    return min(words, key=GRAVITY.index)


def platform(record: Record) -> str:
    """Architecture, operating system and device kind of a record's machine, such as "x86_64 linux cpu"."""
    environment = record.variant.environment
    library = environment.get("libc", "").lower()
    system = "linux" if "libc" in library or "musl" in library else library.partition(" ")[0]
    kind = record.series.device_kind or record.series.device
    return " ".join(filter(None, (environment.get("machine", ""), system, kind)))


def comparable(old: CaseState, new: CaseState, tell_runs: bool) -> bool:
    """Whether two states of one test are of the same question; see `results.compare.comparability`.

    Args:
        tell_runs: whether both records say what their tests trained.
    """
    if old.word not in STATEMENTS or new.word not in STATEMENTS or 0 in (old.identity[0], new.identity[0]):
        return False
    if old.identity != new.identity:
        return False
    if not tell_runs or "unsupported" in (old.word, new.word):
        return True
    if old.passed and new.passed:
        return old.runs == new.runs
    return not (old.first and new.first) or old.first == new.first
