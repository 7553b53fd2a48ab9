"""Reads known failures in adapters' packages: causes in `findings.toml`, snapshots of judged series in `expected`."""

from __future__ import annotations

import re
import sys
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import TYPE_CHECKING

from conformance.known_failures.entries import (
    KERNELS,
    OTHER_SEEDS,
    SEED,
    Exclusion,
    Expectation,
    Known,
    VersionSeries,
    join_ways,
    parse_version,
)
from conformance.spec.clauses import Table, load_clauses, read_tables
from conformance.spec.findings import (
    ANY,
    EXCLUSION,
    FINDING,
    PROCESSOR,
    Finding,
    read_finding,
    read_processor,
    read_programs,
    read_versions,
    read_workaround,
)
from frameworks.registry import built_in, folder_of

if TYPE_CHECKING:
    from frameworks.contract import Framework

FILE, SNAPSHOTS = "findings.toml", "expected"
"""Names of the file of findings and of the folder of snapshots, next to the module of the adapter's class."""

_PROGRAMS_CLAUSE = "composition.plain-way"
"""The clause whose tests are the findings' programs."""

_SNAPSHOT_NAME = re.compile(r".+?-(?P<version>\d[^-]*)-(?P<device>[^-]+)-(?P<mode>.+)\.txt")
_LINE = re.compile(
    r"(?P<clause>[^/\s]+)/(?P<case>\S+(?: \S+)*)  (?P<finding>\S+)  "
    r"(?P<signature>[A-Za-z0-9._-]+(?:\|[A-Za-z0-9._-]+)*)(?:  \[(?P<conditions>[^\]]+)\])?"
)


def known_of(
    framework: Framework, seed: int = 0, instructions: Collection[str] = (), ways: Collection[str] = ()
) -> Known:
    """Return the entries for a run of this framework, from the adapter of its name and from the package of its class.

    A framework whose attribute `has_workarounds` is False has none of the adapter's workarounds. A workaround without
    a mode is judged only in the framework's first mode, since its program does not depend on the mode.

    Args:
        instructions: instruction sets of the processor.
        ways: the ways of the run that are not the adapter's default ones.

    Raises:
        ValueError: an entry cannot be read, or the framework's version is not one of PEP 440.
    """
    folders: list[Traversable] = [*_built_in(framework.name)]
    if package := getattr(sys.modules[type(framework).__module__], "__package__", ""):
        folders.append(files(package))
    name, series, known = framework.name, series_of(framework, ways), Known()
    for folder in {str(folder): folder for folder in folders}.values():
        known += read_known(folder, name).applying(name, series, seed, instructions, framework.modes)
    workarounds = tuple(
        workaround
        for workaround in known.workarounds
        if getattr(framework, "has_workarounds", True)
        and (workaround.mode or framework.mode == framework.modes[0])
        and not workaround.finding.lacking()
    )
    judged = {workaround.finding.id for workaround in workarounds}
    return replace(
        known,
        expectations=tuple(
            entry for entry in known.expectations if entry.clause != _PROGRAMS_CLAUSE or entry.finding.id in judged
        ),
        workarounds=workarounds,
    )


def series_of(framework: Framework, ways: Collection[str] = ()) -> VersionSeries:
    """Return the series of a run of this framework; `ways` as for `known_of`."""
    return VersionSeries(framework.version(), framework.device, join_ways(framework.mode, ways))


def load_known(names: Iterable[str] = ()) -> Known:
    """Return the entries of built-in adapters (by default all), without importing their frameworks.

    Raises:
        ValueError: as `read_known`.
    """
    return sum((read_known(folder, name) for name in names or built_in() for folder in _built_in(name)), Known())


def _built_in(name: str) -> Iterator[Path]:
    folder = folder_of(built_in()[name]) if name in built_in() else None
    if folder is not None:
        yield folder


