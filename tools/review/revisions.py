"""Reviews of clauses whose tests' code has changed: does the revision still describe their meaning?

`revisions.toml` has, for each clause, the reviewed revision, a digest of the clause's text and of its tests' code, and
the answer: what changed, and why the meaning did not. A new digest requires a new review.
"""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from conformance.spec.clauses import Clause, load_clauses
from conformance.test_ids.inventory import ROOT, TestCode, code_hashes, read_inventory

FILE = Path(__file__).with_suffix(".toml")

_HEAD = """\
# Of each clause: its revision, a digest of its text and of the code of its tests, and the answer when one of these last
# changed. `python -m tools review` compares and writes it.

"""

RAISED = "revision raised"


@dataclass(frozen=True)
class Review:
    """The stored review of a clause."""

    revision: int
    digest: str
    answer: str


@dataclass(frozen=True)
class Question:
    """A clause whose text or code has changed since it was reviewed.

    Attributes:
        tests: functions of its tests, as FILE::FUNCTION.
        former: the stored review; None for a new clause.
        revision: what the specification says now.
    """

    clause: str
    tests: tuple[str, ...]
    former: Review | None
    revision: int

    @property
    def answered(self) -> bool:
        """Whether no answer is needed: the revision was raised, or the clause is new."""
        return self.former is None or self.revision > self.former.revision

    def __str__(self) -> str:
        if self.former is None:
            return f"{self.clause}: new"
        if self.revision < self.former.revision:
            return f"{self.clause}: revision {self.revision}, want at least {self.former.revision}"
        if self.answered:
            return f"{self.clause}: revision raised from {self.former.revision} to {self.revision}"
        return f"{self.clause}: code or text changed at revision {self.revision}: {', '.join(self.tests)}"


def reviews(path: Path = FILE) -> dict[str, Review]:
    """The stored reviews by clause.

    Raises:
        ValueError: the file cannot be read; the message is one line.
    """
    try:
        table = tomllib.loads(path.read_text("utf-8"))
        return {clause: Review(*entry) for clause, entry in table.items()}
    except (OSError, tomllib.TOMLDecodeError, TypeError) as error:
        raise ValueError(f"{path.name}: {' '.join(str(error).split())}; restore it from git") from None


def present(root: Path = ROOT, clauses: Mapping[str, Clause] | None = None) -> dict[str, Review]:
    """Revision and digest of every clause that has tests, as a checkout has them, without an answer."""
    clauses = load_clauses() if clauses is None else clauses
    hash_of, hashes = code_hashes(root), dict[str, list[str]]()
    for code in read_inventory(root).values():
        hashes.setdefault(code.clause, []).append(hash_of[code.function])
    return {
        name: Review(clauses[name].revision, _digest(clauses[name], hashes[name]), "")
        for name in sorted(hashes.keys() & clauses.keys())
    }


def _digest(clause: Clause, hashes: list[str]) -> str:
    parts = (clause.level.value, clause.requirement, *sorted(hashes))
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def questions(stored: Mapping[str, Review], now: Mapping[str, Review], tests: Mapping[str, TestCode]) -> list[Question]:
    """Clauses that need a review."""
    named: dict[str, list[str]] = {}
    for code in tests.values():
        named.setdefault(code.clause, []).append(f"{code.file}::{code.function}")
    return [
        Question(clause, tuple(sorted(named.get(clause, ()))), stored.get(clause), review.revision)
        for clause, review in now.items()
        if clause not in stored or (stored[clause].revision, stored[clause].digest) != (review.revision, review.digest)
    ]


def answered(stored: Mapping[str, Review], now: Mapping[str, Review], asked: list[Question], answer: str) -> str:
    """The text of the file with an answer to every question."""
    given = {each.clause: (RAISED if each.former else "new") if each.answered else answer for each in asked}
    lines = (
        f"{json.dumps(clause)} = {json.dumps([each.revision, each.digest, given.get(clause) or stored[clause].answer])}"
        for clause, each in now.items()
    )
    return _HEAD + "\n".join(lines) + "\n"
