"""Ranks without a framework: trainers that raise, hang, print or end their process on request."""

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from frameworks.base import Arguments
from frameworks.contract import Capability, Unsupported
from frameworks.ranks import Limits, RemoteRankGroup, WorkerGroup, group_seconds, worker_group_of
from frameworks.ranks.messages import Answer
from frameworks.ranks.worker_group import RankProcess
from tests.support.suite_runs import assert_ended, hang_limit


class StrangeError(Exception):
    """An exception that cannot be unpickled: its arguments are not those of its constructor."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")


class ToyTrainer:
    """A run that adds numbers up, with a method for each misbehaviour."""

    def __init__(self, rank: int, start: int) -> None:
        self.rank = rank
        self.total = start

    def add(self, value: int, *, times: int = 1) -> tuple[int, int]:
        self.total += value * times
        return self.rank, self.total

    def echo(self, value: Any) -> Any:
        return value

    def environment(self, name: str) -> str | None:
        return os.environ.get(name)

    def sleep(self, seconds: float) -> int:
        time.sleep(seconds)
        return self.rank

    def hold(self, seconds: int) -> None:
        """Sleeps while holding the interpreter lock."""
        ctypes.PyDLL(None).sleep(seconds)

    def interrupt(self) -> None:
        """Interrupts the parent process once, without an answer."""
        if self.rank == 0:
            os.kill(os.getppid(), signal.SIGALRM)
        time.sleep(3600)

    def fail(self, error: str) -> None:
        match error:
            case "value":
                raise ValueError(f"of rank {self.rank}")
            case "key":
                raise KeyError("no such thing")
            case "key-later":
                time.sleep(0.3)
                raise KeyError("no such thing")
            case "unsupported":
                raise Unsupported(Capability.RANKS_HYBRID, "no mesh", attempt=lambda: True)
            case "strange":
                raise StrangeError(1, 2)
            case "local":
                raise type("Local", (Exception,), {})("cannot be pickled")

    def unpicklable(self) -> Any:
        return lambda: None

    def leave(self, end: str) -> None:
        print(f"rank {self.rank} leaves\n")
        match end:
            case "system-exit":
                sys.exit(3)
            case "exit":
                os._exit(4)
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "interrupt":
                raise KeyboardInterrupt

    def start_child(self, method: str) -> int:
        """Starts a child, which inherits every open file if `method` is "fork"; returns its process id."""
        if method == "fork":
            child = os.fork()
            if child == 0:
                time.sleep(60)
                os._exit(0)
            return child
        return subprocess.Popen(["sleep", "60"]).pid

    def chatter(self) -> str:
        """Writes to standard output and error, and returns standard input."""
        os.write(1, b"\x80garbage\n" * 1000)
        print("more of it", file=sys.stderr)
        return sys.stdin.read()


class AllRanksTrainer:
    """The trainer of a process that is several ranks."""

    def __init__(self, trainers: Sequence[ToyTrainer]) -> None:
        self.trainers = trainers

    def ask(self, verb: str, arguments: Sequence[Arguments]) -> list[Any]:
        pairs = zip(self.trainers, arguments, strict=True)
        return [getattr(trainer, verb)(*own.arguments, **own.named) for trainer, own in pairs]


class Toy:
    """One rank; ranks meet by files in a folder."""

    def __init__(self, rank: int, count: int, folder: Path, device: str, mode: str) -> None:
        self.rank, self.count, self.folder = rank, count, folder
        self.meetings = 0
        if device == "broken":
            raise OSError("no such device")
        if device == "broken-1" and rank == 1:
            raise OSError("no such device")
        if mode == "slow":
            time.sleep(3600)
        self.barrier()

    def trainer(self, model: int, recipe: str, weights: Any) -> Any:
        if recipe == "refused":
            raise Unsupported(Capability.RANKS_FULL, "not here")
        return ToyTrainer(self.rank, model if weights is None else weights)

    def barrier(self) -> None:
        self.meetings += 1
        (self.folder / f"{self.meetings}-{self.rank}").touch()
        until = time.monotonic() + group_seconds()
        while len(list(self.folder.glob(f"{self.meetings}-*"))) < self.count:
            if time.monotonic() > until:
                raise RuntimeError("the other ranks did not reach the barrier")
            time.sleep(0.005)


class ToyThatMeetsOnce(Toy):
    """Ranks whose barrier fails from the second time on."""

    def barrier(self) -> None:
        if self.meetings:
            raise RuntimeError("connection closed by peer")
        super().barrier()


class ToyOfAllRanks(Toy):
    """All ranks in one process."""

    def trainer(self, model: int, recipe: str, weights: Any) -> Any:
        first = super().trainer(model, recipe, weights)
        return AllRanksTrainer([first, *(ToyTrainer(rank, first.total) for rank in range(1, self.count))])

    def barrier(self) -> None:
        """Returns at once: all ranks are in this process."""


TOY = "tests.support.toy_ranks:Toy"
PATIENT = Limits(hang_limit(60.0), hang_limit(60.0), hang_limit(), hang_limit())


class Clock:
    """A clock of worker groups that stands until ranks have answered and then moves with each look.

    Attributes:
        now: its time in seconds.
    """

    def __init__(self, patch: pytest.MonkeyPatch, answers: int, step_s: float) -> None:
        """Replaces the clock of all groups; it moves by `step_s` seconds after this number of answers."""
        self.now = 0.0
        self._missing, self._step_s = answers, step_s
        receive = RankProcess.receive

        def receive_and_count(process: RankProcess) -> Answer:
            answer = receive(process)
            self._missing -= 1
            return answer

        patch.setattr(RankProcess, "receive", receive_and_count)
        patch.setattr("frameworks.ranks.worker_group.monotonic", self._look)

    def _look(self) -> float:
        if self._missing <= 0:
            self.now += self._step_s
        return self.now


def toy_group(count: int = 2, kind: str = TOY, processes: int | None = None, **variables: str) -> WorkerGroup:
    return worker_group_of(kind, count, "cpu", "", variables, processes, limits=PATIENT)


def rank_group(worker_group: WorkerGroup, start: int = 0, recipe: str = "") -> RemoteRankGroup:
    return RemoteRankGroup(worker_group, worker_group.make([(start, recipe, None)] * len(worker_group.pids)))


def for_each_rank(*arguments: Any) -> list[Arguments]:
    """One argument for each rank."""
    return [Arguments((argument,)) for argument in arguments]


def assert_clean(worker_group: WorkerGroup, pids: Sequence[int]) -> None:
    """Asserts that an ended group left neither processes nor files, and that the next one works."""
    assert not worker_group.alive
    assert_ended(pids)
    assert not worker_group._folder.exists()
    successor = toy_group()
    assert successor is not worker_group
    assert rank_group(successor).ask("add", for_each_rank(1, 2)) == ((0, 1), (1, 2))
