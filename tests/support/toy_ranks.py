"""Workers of no framework, whose trainers do to their processes what a rank can do."""

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
from tests.support.suite_runs import assert_gone, hang_limit


class StrangeError(Exception):
    """Cannot be made again from its arguments."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")


class ToyTrainer:
    """A run that adds up, and misbehaves as it is told."""

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
        """Sleeps where no other thread of Python can run."""
        ctypes.PyDLL(None).sleep(seconds)

    def interrupt(self) -> None:
        """Interrupts the process that asks, once, and does not answer."""
        if self.rank == 0:
            os.kill(os.getppid(), signal.SIGALRM)
        time.sleep(3600)

    def fail(self, what: str) -> None:
        match what:
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

    def leave(self, how: str) -> None:
        print(f"rank {self.rank} leaves\n")
        match how:
            case "system-exit":
                sys.exit(3)
            case "exit":
                os._exit(4)
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "interrupt":
                raise KeyboardInterrupt

    def start_child(self, how: str) -> int:
        """A process of the rank's own, which a fork lets inherit everything; its number."""
        if how == "fork":
            child = os.fork()
            if child == 0:
                time.sleep(60)
                os._exit(0)
            return child
        return subprocess.Popen(["sleep", "60"]).pid

    def chatter(self) -> str:
        """Writes to what a rank does not use, and reads from it."""
        os.write(1, b"\x80garbage\n" * 1000)
        print("more of it", file=sys.stderr)
        return sys.stdin.read()


class Together:
    """The trainer of a process that is several ranks."""

    def __init__(self, trainers: Sequence[ToyTrainer]) -> None:
        self.trainers = trainers

    def ask(self, verb: str, arguments: Sequence[Arguments]) -> list[Any]:
        pairs = zip(self.trainers, arguments, strict=True)
        return [getattr(trainer, verb)(*own.arguments, **own.named) for trainer, own in pairs]


class Toy:
    """One rank; ranks meet in the folder."""

    def __init__(self, rank: int, count: int, folder: Path, device: str, mode: str) -> None:
        self.rank, self.count, self.folder = rank, count, folder
        self.met = 0
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
        self.met += 1
        (self.folder / f"{self.met}-{self.rank}").touch()
        until = time.monotonic() + group_seconds()
        while len(list(self.folder.glob(f"{self.met}-*"))) < self.count:
            if time.monotonic() > until:
                raise RuntimeError("the others did not come")
            time.sleep(0.005)


class Apart(Toy):
    """Ranks that do not meet again."""

    def barrier(self) -> None:
        if self.met:
            raise RuntimeError("connection closed by peer")
        super().barrier()


class ToyTogether(Toy):
    """All ranks in one process."""

    def trainer(self, model: int, recipe: str, weights: Any) -> Any:
        first = super().trainer(model, recipe, weights)
        return Together([first, *(ToyTrainer(rank, first.total) for rank in range(1, self.count))])

    def barrier(self) -> None:
        """All are here."""


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

        def receive_and_count(process: RankProcess) -> Answer:
            answer = receive(process)
            self._left -= 1
            return answer

        patch.setattr(RankProcess, "receive", receive_and_count)
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


def assert_clean(worker_group: WorkerGroup, pids: Sequence[int]) -> None:
    """Nothing of an ended crew is left, and the next one works."""
    assert not worker_group.alive
    assert_gone(pids)
    assert not worker_group._folder.exists()
    follower = toy()
    assert follower is not worker_group
    assert rank_group(follower).ask("add", each(1, 2)) == ((0, 1), (1, 2))
