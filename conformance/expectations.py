"""Known failures as data: which clause, in which framework, in which versions, how it fails, and what finding that is.

`expectations.toml` in an adapter's package holds its findings, the expectations that rest on them, and its workarounds.
An entry never skips a test: the test runs, and an entry whose case passes, fails in another way or was not there at all
is an error until the entry is changed or taken out.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from importlib.resources import files
from importlib.resources.abc import Traversable
from importlib.util import find_spec
from pathlib import Path

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from conformance.clauses import load_clauses
from conformance.findings import FINDING, WORKAROUND, Finding, Workaround, found, read_finding, read_workaround
from conformance.tables import Kind, Table, read_tables
from frameworks.contract import Framework
from frameworks.registry import BUILT_IN

FILE = "expectations.toml"
"""What an adapter's package calls its own, beside the module that its class is in."""

_EXPECTATION = Kind(
    "clause", frozenset({"finding", "clause", "versions", "device", "mode", "cases", "signature", "spoils_process"})
)
_SIGNATURE = re.compile(r"[A-Za-z0-9._-]+")


@dataclass(frozen=True)
class Expectation:
    """One known failure.

    Attributes:
        clause: id of the clause that does not hold.
        framework: name of the adapter.
        versions: PEP 440 specifiers of the framework's versions, such as ">=2.4,<3.4".
        device, mode: a name, or "*" for every one.
        cases: exact ids of the cases that fail; empty if every case of the clause does.
        signature: the slug under which the suite reports the failure.
        finding: what goes wrong, and where it is to be read of.
        spoils_process: whether the failure changes what later tests of the same process find; such cases run last.
        file: where the entry stands.
    """

    clause: str
    framework: str
    versions: str
    device: str
    mode: str
    cases: tuple[str, ...]
    signature: str
    finding: Finding
    spoils_process: bool = False
    file: str = field(default="", compare=False)

    @property
    def reason(self) -> str:
        """What goes wrong, in one sentence."""
        return self.finding.text.reason

    @property
    def link(self) -> str:
        """Where it is to be read of, or "none found"."""
        return self.finding.text.link

    def applies(self, framework: str, version: str, device: str, mode: str) -> bool:
        """Whether a run of this framework, at this version, on this device, in this mode, is meant.

        A local label ("2.13.0+cpu") is overlooked unless the specifier has one; pre-releases count.

        Raises:
            ValueError: `version` is not a PEP 440 version.
        """
        if framework != self.framework or self.device not in ("*", device) or self.mode not in ("*", mode):
            return False
        try:
            asked = Version(version)
        except InvalidVersion:
            raise ValueError(f"{framework} calls its version {version!r}, which PEP 440 cannot compare") from None
        return SpecifierSet(self.versions).contains(asked, prereleases=True)

    def covers(self, clause: str, case: str) -> bool:
        """Whether this case of this clause is meant; a test without parameters has the case ""."""
        return clause == self.clause and (not self.cases or case in self.cases)


@dataclass(frozen=True)
class Known:
    """What is known of one or several adapters."""

    findings: tuple[Finding, ...] = ()
    expectations: tuple[Expectation, ...] = ()
    workarounds: tuple[Workaround, ...] = ()

    def expected(self, finding: Finding, version: str) -> bool:
        """Whether some failure at this version of the framework rests on the finding."""
        meant = (SpecifierSet(entry.versions) for entry in self.expectations if entry.finding == finding)
        return any(versions.contains(version, prereleases=True) for versions in meant)

    def __add__(self, other: Known) -> Known:
        return Known(
            self.findings + other.findings,
            self.expectations + other.expectations,
            self.workarounds + other.workarounds,
        )


def known_of(framework: Framework) -> Known:
    """What applies to a run of this framework, of the adapter of its name and of the package that its class is in.

    Raises:
        ValueError: an entry cannot be read, or the framework's version is not one of PEP 440.
    """
    package = getattr(sys.modules[type(framework).__module__], "__package__", "")
    folders = {str(folder): folder for folder in (*_built_in(framework.name), *([files(package)] if package else []))}
    known = sum((read_known(folder, framework.name) for folder in folders.values()), Known())
    here = framework.name, framework.version(), framework.device, framework.mode
    return replace(
        known,
        expectations=tuple(entry for entry in known.expectations if entry.applies(*here)),
        workarounds=tuple(entry for entry in known.workarounds if entry.mode in ("*", framework.mode)),
    )


def load_known(names: Iterable[str] = tuple(BUILT_IN)) -> Known:
    """What is known of built-in adapters, without importing their frameworks.

    Raises:
        ValueError: as `read_known`.
    """
    return sum((read_known(folder, name) for name in names for folder in _built_in(name)), Known())


def _built_in(name: str) -> Iterator[Path]:
    if name in BUILT_IN:
        spec = find_spec(BUILT_IN[name].partition(":")[0])
        if spec is not None and spec.origin is not None:
            yield Path(spec.origin).parent


