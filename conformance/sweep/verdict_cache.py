"""Verdicts of earlier runs by adapter, environment, machine, device, mode, ways and seed; records merged from them.

One record for each key has the verdicts. One counts while the clause's revision in that record is the present one.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from conformance.runner.identity import AREAS, adapter_files, digest, files_of
from conformance.spec.clauses import load_clauses
from conformance.sweep.environments import locked
from conformance.test_ids.inventory import ROOT, node_of
from frameworks.cache_folder import cache_folder
from results.record.files import RecordError
from results.record.files import replace as replace_file
from results.record.outcomes import Outcome
from results.record.reading import Record, Status, TestVerdict, load, write

PARTS = ("observations", "measurements", "traces", "tensors")
_OF_THE_MACHINE = frozenset({Outcome.TIMEOUT, Outcome.CRASH, Outcome.UNSTABLE})
_SCARCE = ("raises-MemoryError", "raises-OSError", "raises-KeyboardInterrupt", "raises-TimeoutError")


def verdicts_folder() -> Path:
    """Where verdicts are: in the suite's cache."""
    return cache_folder() / "verdicts"


@dataclass(frozen=True)
class VerdictKey:
    """What a verdict depends on next to its test and the clause's revision.

    Attributes:
        framework: an adapter's name, or package.module:Class.
        adapter: digest of the adapter's files, its expectations too.
        packages: version of every package by normalized name.
        machine: architecture, Python and device kind by name.
        instruction_sets: of the processor.
    """

    framework: str
    adapter: str
    packages: Mapping[str, str]
    machine: Mapping[str, str]
    instruction_sets: tuple[str, ...]
    device: str
    mode: str
    ways: tuple[str, ...]
    seed: int

    @property
    def name(self) -> str:
        """Digest of the key."""
        parts: list[Any] = [self.framework, self.adapter, sorted(self.packages.items()), sorted(self.machine.items())]
        parts += [[*self.instruction_sets], self.device, self.mode, [*self.ways], self.seed]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:24]


@dataclass(frozen=True)
class VerdictCache:
    """Verdicts of one key."""

    path: Path

    @classmethod
    def of(cls, key: VerdictKey, folder: Path) -> VerdictCache:
        """The verdicts of a key in a folder."""
        return cls(folder / f"{key.name}.json.gz")

    def read(self) -> Record | None:
        """A record of the verdicts that still count; None without any, or if the file is damaged."""
        try:
            return valid(load(self.path))
        except RecordError:
            return None

    def add(self, record: Record) -> None:
        """Adds the verdicts of a run that depend on nothing but the key.

        Raises:
            RecordError: the file cannot be written.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        selection = record.only({verdict.test for verdict in record.verdicts if lasting(verdict, record.status)})
        with locked(self.path.with_suffix(".lock"), fcntl.LOCK_EX):
            before = self.read()
            write(self.path, selection if before is None else merged(selection, before))

    def tests(self, selected: str) -> list[str] | None:
        """The tests of a selection, None where they are not known.

        Args:
            selected: digest of the selection and of the code that it is made from.
        """
        try:
            return msgspec.json.decode(self._tests_of(selected).read_bytes(), type=list[str])
        except (OSError, ValueError):
            return None

    def keep_tests(self, selected: str, tests: Sequence[str]) -> None:
        """Keeps the tests of a selection."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(self._tests_of(selected), json.dumps([*tests]).encode())

    def _tests_of(self, selected: str) -> Path:
        return self.path.with_name(f"{self.path.name.partition('.')[0]}.{selected}.tests.json")


def lasting(verdict: TestVerdict, status: str) -> bool:
    """Whether a verdict is one about the framework, which another run would reach too.

    Not timeouts, crashes, unstable verdicts and errors that come from the machine or the run. Verdicts about a whole
    run last if it was complete.
    """
    if node_of(verdict.test) is None:
        return status == "complete"
    if verdict.outcome is Outcome.ERROR:
        return verdict.signature.startswith("raises-") and not verdict.signature.startswith(_SCARCE)
    return verdict.outcome not in _OF_THE_MACHINE


def valid(record: Record) -> Record:
    """A record with the verdicts whose clause has the same revision now, in the words of the present clauses."""
    clauses = load_clauses()
    texts = record.clauses
    same = {name for name in texts if name in clauses and clauses[name].revision == texts[name].revision}
    known = {verdict.test for verdict in record.verdicts if verdict.clause in same}
    return record.only(known).sorted()


def merged(record: Record, earlier: Record) -> Record:
    """The record of a run, with what an earlier record has of tests that the run did not judge."""
    own = {verdict.test for verdict in record.verdicts}
    old = earlier.only({verdict.test for verdict in earlier.verdicts} - own)
    parts: dict[str, Any] = {name: (*getattr(record, name), *getattr(old, name)) for name in PARTS}
    return replace(
        record,
        verdicts=(*record.verdicts, *old.verdicts),
        clauses={**old.clauses, **record.clauses},
        findings={**old.findings, **record.findings},
        **parts,
    ).sorted()


def of_cell(fresh: Record | None, earlier: Record | None, tests: Collection[str] | None, selection: str) -> Record:
    """The record of a cell, from a run of tests without a verdict and from earlier verdicts.

    Args:
        tests: all tests of the cell; None if the run selected them itself.
        selection: as a record has it.

    Raises:
        ValueError: there is neither a run nor an earlier record.
    """
    if fresh is not None and (earlier is None or tests is None):
        return replace(fresh, selection=selection)
    if earlier is None:
        raise ValueError("no verdict of the cell")
    wanted = set(tests or ())
    whole = not selection
    runs = {verdict.test for verdict in earlier.verdicts if node_of(verdict.test) is None and whole}
    usable = earlier.only(wanted | runs)
    record = usable.sorted() if fresh is None else merged(fresh, usable)
    count = len(record.verdicts) - (0 if fresh is None else len(fresh.verdicts))
    missing = wanted - {verdict.test for verdict in record.verdicts}
    status: Status = "interrupted" if missing else "complete" if whole else "partial"
    last = earlier.suite.commit or earlier.suite.version
    notes = [f"{count} of {len(record.verdicts)} verdicts are from earlier runs in the same environment, last {last}"]
    if missing:
        notes.append(f"{len(missing)} of {len(wanted)} tests were not judged")
    return replace(record, status=status, notes=tuple(notes), selection=selection)


def selection_digest(framework: str, selection: Sequence[str]) -> str:
    """Digest of a selection and of the code that decides which tests there are."""
    places = [ROOT / place for area in ("tests", "judging", "contract", "fixtures") for place in AREAS[area]]
    code = digest([*files_of(places), *adapter_files(framework)])
    return hashlib.sha256(repr((tuple(selection), code)).encode()).hexdigest()[:16]


def due(tests: Sequence[str], earlier: Record) -> list[str]:
    """Tests without an earlier verdict."""
    known = {verdict.test for verdict in earlier.verdicts}
    return [test for test in tests if test not in known]
