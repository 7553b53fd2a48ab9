"""The texts in a record: its clauses, and the findings behind its known failures."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from msgspec import Meta

END = r"(?!\n)$"
"""The end of a pattern, in Python and in JSON Schema: `$` alone is before a trailing newline too in Python."""

_LONGEST = 200

ClauseId = Annotated[str, Meta(pattern=rf"^[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)+{END}", max_length=_LONGEST)]
"""Id of a clause, such as "scaling.stays-finite"."""

FindingId = Annotated[str, Meta(pattern=f"^[a-z0-9]+(-[a-z0-9]+)*{END}", max_length=_LONGEST)]
"""Id of a finding, a slug."""

Revision = Annotated[int, Meta(ge=1, le=2**31)]

NonEmpty = Annotated[str, Meta(min_length=1)]
"""Any text but the empty one."""


@dataclass(frozen=True)
class ClauseText:
    """A clause as it was when it was judged.

    Attributes:
        revision: of its meaning; verdicts of different revisions are not comparable.
    """

    level: str
    requirement: str
    source: str
    history: tuple[str, ...]
    family: NonEmpty
    revision: Revision = 1


class FindingKind(StrEnum):
    """Class of a known failure.

    DEFECT: it contradicts the framework's documentation, or mathematics. DOCUMENTED: the framework says so, or it is by
    design. NUMERICS: the last bits of a compiler or kernel. LIMITATION: the framework refuses clearly.
    """

    DEFECT = "defect"
    DOCUMENTED = "documented"
    NUMERICS = "numerics"
    LIMITATION = "limitation"


class Consequence(StrEnum):
    """Consequence of a known failure for a user, the worst first.

    SILENT_CORRUPTION: parameters, gradients or results are wrong, and no more than a warning says so. SILENT_LOSS:
    state or data is dropped, and no more than a warning says so. LEAKED_SETTING: a process-wide setting stays changed.
    ERROR: a call raises or dies that should work. COST: more memory or time. LAST_BITS: results differ in their
    rounding.
    """

    SILENT_CORRUPTION = "silent-corruption"
    SILENT_LOSS = "silent-loss"
    LEAKED_SETTING = "leaked-setting"
    ERROR = "error"
    COST = "cost"
    LAST_BITS = "last-bits"

    @property
    def rank(self) -> int:
        """0 for the worst."""
        return list(Consequence).index(self)


@dataclass(frozen=True)
class FindingText:
    """One cause of known failures, as it was when they were judged.

    Attributes:
        reason: cause and effect, in one sentence.
        link: where it is reported, documented or was introduced, or "none found".
        link_shows: what is to be read there, in a few words; empty without a link.
    """

    kind: FindingKind
    consequence: Consequence
    reason: str
    link: str
    link_shows: str
