"""Known failures as data: which clause, in which framework, in which versions, and how it fails.

One file a framework: `expectations/FRAMEWORK.toml`, or `expectations.toml` in the package of an adapter from elsewhere.
An entry never skips a test: the test runs, and an entry whose case passes, fails in another way or was not there at all
is an error until the entry is changed or taken out.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from conformance.clauses import load_clauses
from conformance.tables import Table, read_tables
from frameworks.contract import Framework

EXPECTATIONS = Path(__file__).parent / "expectations"

BROUGHT = "expectations.toml"
"""What an adapter from elsewhere calls its own, beside the module that its class is in."""

_KEYS = frozenset({"clause", "versions", "device", "mode", "cases", "signature", "reason", "link", "spoils_process"})
_SIGNATURE = re.compile(r"[A-Za-z0-9._-]+")
_LINK = re.compile(r"https?://\S+")


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
        reason: what goes wrong, in one sentence.
        link: where it is reported or documented.
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
    reason: str
    link: str
    spoils_process: bool = False
    file: str = field(default="", compare=False)

    def applies(self, framework: str, version: str, device: str, mode: str) -> bool:
        """Whether a run of this framework, at this version, on this device, in this mode, is meant.

        A local label ("2.13.0+cpu") is overlooked unless the specifier has one; pre-releases count.

        Raises:
            ValueError: `version` is not a PEP 440 version.
        """
        if framework != self.framework or self.device not in ("*", device) or self.mode not in ("*", mode):
            return False
        try:
            found = Version(version)
        except InvalidVersion:
            raise ValueError(f"{framework} calls its version {version!r}, which PEP 440 cannot compare") from None
        return SpecifierSet(self.versions).contains(found, prereleases=True)

    def covers(self, clause: str, case: str) -> bool:
        """Whether this case of this clause is meant; a test without parameters has the case ""."""
        return clause == self.clause and (not self.cases or case in self.cases)


def load_expectations(folder: Path = EXPECTATIONS, clauses: Collection[str] | None = None) -> tuple[Expectation, ...]:
    """Every entry of the files FRAMEWORK.toml in a folder; `clauses` are the ids that exist, None for the suite's.

    Raises:
        ValueError: an entry is not an expectation; the message is one line that names the file and the entry.
    """
    known = load_clauses() if clauses is None else clauses
    return tuple(
        entry for path in sorted(folder.glob("*.toml")) for entry in _entries(path, path.name, path.stem, known)
    )


def expectations_of(framework: Framework) -> tuple[Expectation, ...]:
    """The entries that apply to a run of this framework: the suite's, and those that the adapter's own package brings.

    Raises:
        ValueError: an entry is not an expectation, or the framework's version is not one of PEP 440.
    """
    package = getattr(sys.modules[type(framework).__module__], "__package__", "")
    brought = files(package).joinpath(BROUGHT) if package else None
    entries = load_expectations()
    if brought is not None and brought.is_file():
        entries += _entries(brought, f"{package}/{BROUGHT}", framework.name, load_clauses())
    here = framework.name, framework.version(), framework.device, framework.mode
    return tuple(entry for entry in entries if entry.applies(*here))


def _entries(source: Traversable, name: str, framework: str, clauses: Collection[str]) -> tuple[Expectation, ...]:
    found: list[Expectation] = []
    for table in read_tables(source, "expectation", "clause", _KEYS):
        entry = replace(_expectation(table, framework, clauses), file=name)
        if any(_same_place(entry, other) for other in found):
            raise ValueError(f"{table.where}: another entry has the same versions, device, mode and cases")
        found.append(entry)
    return tuple(found)


def _expectation(table: Table, framework: str, clauses: Collection[str]) -> Expectation:
    entry = Expectation(
        clause=table.text("clause"),
        framework=framework,
        versions=table.text("versions"),
        device=table.text("device", "*"),
        mode=table.text("mode", "*"),
        cases=table.texts("cases"),
        signature=table.text("signature"),
        reason=table.text("reason"),
        link=table.text("link"),
        spoils_process=table.flag("spoils_process"),
    )
    if entry.clause not in clauses:
        raise ValueError(f"{table.where}: there is no clause {entry.clause!r}")
    try:
        SpecifierSet(entry.versions)
    except InvalidSpecifier:
        raise ValueError(f"{table.where}: versions {entry.versions!r} is not a PEP 440 specifier") from None
    if not _SIGNATURE.fullmatch(entry.signature):
        raise ValueError(f"{table.where}: signature {entry.signature!r} is not one word of letters, digits, . _ and -")
    if not _LINK.fullmatch(entry.link):
        raise ValueError(f"{table.where}: link {entry.link!r} is not an address")
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
