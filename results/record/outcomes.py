"""The outcomes that a test of a clause may have."""

from __future__ import annotations

from enum import StrEnum
from typing import NoReturn


class Outcome(StrEnum):
    """What one test came to. No outcome stands for true or false: compare it, or ask for `bad`.

    PASS: the clause held.
    FAIL: it did not, and no expectation names the failure.
    KNOWN: it did not, as an expectation says.
    FIXED: an expectation names a failure that no longer happens; an error until the expectation is removed.
    UNSUPPORTED: the adapter refuses it, and the framework's own call was tried and did not act.
    NOT_OFFERED: the adapter refuses it and has no call to try, which says nothing of the framework.
    MISDECLARED: declared one way, observed another.
    ABSTAIN: two runs of the same thing differed, so nothing was judged.
    UNSTABLE: it got worse, and did not when it was repeated in a new process.
    ERROR: the test itself broke. TIMEOUT: it did not end in time. CRASH: it took the interpreter with it.
    """

    PASS = "pass"
    KNOWN = "known"
    UNSUPPORTED = "unsupported"
    NOT_OFFERED = "not offered"
    ABSTAIN = "abstain"
    FAIL = "fail"
    MISDECLARED = "misdeclared"
    FIXED = "fixed"
    UNSTABLE = "unstable"
    ERROR = "error"
    TIMEOUT = "timeout"
    CRASH = "crash"

    @property
    def bad(self) -> bool:
        """Whether somebody has to act on it: what did not hold, unforeseen, and did not hold again when repeated."""
        return self not in _QUIET

    def __bool__(self) -> NoReturn:
        raise TypeError(f"an outcome is neither true nor false: compare {self.value!r} with an Outcome, or use .bad")


REFUSED = frozenset({Outcome.UNSUPPORTED, Outcome.NOT_OFFERED})
"""The adapter refused what the test asks for."""

UNJUDGED = REFUSED | {Outcome.ABSTAIN}
"""Nothing was judged."""

_QUIET = UNJUDGED | {Outcome.PASS, Outcome.KNOWN, Outcome.UNSTABLE}
