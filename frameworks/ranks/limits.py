"""Timeouts of ranks: the framework's own timeout is shorter than that of a command."""

from __future__ import annotations

import os
from dataclasses import dataclass

GROUP_SECONDS = "CONFORMANCE_GROUP_S"
"""Environment variable with the timeout of collective operations."""


@dataclass(frozen=True)
class Limits:
    """Seconds, each longer than those before it.

    Attributes:
        group_s: timeout of a collective operation, after which the framework raises.
        grace_s: additional time for the others after a rank has raised.
        answer_s: timeout of a command.
        start_s: timeout for importing the framework and joining the group.
    """

    group_s: float = 20.0
    grace_s: float = 3.0
    answer_s: float = 60.0
    start_s: float = 120.0


LIMITS = Limits()


def group_seconds() -> float:
    """In a rank, the timeout for its framework's collective operations."""
    return float(os.environ.get(GROUP_SECONDS, LIMITS.group_s))
