"""WorkerGroups of toy ranks for the tests of ranks as processes."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from frameworks.base import Arguments
from frameworks.ranks import Limits, RemoteRankGroup, WorkerGroup, worker_group_of
from frameworks.ranks.messages import Answer
from frameworks.ranks.worker_group import RankProcess
from tests.support.suite_runs import hang_limit, wait_for

TOY = "tests.support.toy_ranks:Toy"
PATIENT = Limits(hang_limit(60.0), hang_limit(60.0), hang_limit(), hang_limit())


class Clock:
    """A crew's clock for limits that are to pass: it stands until ranks have answered, then moves with each look.

    Attributes:
        now: what it shows, in seconds.
    """

    def __init__(self, patch: pytest.MonkeyPatch, answers: int, step_s: float) -> None:
        """Replaces the crews' own; it moves by `step_s` once so many answers have come."""
        self.now = 0.0
        self._left, self._step_s = answers, step_s
        receive = RankProcess.receive

        def received(process: RankProcess) -> Answer:
            answer = receive(process)
            self._left -= 1
            return answer

        patch.setattr(RankProcess, "receive", received)
        patch.setattr("frameworks.ranks.worker_group.monotonic", self._look)

    def _look(self) -> float:
        if self._left <= 0:
            self.now += self._step_s
        return self.now


def toy(count: int = 2, kind: str = TOY, processes: int | None = None, **variables: str) -> WorkerGroup:
    return worker_group_of(kind, count, "cpu", "", variables, processes, limits=PATIENT)


def rank_group(worker_group: WorkerGroup, start: int = 0, recipe: str = "") -> RemoteRankGroup:
    return RemoteRankGroup(worker_group, worker_group.make([(start, recipe, None)] * len(worker_group.pids)))


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


def assert_gone(pids: Sequence[int]) -> None:
    """Waits for the processes to end."""
    wait_for(lambda: all(map(gone, pids)))


def assert_clean(worker_group: WorkerGroup, pids: Sequence[int]) -> None:
    """Nothing of an ended crew is left, and the next one works."""
    assert not worker_group.alive
    assert_gone(pids)
    assert not worker_group._folder.exists()
    follower = toy()
    assert follower is not worker_group
    assert rank_group(follower).ask("add", each(1, 2)) == ((0, 1), (1, 2))
