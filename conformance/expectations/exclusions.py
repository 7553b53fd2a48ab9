"""What drawn programs leave out because a framework is known to do it wrongly, as data next to the expectations."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from conformance.spec.findings import Finding, found
from conformance.spec.tables import Kind, Table

EXCLUSION = Kind("finding", frozenset({"finding", "versions", "device", "mode", "when"}))


@dataclass(frozen=True)
class Exclusion:
    """A condition under which a finding shows; programs that meet it are not drawn.

    Attributes:
        finding: what goes wrong under it.
        versions: PEP 440 specifiers of the framework's versions that do so.
        device, mode: a name, several with commas, or "*" for every one.
        when: features that a program has, all of them; `conformance.laws.features` names them.
    """

    finding: Finding
    versions: str
    device: str
    mode: str
    when: tuple[str, ...]

    def leaves_out(self, features: Collection[str]) -> bool:
        """Whether a program with these features is left out."""
        return all(feature in features for feature in self.when)


def read_exclusion(table: Table, findings: dict[str, Finding]) -> Exclusion:
    """One entry `[[exclusion]]`.

    Raises:
        ValueError: it is none.
    """
    entry = Exclusion(
        found(table, findings),
        table.text("versions"),
        table.text("device", "*"),
        table.text("mode", "*"),
        table.texts("when"),
    )
    if not entry.when:
        raise ValueError(f"{table.where}: when names no feature, so that nothing would be drawn")
    try:
        SpecifierSet(entry.versions)
    except InvalidSpecifier:
        raise ValueError(f"{table.where}: versions {entry.versions!r} is not a PEP 440 specifier") from None
    return entry
