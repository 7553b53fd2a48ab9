"""Results of checks, as plain values that a worker prints."""

from __future__ import annotations

from dataclasses import dataclass

PASS, FAIL, NOT_JUDGED = "pass", "fail", "not judged"
UNBOUNDED = "a randomly rounded pass is not finite, so that there is no bound"


@dataclass(frozen=True)
class HeadCheck:
    """One check of one clause.

    Attributes:
        case: which of several checks of the clause, "" for its only one.
        outcome: `PASS`, `FAIL` or `NOT_JUDGED`.
        got, want: of a failure; of a check that was not judged `got` is the reason.
        cause: where the failure comes from, the same for all models that share it, "" if that is the model alone.
    """

    clause: str
    case: str
    outcome: str
    got: str
    want: str = ""
    cause: str = ""


def judged(clause: str, case: str, holds: bool, got: str, want: str, cause: str = "") -> HeadCheck:
    """A check that passes if `holds`."""
    return HeadCheck(clause, case, PASS if holds else FAIL, got, want, "" if holds else cause)


def left_out(clause: str, case: str, reason: str) -> HeadCheck:
    """A check that was not judged."""
    return HeadCheck(clause, case, NOT_JUDGED, reason)
