"""The failure of a generated case."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Failure:
    """The failure of a case.

    Attributes:
        place: of the verb after which it appears.
        name: of the value that differs, "raised" if the verb raised.
        skipped: whether the oracle skips the update of that verb.
        text: what differs, in one sentence.
    """

    place: int
    name: str
    skipped: bool
    text: str

    def breaking(self, clause: str) -> str:
        """The message, with the clause that the failure breaks."""
        return f"{self.text}; this breaks {clause}"
