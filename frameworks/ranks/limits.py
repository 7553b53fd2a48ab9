"""How long is waited for ranks: the framework's own limit lies inside the one for a command."""

from __future__ import annotations

import os
from dataclasses import dataclass

GROUP_SECONDS = "CONFORMANCE_GROUP_S"
"""The variable that tells a member how long a collective operation may wait for the other ranks."""


@dataclass(frozen=True)
class Limits:
    """Seconds, each longer than those before it.

    Attributes:
        group_s: a collective operation waits for the other ranks; the framework raises then.
        grace_s: how much longer than `group_s` the others may take once a rank has raised.
        answer_s: every rank has answered a command.
        start_s: every rank has imported its framework and joined the group.
    """

    group_s: float = 20.0
    grace_s: float = 3.0
    answer_s: float = 60.0
    start_s: float = 120.0


LIMITS = Limits()


def group_seconds() -> float:
    """Inside a rank: the limit that its framework's collective operations have to be given."""
    return float(os.environ.get(GROUP_SECONDS, LIMITS.group_s))
