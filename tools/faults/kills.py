"""Which tests fail on each fault of the reference: kills.json.gz, by `python -m tools faults --matrix`."""

import gzip
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

FILE = Path(__file__).with_name("kills.json.gz")

Kills = Mapping[str, Sequence[str]]
"""Test ids, CLAUSE/function[parameters], by FRAMEWORK.CLASS of a fault; other tests passed or were not run."""


def read(path: Path = FILE) -> dict[str, list[str]]:
    """The tests that fail on each fault; nothing if none was measured."""
    if not path.exists():
        return {}
    known: dict[str, list[str]] = json.loads(gzip.decompress(path.read_bytes()))
    return known


def write(kills: Kills, path: Path = FILE) -> None:
    """Writes the tests that fail on each fault, the same bytes for the same content."""
    text = json.dumps({fault: sorted(tests) for fault, tests in sorted(kills.items())}, indent=0)
    path.write_bytes(gzip.compress(text.encode(), mtime=0))


def dominated(kills: Kills) -> list[str]:
    """The faults to leave out by mutant subsumption: those whose failing tests include all of another fault's.

    Whatever catches the other one catches them. Of faults with the same failing tests all but the first are left out.
    """
    first: dict[frozenset[str], str] = {}
    for fault, tests in kills.items():
        first.setdefault(frozenset(tests), fault)
    hardest = {tests: fault for tests, fault in first.items() if not any(other < tests for other in first)}
    return [fault for fault in kills if fault not in hardest.values()]