def read_known(folder: Traversable, framework: str, clauses: Collection[str] | None = None) -> Known:
    """What `expectations.toml` in a folder says, nothing without one; `clauses` are the ids that exist.

    Raises:
        ValueError: an entry is none; the message is one line that names the file and the entry.
    """
    source, name = folder.joinpath(FILE), f"{folder.name}/{FILE}"
    if not source.is_file():
        return Known()
    try:
        tables = read_tables(source, {"finding": FINDING, "expectation": _EXPECTATION, "workaround": WORKAROUND})
        findings = _by_id(tables["finding"], framework, folder)
        expectations = _expectations(tables["expectation"], name, framework, findings, clauses)
        workarounds = tuple(read_workaround(table, findings, folder) for table in tables["workaround"])
        used = {entry.finding.id for entry in expectations} | {entry.finding.id for entry in workarounds}
        if idle := sorted(findings.keys() - used):
            raise ValueError(f"{FILE}: no expectation and no workaround rests on the finding {idle[0]!r}")
    except ValueError as error:
        raise ValueError(f"{folder.name}/{error}") from None
    return Known(tuple(findings.values()), expectations, workarounds)


def _by_id(tables: Iterable[Table], framework: str, folder: Traversable) -> dict[str, Finding]:
    findings: dict[str, Finding] = {}
    for table in tables:
        finding = read_finding(table, framework, folder)
        if finding.id in findings:
            raise ValueError(f"{table.where}: this id stands twice")
        findings[finding.id] = finding
    return findings


def _expectations(
    tables: Iterable[Table],
    name: str,
    framework: str,
    findings: dict[str, Finding],
    clauses: Collection[str] | None,
) -> tuple[Expectation, ...]:
    read: list[Expectation] = []
    for table in tables:
        entry = replace(_expectation(table, framework, findings, clauses), file=name)
        if any(_same_place(entry, other) for other in read):
            raise ValueError(f"{table.where}: another entry has the same versions, device, mode and cases")
        read.append(entry)
    return tuple(read)


def _expectation(
    table: Table, framework: str, findings: dict[str, Finding], clauses: Collection[str] | None
) -> Expectation:
    entry = Expectation(
        clause=table.text("clause"),
        framework=framework,
        versions=table.text("versions"),
        device=table.text("device", "*"),
        mode=table.text("mode", "*"),
        cases=table.texts("cases"),
        signature=table.text("signature"),
        finding=found(table, findings),
        spoils_process=table.flag("spoils_process"),
    )
    if entry.clause not in (load_clauses() if clauses is None else clauses):
        raise ValueError(f"{table.where}: there is no clause {entry.clause!r}")
    try:
        SpecifierSet(entry.versions)
    except InvalidSpecifier:
        raise ValueError(f"{table.where}: versions {entry.versions!r} is not a PEP 440 specifier") from None
    if not _SIGNATURE.fullmatch(entry.signature):
        raise ValueError(f"{table.where}: signature {entry.signature!r} is not one word of letters, digits, . _ and -")
    return entry


def _same_place(a: Expectation, b: Expectation) -> bool:
    def place(entry: Expectation) -> tuple[object, ...]:
        return entry.clause, entry.framework, entry.versions, entry.device, entry.mode, frozenset(entry.cases)

    return place(a) == place(b)


def judge(outcome_is_failure: bool, signature: str, matching: Sequence[Expectation]) -> tuple[str, Expectation | None]:
    """The verdict on a case that passed or failed, given the entries that apply to the run and cover the case.

    Returns:
        "known" and the entry: it failed with that entry's signature.
        "fail" and None, or an entry whose signature is another: it failed as nobody foresaw. `explain` says which.
        "fixed" and the entry: it did not fail although the entry says so.
        "pass" and None.

    An outcome that is neither (unsupported, abstain) is not judged: no entry is confirmed or refuted by it.
    """
    first = matching[0] if matching else None
    if not outcome_is_failure:
        return ("pass", None) if first is None else ("fixed", first)
    same = next((entry for entry in matching if entry.signature == signature), None)
    return ("fail", first) if same is None else ("known", same)


def explain(verdict: str, signature: str, expectation: Expectation | None) -> str:
    """What `judge` decided, in one sentence; empty where there is nothing to say."""
    if expectation is None:
        return ""
    named = f"the expectation of {expectation.framework} {expectation.versions} for {expectation.clause}"
    match verdict:
        case "known":
            return f"known: {expectation.reason} ({expectation.link})"
        case "fixed":
            return f"{named} did not come true: take it out of {expectation.file}, or narrow its versions"
        case "fail":
            return f"the signature differs: it failed with {signature!r}, and {named} says {expectation.signature!r}"
        case _:
            return ""


def unmatched(expectations: Iterable[Expectation], verdicts: Iterable[tuple[str, str]]) -> tuple[Expectation, ...]:
    """Entries, or cases of entries, that no verdict of a whole run has matched.

    Args:
        expectations: those that apply to the run.
        verdicts: clause and case of every verdict.

    Returns:
        Each entry of which something went unmatched, its `cases` narrowed to those that did.
    """
    seen: dict[str, set[str]] = {}
    for clause, case in verdicts:
        seen.setdefault(clause, set()).add(case)
    left: list[Expectation] = []
    for entry in expectations:
        cases = seen.get(entry.clause, set())
        missing = tuple(case for case in entry.cases if case not in cases)
        if missing or not cases:
            left.append(replace(entry, cases=missing))
    return tuple(left)
