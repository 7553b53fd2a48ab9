"""Reads known failures from `expectations.toml` in adapters' packages.

The file has an adapter's findings, their expectations, its workarounds, and the judged series: versions by device and
mode.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from conformance.known_failures.entries import KERNELS, OTHER_SEEDS, SEED, Exclusion, Expectation, Known
from conformance.known_failures.judged_series import JUDGED, VersionSeries, read_judged
from conformance.spec.clauses import load_clauses
from conformance.spec.findings import (
    FINDING,
    WORKAROUND,
    Finding,
    finding_of,
    read_finding,
    read_processor,
    read_workaround,
)
from conformance.spec.tables import Kind, Table, read_file
from frameworks.adapter_file import folder_of
from frameworks.registry import built_in

if TYPE_CHECKING:
    from frameworks.contract import Framework

FILE = "expectations.toml"
"""Name of the file, next to the module of the adapter's class."""

_PLACE = frozenset({"finding", "versions", "device", "mode"})
_EXPECTATION = Kind(
    "clause", _PLACE | {"clause", "processor", "cases", "signature", "spoils_process", "depends_on", "way"}
)
_EXCLUSION = Kind("finding", _PLACE | {"when", "processor"})
_PLAIN = "composition.plain-way"
"""The clause whose tests are the findings' programs."""
_SIGNATURE = re.compile(r"[A-Za-z0-9._-]+(\|[A-Za-z0-9._-]+)*")


def known_of(
    framework: Framework, seed: int = 0, instructions: Collection[str] = (), ways: Collection[str] = ()
) -> Known:
    """The entries for a run of this framework, from the adapter of its name and from the package of its class.

    A framework whose attribute `has_workarounds` is False has none of the adapter's workarounds. One that names no
    mode is judged in the framework's first mode alone, since its program depends on none.

    Args:
        instructions: instruction sets of the processor.
        ways: the ways of the run that are not the adapter's default ones.

    Raises:
        ValueError: an entry cannot be read, or the framework's version is not one of PEP 440.
    """
    package = getattr(sys.modules[type(framework).__module__], "__package__", "")
    folders = {str(folder): folder for folder in (*_built_in(framework.name), *([files(package)] if package else []))}
    known = sum((read_known(folder, framework.name) for folder in folders.values()), Known())
    known = known.applying(framework.name, series_of(framework), seed, instructions)
    workarounds = tuple(
        each
        for each in known.workarounds
        if getattr(framework, "has_workarounds", True)
        and (each.mode or framework.mode == framework.modes[0])
        and not each.finding.lacking()
    )
    judged = {each.finding.id for each in workarounds}
    return replace(
        known,
        expectations=tuple(
            entry
            for entry in known.expectations
            if (entry.clause != _PLAIN or entry.finding.id in judged) and entry.way in ("", *ways)
        ),
        workarounds=workarounds,
    )


def series_of(framework: Framework) -> VersionSeries:
    """The series of a run of this framework."""
    return VersionSeries(framework.version(), framework.device, framework.mode)


def load_known(names: Iterable[str] = ()) -> Known:
    """The entries of built-in adapters (by default all), without importing their frameworks.

    Raises:
        ValueError: as `read_known`.
    """
    return sum((read_known(folder, name) for name in names or built_in() for folder in _built_in(name)), Known())


def _built_in(name: str) -> Iterator[Path]:
    folder = folder_of(built_in()[name]) if name in built_in() else None
    if folder is not None:
        yield folder


