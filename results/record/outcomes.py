"""The outcomes that a test of a clause may have."""

from enum import StrEnum
from typing import NoReturn


class Outcome(StrEnum):
    """The outcome of a test. It has no truth value: compare it, or use `bad`.

    PASS: the clause holds.
    FAIL: it fails, and no expectation names the failure.
    KNOWN: it fails as an expectation describes.
    FIXED: an expectation names a failure that no longer happens; an error until the expectation is removed.
    UNSUPPORTED: the adapter refuses it, and the framework's own call was tried and did not act.
    NOT_OFFERED: the adapter refuses it and has no call to try, which says nothing of the framework.
    MISDECLARED: declared one way, observed another.
    ABSTAIN: two identical runs differ, so there is no verdict.
    UNSTABLE: it got worse, but not again when repeated in a new process.
    ERROR: the test raised an unexpected exception. TIMEOUT: it did not end in time. CRASH: the process died.
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
        """Whether somebody has to act on it: an unexpected and repeatable failure."""
        return self not in _QUIET

    def __bool__(self) -> NoReturn:
        raise TypeError(f"an outcome is neither true nor false: compare {self.value!r} with an Outcome, or use .bad")


REFUSED = frozenset({Outcome.UNSUPPORTED, Outcome.NOT_OFFERED})
"""The adapter refused what the test asks for."""

UNJUDGED = REFUSED | {Outcome.ABSTAIN}
"""Nothing was judged."""

_QUIET = UNJUDGED | {Outcome.PASS, Outcome.KNOWN, Outcome.UNSTABLE}