def read_known(folder: Traversable, framework: str, clauses: Collection[str] | None = None) -> Known:
    """Return the findings and snapshots in a folder, nothing without the files; `clauses` are the existing ids.

    Raises:
        ValueError: an entry is invalid; the message is one line that names the file and the entry.
    """
    clauses = load_clauses() if clauses is None else clauses
    try:
        known = _read_findings(folder, framework) if folder.joinpath(FILE).is_file() else Known()
        findings = {finding.id: finding for finding in known.findings}
        for finding in known.findings:
            if unknown := sorted({*finding.clauses} - {*clauses}):
                raise ValueError(f"{FILE}: finding {finding.id}: unknown clause {unknown[0]!r}")
        judged: list[VersionSeries] = []
        entries: list[Expectation] = []
        snapshots = folder.joinpath(SNAPSHOTS)
        for file in sorted(snapshots.iterdir(), key=lambda file: file.name) if snapshots.is_dir() else ():
            series = _series_named(file.name, framework)
            judged.append(series)
            entries += _read_snapshot(file, f"{folder.name}/{SNAPSHOTS}/{file.name}", series, findings, clauses)
    except ValueError as error:
        raise ValueError(f"{folder.name}/{error}") from None
    return replace(known, expectations=tuple(entries), judged={framework: tuple(judged)} if judged else {})


def _read_findings(folder: Traversable, framework: str) -> Known:
    findings: dict[str, Finding] = {}
    workarounds, exclusions, programs = [], [], read_programs(folder)
    for table in read_tables(folder.joinpath(FILE), {"finding": FINDING})["finding"]:
        finding = read_finding(table, framework, programs)
        if finding.id in findings:
            raise ValueError(f"{table.where}: duplicate id")
        findings[finding.id] = finding
        workarounds.append(read_workaround(table, finding, folder))
        keys = frozenset({"when", "versions", "device", "mode", "processor"})
        exclusions += [_read_exclusion(inner, finding) for inner in table.tables(EXCLUSION, keys)]
    return Known(
        findings=tuple(findings.values()),
        workarounds=tuple(workaround for workaround in workarounds if workaround is not None),
        exclusions=tuple(exclusions),
    )


def _read_exclusion(table: Table, finding: Finding) -> Exclusion:
    device, mode, when = table.text("device", finding.device), table.text("mode", ANY), table.texts("when")
    if not when:
        raise ValueError(f"{table.where}: when is empty, which would exclude every program")
    return Exclusion(finding, when, read_versions(table), device, mode, read_processor(table))


def _series_named(name: str, framework: str) -> VersionSeries:
    """Return the series of the snapshot with this name."""
    match = _SNAPSHOT_NAME.fullmatch(name)
    if match is None:
        raise ValueError(f"{SNAPSHOTS}: got a file {name!r}, want FRAMEWORK-VERSION-DEVICE-MODE.txt")
    parse_version(f"{SNAPSHOTS}/{name}: {framework}", match["version"])
    return VersionSeries(match["version"], match["device"], match["mode"])


def _read_snapshot(
    file: Traversable, name: str, series: VersionSeries, findings: dict[str, Finding], clauses: Collection[str]
) -> Iterator[Expectation]:
    causes: set[tuple[str, str]] = set()
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        where, match = f"{SNAPSHOTS}/{file.name}: line {number}", _LINE.fullmatch(line)
        if match is None:
            want = "'TEST  FINDING  SIGNATURE' or 'TEST  FINDING  SIGNATURE  [INSTRUCTION SETS]'"
            raise ValueError(f"{where}: got {line!r}, want {want}")
        if match["clause"] not in clauses:
            raise ValueError(f"{where}: unknown clause {match['clause']!r}")
        if match["finding"] not in findings:
            raise ValueError(f"{where}: unknown finding {match['finding']!r}; add it to {FILE}")
        conditions = (match["conditions"] or "").split(", ")
        depends_on = [word for word in conditions if word in (SEED, OTHER_SEEDS, KERNELS)]
        processor = ", ".join(word for word in conditions if word not in depends_on) or ANY
        if len(depends_on) > 1 or not PROCESSOR.fullmatch(processor):
            want = f"instruction sets such as 'avx2, -avx512f', and at most one of {SEED}, {OTHER_SEEDS}, {KERNELS}"
            raise ValueError(f"{where}: got [{match['conditions']}], want {want}")
        entry = Expectation(
            clause=match["clause"],
            cases=(match["case"],),
            signature=match["signature"],
            finding=findings[match["finding"]],
            series=series,
            processor=processor,
            depends_on="".join(depends_on),
            file=name,
        )
        if (entry.test, entry.finding.id) in causes:
            raise ValueError(f"{where}: another line has the same test and finding")
        causes.add((entry.test, entry.finding.id))
        yield entry