def read_known(folder: Traversable, framework: str, clauses: Collection[str] | None = None) -> Known:
    """Content of `expectations.toml` in a folder, empty without the file; `clauses` are the existing ids.

    Raises:
        ValueError: an entry is invalid; the message is one line that names the file and the entry.
    """
    source, name = folder.joinpath(FILE), f"{folder.name}/{FILE}"
    if not source.is_file():
        return Known()
    try:
        kinds = {"finding": FINDING, "expectation": _EXPECTATION, "workaround": WORKAROUND, "exclusion": _EXCLUSION}
        above, tables = read_file(source, kinds, {JUDGED})
        judged = read_judged(above)
        findings = _by_id(tables["finding"], framework, folder)
        expectations = _expectations(tables["expectation"], name, framework, findings, clauses)
        workarounds = tuple(read_workaround(table, findings, folder) for table in tables["workaround"])
        exclusions = tuple(_exclusion(table, findings) for table in tables["exclusion"])
        failing = {entry.finding.id for entry in expectations}
        used = failing | {each.finding.id for each in workarounds} | {each.finding.id for each in exclusions}
        used |= {each.id for each in findings.values() if each.causes}
        if idle := sorted(findings.keys() - used):
            raise ValueError(
                f"{FILE}: no expectation, workaround or exclusion names the finding {idle[0]!r}; remove it"
            )
        if unshown := [each.id for each in findings.values() if each.program is None and each.id not in failing]:
            raise ValueError(f"{FILE}: finding {unshown[0]!r} needs a program or an expectation")
    except ValueError as error:
        raise ValueError(f"{folder.name}/{error}") from None
    return Known(tuple(findings.values()), expectations, workarounds, {framework: judged} if judged else {}, exclusions)


def _by_id(tables: Iterable[Table], framework: str, folder: Traversable) -> dict[str, Finding]:
    findings: dict[str, Finding] = {}
    for table in tables:
        finding = read_finding(table, framework, folder)
        if finding.id in findings:
            raise ValueError(f"{table.where}: duplicate id")
        findings[finding.id] = finding
    return findings


def _expectations(
    tables: Iterable[Table], name: str, framework: str, findings: dict[str, Finding], clauses: Collection[str] | None
) -> tuple[Expectation, ...]:
    read: dict[tuple[object, ...], Expectation] = {}
    for table in tables:
        entry = replace(_expectation(table, framework, findings, clauses), file=name)
        place = (entry.clause, entry.versions, entry.device, entry.mode, entry.processor, frozenset(entry.cases))
        if place in read:
            raise ValueError(f"{table.where}: another entry has the same versions, device, mode, processor and cases")
        read[place] = entry
    return tuple(read.values())


def _expectation(
    table: Table, framework: str, findings: dict[str, Finding], clauses: Collection[str] | None
) -> Expectation:
    entry = Expectation(
        clause=table.text("clause"),
        framework=framework,
        versions=_specifiers(table),
        device=table.text("device", "*"),
        mode=table.text("mode", "*"),
        cases=tuple(table.texts("cases")),
        signature=table.text("signature"),
        finding=finding_of(table, findings),
        processor=read_processor(table),
        spoils_process=table.flag("spoils_process"),
        depends_on=table.text("depends_on") if "depends_on" in table.values else "",
        way=table.text("way") if "way" in table.values else "",
    )
    if entry.depends_on not in ("", SEED, OTHER_SEEDS, KERNELS):
        wanted = f"{SEED!r}, {OTHER_SEEDS!r} or {KERNELS!r}"
        raise ValueError(f"{table.where}: depends_on: got {entry.depends_on!r}, want {wanted}")
    if entry.clause not in (load_clauses() if clauses is None else clauses):
        raise ValueError(f"{table.where}: unknown clause {entry.clause!r}")
    if not _SIGNATURE.fullmatch(entry.signature):
        raise ValueError(
            f"{table.where}: signature: got {entry.signature!r}, want letters, digits, . _ and -, several with |"
        )
    return entry


def _exclusion(table: Table, findings: dict[str, Finding]) -> Exclusion:
    device, mode, when = table.text("device", "*"), table.text("mode", "*"), table.texts("when")
    if not when:
        raise ValueError(f"{table.where}: when is empty, which would exclude every program")
    return Exclusion(finding_of(table, findings), _specifiers(table), device, mode, when, read_processor(table))


def _specifiers(table: Table) -> str:
    versions = table.text("versions")
    try:
        SpecifierSet(versions)
    except InvalidSpecifier:
        raise ValueError(f"{table.where}: versions: got {versions!r}, want a PEP 440 specifier") from None
    return versions
