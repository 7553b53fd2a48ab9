"""Exclusions: conditions that generated programs avoid because of a known defect, stored with the expectations."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from conformance.spec.findings import Finding, finding_of
from conformance.spec.tables import Kind, Table

EXCLUSION = Kind("finding", frozenset({"finding", "versions", "device", "mode", "when"}))


@dataclass(frozen=True)
class Exclusion:
    """A condition under which a finding occurs; programs that meet it are not generated.

    Attributes:
        finding: the defect.
        versions: PEP 440 specifiers of the affected versions.
        device, mode: a name, several with commas, or "*" for all.
        when: features of `conformance.generative.programs.features`, all of which a program has.
    """

    finding: Finding
    versions: str
    device: str
    mode: str
    when: tuple[str, ...]

    def leaves_out(self, features: Collection[str]) -> bool:
        """Whether a program with these features is excluded; "kind=a|b" in `when` stands for either of two."""
        return all(any(each in features for each in _alternatives(word)) for word in self.when)


def _alternatives(word: str) -> list[str]:
    kind, equals, values = word.partition("=")
    return [f"{kind}{equals}{value}" for value in values.split("|")]


def read_exclusion(table: Table, findings: dict[str, Finding]) -> Exclusion:
    """One entry `[[exclusion]]`.

    Raises:
        ValueError: it is invalid.
    """
    entry = Exclusion(
        finding_of(table, findings),
        table.text("versions"),
        table.text("device", "*"),
        table.text("mode", "*"),
        table.texts("when"),
    )
    if not entry.when:
        raise ValueError(f"{table.where}: when is empty, which would exclude every program")
    try:
        SpecifierSet(entry.versions)
    except InvalidSpecifier:
        raise ValueError(f"{table.where}: versions: got {entry.versions!r}, want a PEP 440 specifier") from None
    return entry
