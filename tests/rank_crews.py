"""Crews of toy ranks for the tests of ranks as processes."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from frameworks.base import Arguments
from frameworks.ranks import Crew, Limits, RemoteCompany, crew_of

TOY = "tests.toy_ranks:Toy"
SHORT = Limits(group_s=2.0, grace_s=0.5, answer_s=30.0, start_s=60.0)
HASTY = Limits(group_s=0.5, grace_s=0.2, answer_s=0.8, start_s=60.0)
PROMPT_S = 10.0
"""Seconds that an end which is noticed takes at most, on a crowded machine too; one that is not takes `answer_s`."""


def toy(count: int = 2, kind: str = TOY, processes: int | None = None, **variables: str) -> Crew:
    return crew_of(kind, count, "cpu", "", variables, processes, limits=SHORT)


def company(crew: Crew, start: int = 0, recipe: str = "") -> RemoteCompany:
    return RemoteCompany(crew, crew.make([(start, recipe, None)] * len(crew.pids)))


def each(*arguments: Any) -> list[Arguments]:
    """One argument for each rank."""
    return [Arguments((argument,)) for argument in arguments]


def gone(pid: int) -> bool:
    """Whether a process has ended, whoever has to reap it."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return Path("/proc").is_dir()


def assert_gone(pids: Sequence[int], within: float = 10.0) -> None:
    until = time.monotonic() + within
    while left := [pid for pid in pids if not gone(pid)]:
        assert time.monotonic() < until, f"still there: {left}"
        time.sleep(0.02)


def assert_clean(crew: Crew, pids: Sequence[int]) -> None:
    """Nothing of an ended crew is left, and the next one works."""
    assert not crew.alive
    assert_gone(pids)
    assert not crew._folder.exists()
    follower = toy()
    assert follower is not crew
    assert company(follower).ask("add", each(1, 2)) == ((0, 1), (1, 2))
