"""`WorkerGroup`: the processes of several ranks, which start and end together, their folders and their pool."""

import atexit
import fcntl
import os
import pickle
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from itertools import count as numbers
from multiprocessing.connection import Connection, wait
from pathlib import Path
from time import monotonic
from typing import Any, NoReturn
from weakref import WeakSet, finalize

from fixtures.model import Window
from frameworks.base import Arguments, BaseRankGroup, with_items
from frameworks.contract import BlockWeights, MeshCase, MeshUpdate, PipelineCase, RankFailed, Stop, Update
from frameworks.ranks.messages import GROUP_SECONDS, LIMITS, Answer, Command, Limits, Opening

PREFIX = "ranks-"
ROOT = Path(__file__).resolve().parents[2]
LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"
QUIET = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": LOOPBACK}
REAP_S = 10.0
"""Seconds to wait for a killed process before it is left unreaped."""
BEAT_S = 0.2
"""Seconds between liveness checks of silent processes; a child that keeps the connection open hides a process' end."""
LEAVE_S = 2.0
"""Seconds that a process may take to end after the command, or after it has closed its connection."""
LONGEST = 300
"""Largest number of characters of a rank's last output line in a message."""
MOST = 4
"""Largest number of worker groups that run at a time."""
_LOCK = "owner"


class WorkerGroupFolder:
    """An empty folder for this process, which holds a lock in it.

    Attributes:
        path: of the folder.
    """

    def __init__(self, prefix: str = PREFIX) -> None:
        """Creates the folder, and removes folders of dead processes with the same prefix."""
        _remove_stale(Path(tempfile.gettempdir()), prefix)
        self.path = Path(tempfile.mkdtemp(prefix=prefix))
        new = self.path / "locking"
        self._lock = new.open("wb")
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        new.rename(self.path / _LOCK)

    def remove(self) -> None:
        """Removes the folder and its content."""
        shutil.rmtree(self.path, ignore_errors=True)
        self.let_go()

    def let_go(self) -> None:
        """Closes the lock; another process that has it open keeps it."""
        self._lock.close()


def _remove_stale(among: Path, prefix: str) -> None:
    """Removes folders whose lock is free. A folder without a lock is being created, or belongs to another program."""
    for folder in among.glob(f"{prefix}*"):
        # OSError: the folder has no lock, or a live process holds it.
        with suppress(OSError), (folder / _LOCK).open("r+b") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)


class RankProcess:
    """A worker process with one or several ranks.

    Attributes:
        name: for messages.
        ranks: its ranks.
        connection: the connection for its answers.
    """

    def __init__(
        self, name: str, ranks: tuple[int, ...], log: Path, environment: Mapping[str, str], stuck_s: float
    ) -> None:
        """Starts the process; `stuck_s` is the timeout in seconds for the rest of a partly transferred message."""
        self.name = name
        self.ranks = ranks
        self._log = log
        self._swept = False
        parent_end, child_end = socket.socketpair()
        read_end, write_end = os.pipe()
        self._lifeline = open(write_end, "wb", buffering=0)  # noqa: SIM115 - it is closed where the process ends
        for option in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
            parent_end.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", int(stuck_s), int(stuck_s % 1 * 1e6)))
        self.connection = Connection(parent_end.detach())
        command = [sys.executable, "-u", "-m", "frameworks.ranks.worker_main", str(child_end.fileno()), str(read_end)]
        try:
            with log.open("wb") as output:
                self._process = subprocess.Popen(
                    command,
                    cwd=ROOT,
                    env={**os.environ, **QUIET, **environment},
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    pass_fds=(child_end.fileno(), read_end),
                    start_new_session=True,
                )
        except BaseException:
            self.let_go()
            raise
        finally:
            child_end.close()
            os.close(read_end)

    @property
    def pid(self) -> int:
        """Its process id, which is also the id of its process group."""
        return self._process.pid

    def send(self, command: Command) -> None:
        """Sends a command.

        Raises:
            OSError: the process is dead or does not read; BlockingIOError in the second case.
        """
        self.connection.send_bytes(pickle.dumps(command))

    def receive(self) -> Answer:
        """The next answer, to any command.

        Raises:
            EOFError: the process is dead.
            OSError: an answer is incomplete.
        """
        answer: Answer = pickle.loads(self.connection.recv_bytes())
        return answer

    def ending(self, wait_s: float = 0.0) -> str | None:
        """A description of how the process has ended; None if it has not ended after `wait_s` seconds."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(wait_s)
        code = self._process.returncode
        if code is None:
            return None
        self._sweep()
        if code >= 0:
            return f"ended with exit status {code}"
        names = {number.value: number.name for number in signal.Signals}
        return f"was ended by {names.get(-code, f'signal {-code}')}"

    def last_line(self) -> str:
        """The last line that it printed, "" without one."""
        with self._log.open("rb") as log:
            log.seek(max(0, self._log.stat().st_size - 16 * LONGEST))
            lines = [line.strip() for line in log.read().decode("utf-8", "replace").splitlines()]
        last = next((line for line in reversed(lines) if line), "")
        return "".join(char if char.isprintable() else " " for char in last)[:LONGEST]

    def kill(self) -> None:
        """Kills it and its descendants, and reaps it."""
        self._sweep()
        with suppress(subprocess.TimeoutExpired):  # a process that waits for its device in the kernel cannot end yet
            self._process.wait(REAP_S)
        self.let_go()

    def _sweep(self) -> None:
        """Kills the process group, once: its id may be reused later."""
        if not self._swept:
            self._swept = True
            with suppress(ProcessLookupError, PermissionError):  # PermissionError: on macOS, if only zombies are left
                os.killpg(self.pid, signal.SIGKILL)

    def let_go(self) -> None:
        """Closes this process' ends of the shared pipes."""
        self.connection.close()
        self._lifeline.close()


def start_guardian(folder: Path, pids: Sequence[int]) -> subprocess.Popen[bytes]:
    """Starts a shell that kills ranks and removes their folder if their parent dies.

    A rank detects this itself too, unless it hangs without releasing the interpreter's lock.
    """
    script = 'cat >/dev/null; kill -s KILL -- "$@" 2>/dev/null; rm -rf -- "$0"'
    return subprocess.Popen(
        ["/bin/sh", "-c", script, str(folder), *(f"-{pid}" for pid in pids)],
        cwd="/",
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


class WorkerGroup:
    """A group of worker processes. Every command goes to all of them, and all of them answer. If one dies, does not
    answer in time, or raises alone, all are ended at once, and the group cannot be used any more.

    Attributes:
        count: number of ranks.
        over: reason why the group has ended; None while it can be used.
    """

    def __init__(
        self,
        kind: str,
        count: int,
        device: str,
        mode: str,
        environment: Mapping[str, str],
        *,
        processes: int | None = None,
        limits: Limits = LIMITS,
    ) -> None:
        """Starts the ranks and waits until they have connected.

        Args:
            kind: the `RankWorker` class as package.module:Class.
            environment: additional environment variables of the ranks.
            processes: number of processes, with equally many ranks each; None for one per rank.
        Raises:
            RankFailed: a rank died or was not ready in time.
            Exception: the exception of the first rank that raised, such as ImportError.
        """
        processes = count if processes is None else processes
        if count < 1 or processes < 1 or count % processes:
            raise ValueError(f"cannot divide {count} ranks equally among {processes} processes")
        self.count = count
        self.limits = limits
        self.over: str | None = None
        self._share = count // processes
        self._owner = os.getpid()
        self._commands, self._runs = numbers(1), numbers(1)
        self._dropped: deque[int] = deque()
        self._guardian: subprocess.Popen[bytes] | None = None
        self._processes: list[RankProcess] = []
        self._place = WorkerGroupFolder()
        self._folder = self._place.path
        _worker_groups.add(self)
        try:
            self._start(kind, device, mode, {**environment, GROUP_SECONDS: str(limits.group_s)})
        except BaseException as error:
            self._end(f"the ranks did not start: {error}")
            raise

    def _start(self, kind: str, device: str, mode: str, environment: Mapping[str, str]) -> None:
        meeting = self._folder / "meeting"
        meeting.mkdir()
        for rank in range(0, self.count, self._share):
            name = f"rank {rank}" if self._share == 1 else f"the process of ranks {rank} to {rank + self._share - 1}"
            log = self._folder / f"rank-{rank}.txt"
            ranks = tuple(range(rank, rank + self._share))
            self._processes.append(RankProcess(name, ranks, log, environment, self.limits.answer_s))
        self._guardian = start_guardian(self._folder, [process.pid for process in self._processes])
        search = tuple(os.path.abspath(path) for path in sys.path)
        openings = [
            Opening(kind, rank, self._share, self.count, folder=meeting, device=device, mode=mode, search=search)
            for rank in range(0, self.count, self._share)
        ]
        self._command("load", [(opening,) for opening in openings], self.limits.start_s)
        self._command("join", [()] * len(openings), self.limits.start_s)

    @property
    def alive(self) -> bool:
        """True unless this process knows that the group cannot be used."""
        usable = self.over is None and self._owner == os.getpid()
        return usable and all(process.ending() is None for process in self._processes)

    @property
    def pids(self) -> tuple[int, ...]:
        """Process ids of the ranks' processes."""
        return tuple(process.pid for process in self._processes)

    def make(self, arguments: Sequence[tuple[Any, Any, Any]]) -> int:
        """Creates a run from model, recipe and weights, given for each process; returns its number.

        Raises:
            RankFailed: a rank died or did not answer in time.
            Exception: the exception of the first rank that raised; the run does not exist then.
        """
        run = next(self._runs)
        try:
            self._command("make", [(run, *own) for own in arguments], self.limits.answer_s)
        except BaseException:
            self.drop(run)
            raise
        return run

    def ask(
        self, number: int, verb: str, arguments: Sequence[Arguments], *, stop: tuple[int, Stop] | None = None
    ) -> tuple[Any, ...]:
        """Calls a method of run `number` on every rank concurrently, with each rank's arguments; returns the results.

        Args:
            stop: a rank that fails with its process instead of the call, and its failure; None for none.
        Raises:
            RankFailed: a rank died or did not answer in time.
            Exception: the exception of the first rank that raised. The group stays usable if all raised the same type.
        """
        if len(arguments) != self.count:
            raise ValueError(f"{verb}: got arguments for {len(arguments)} ranks, want {self.count}")
        stops, how = stop or (-1, None)
        calls = [
            (number, verb, tuple(arguments[rank : rank + self._share]), how if stops in process.ranks else None)
            for rank, process in zip(range(0, self.count, self._share), self._processes, strict=True)
        ]
        return tuple(chain.from_iterable(self._command("ask", calls, self.limits.answer_s)))

    def call(self, function: str, *arguments: Any) -> tuple[Any, ...]:
        """Calls a function, as package.module:function, in every process; returns one result for each process.

        Raises:
            RankFailed, Exception: as in `ask`.
        """
        return tuple(self._command("call", [(function, arguments)] * len(self._processes), self.limits.answer_s))

    def run_numbers(self) -> tuple[tuple[int, ...], ...]:
        """The numbers of the runs on each rank."""
        return tuple(
            chain.from_iterable(self._command("run_numbers", [()] * len(self._processes), self.limits.answer_s))
        )

    def drop(self, number: int) -> None:
        """Drops a run; the ranks learn of it with the next command."""
        self._dropped.append(number)

    def close(self, why: str = "they were closed") -> None:
        """Ends the ranks; does nothing if they have ended, or belong to the process from which this one was forked."""
        if self.over is not None or self._owner != os.getpid():
            return
        try:
            with suppress(RankFailed):  # a dead rank needs no command to end
                self._send(_pickle_calls("close", [()] * len(self._processes)))
            until = monotonic() + LEAVE_S
            for process in self._processes:
                process.ending(max(0.0, until - monotonic()))
        finally:
            self._end(why)

    # one command

    def _command(self, method: str, arguments: Sequence[tuple[Any, ...]], limit_s: float) -> list[Any]:
        """Calls a method of every process' `CommandHandler` and returns the results."""
        self._check()
        calls = _pickle_calls(method, arguments)
        try:
            answers = self._collect_answers(self._send(calls), limit_s)
            raised = {process: answer.error() for process, answer in answers.items() if answer.raised}
        except BaseException as error:
            self._end(f"a command was interrupted by {type(error).__name__}")
            raise
        if not raised:
            return [answers[process].value() for process in self._processes]
        process = next(iter(raised))
        if len(raised) == len(self._processes) and len({type(error) for error in raised.values()}) == 1:
            process = self._processes[0]
            if method not in ("load", "join"):
                self._check_in_step()
        else:
            others = ", ".join(own.name for own in self._processes if own not in raised)
            note = f"{others} did not raise" if others else "not all raised the same"
            raised[process].add_note(f"{note}; the rank group has terminated")
            self._end(f"{process.name} raised {type(raised[process]).__name__}, and {note}")
        raised[process].add_note(f"raised by {process.name}")
        raise raised[process]

    def _check(self) -> None:
        if self._owner != os.getpid():
            raise RuntimeError("these ranks belong to the process from which this one was forked; start new ones")
        if self.over is not None:
            raise RankFailed(f"rank group has terminated: {self.over}")

    def _check_in_step(self) -> None:
        """Ends the group if its ranks cannot synchronise any more, after all of them raised."""
        limit_s = self.limits.group_s + self.limits.grace_s
        try:
            answers = self._collect_answers(self._send(_pickle_calls("barrier", [()] * len(self._processes))), limit_s)
            raised = any(answer.raised for answer in answers.values())
        except RankFailed:  # `_collect_answers` or `_send` has ended the group
            return
        except BaseException as error:
            self._end(f"a command was interrupted by {type(error).__name__}")
            raise
        if raised:
            self._end("the ranks could not synchronise after an exception")

    def _send(self, calls: Sequence[bytes]) -> int:
        number = next(self._commands)
        dropped = tuple(self._dropped.popleft() for _ in range(len(self._dropped)))
        for process, call in zip(self._processes, calls, strict=True):
            try:
                process.send(Command(number, dropped, call))
            except OSError as error:
                self._fail(process, error)
        return number

    def _collect_answers(self, number: int, limit_s: float) -> dict[RankProcess, Answer]:
        """The answers to a command as they arrive, of all processes unless one raised and others stayed silent."""
        answers: dict[RankProcess, Answer] = {}
        deadline = monotonic() + limit_s
        raised = False
        while silent := {process.connection: process for process in self._processes if process not in answers}:
            ready = wait(list(silent), max(0.0, min(deadline - monotonic(), BEAT_S)))
            for process in (own for connection, own in silent.items() if connection in ready):
                try:
                    answer = process.receive()
                except (EOFError, OSError) as error:
                    self._fail(process, error)
                if answer.number != number:
                    continue
                answers[process] = answer
                if answer.raised and not raised:
                    raised = True
                    deadline = min(deadline, monotonic() + self.limits.group_s + self.limits.grace_s)
            if ready:
                continue
            for process in self._processes:
                if process.ending() is not None:
                    self._fail(process)
            if monotonic() >= deadline:
                if raised:
                    break
                names = " and ".join(process.name for process in silent.values())
                self._give_up(f"{names} did not answer within {limit_s:g} s", list(silent.values()))
        return answers

    def _fail(self, process: RankProcess, error: Exception | None = None) -> NoReturn:
        """Ends all processes, because one is dead or unresponsive."""
        if isinstance(error, BlockingIOError):
            self._give_up(f"{process.name} did not complete a message within {self.limits.answer_s:g} s", [process])
        self._give_up(f"{process.name} {process.ending(LEAVE_S) or 'closed its connection'}", [process])

    def _give_up(self, what: str, processes: Sequence[RankProcess]) -> NoReturn:
        last = next(filter(None, (process.last_line() for process in processes)), "")
        message = f"{what}; its last output line: {last}" if last else what
        self._end(message)
        raise RankFailed(message, tuple(rank for process in processes for rank in process.ranks)) from None

    def _end(self, why: str) -> None:
        """Ends every remaining process, once."""
        if self.over is not None:
            return
        self.over = why
        for process in self._processes:
            process.kill()
        self._place.remove()
        if self._guardian is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._guardian.pid, signal.SIGKILL)
            self._guardian.wait()
            self._let_guardian_go()

    def _let_guardian_go(self) -> None:
        """Closes this process' end of the pipe that the guardian watches."""
        if self._guardian is not None and self._guardian.stdin is not None:
            self._guardian.stdin.close()

    def let_go(self) -> None:
        """In a forked copy of the process: closes handles that would keep the ranks alive after the process has
        ended."""
        for process in self._processes:
            process.let_go()
        self._place.let_go()
        self._let_guardian_go()


def _pickle_calls(method: str, arguments: Sequence[tuple[Any, ...]]) -> list[bytes]:
    return [pickle.dumps((method, own)) for own in arguments]


_worker_groups: WeakSet[WorkerGroup] = WeakSet()


def _let_go() -> None:
    for worker_group in list(_worker_groups):
        worker_group.let_go()


os.register_at_fork(after_in_child=_let_go)


_groups: dict[tuple[Any, ...], WorkerGroup] = {}
"""The running worker groups by their properties, least recently used first."""


def worker_group_of(
    kind: str,
    count: int,
    device: str,
    mode: str,
    environment: Mapping[str, str],
    processes: int | None = None,
    *,
    limits: Limits = LIMITS,
) -> WorkerGroup:
    """The cached worker group with these properties, or a new one; arguments and errors as for `WorkerGroup`.

    Beyond `MOST` groups, the least recently used one is ended with all its runs.
    """
    key = (kind, count, device, mode, tuple(sorted(environment.items())), processes, limits)
    worker_group = _groups.pop(key, None)
    if worker_group is None or not worker_group.alive:
        unused = [worker_group] if worker_group is not None else []
        unused += [_groups.pop(next(iter(_groups))) for _ in range(len(_groups) - MOST + 1)]
        for group in unused:
            group.close("ranks of another kind or number were started since")
        worker_group = WorkerGroup(kind, count, device, mode, environment, processes=processes, limits=limits)
    _groups[key] = worker_group
    return worker_group


def close_all(why: str = "they were closed") -> None:
    """Ends this process' worker groups."""
    while _groups:
        _, worker_group = _groups.popitem()
        worker_group.close(why)


atexit.register(close_all)


class RemoteRankGroup(BaseRankGroup):
    """One run on a worker group, which drops the run when this object is closed or garbage collected."""

    def __init__(self, worker_group: WorkerGroup, number: int) -> None:
        """Wraps the run with the number that `worker_group.make` returned."""
        self.worker_group = worker_group
        self.count = worker_group.count
        self.limit_s = worker_group.limits.group_s + worker_group.limits.grace_s
        self._number = number
        self._drop = finalize(self, worker_group.drop, number)
        self._drop.atexit = False

    def ask(self, verb: str, arguments: Sequence[Arguments]) -> tuple[Any, ...]:
        self._check()
        return self.worker_group.ask(self._number, verb, arguments)

    def fail_rank(self, windows: Sequence[Window], rank: int, how: Stop) -> tuple[Update | None, ...]:
        self._check()
        return self.worker_group.ask(self._number, "update_share", with_items(windows), stop=(rank, how))

    def _check(self) -> None:
        if not self._drop.alive:
            raise ValueError("this run is closed; start a new one")

    def save(self, path: Path) -> None:
        super().save(path.absolute())  # the ranks have another working folder

    def restore(self, path: Path) -> None:
        super().restore(path.absolute())

    def close(self) -> None:
        self._drop()


class RemoteMeshes:
    """Meshes, and pipelines if the module has them; each process returns the views of its ranks, or its gradients."""

    def __init__(self, start: Callable[[], WorkerGroup], module: str) -> None:
        self._start, self._module = start, module

    def update(self, case: MeshCase) -> tuple[MeshUpdate, ...]:
        return tuple(chain.from_iterable(self._start().call(f"{self._module}:update", case)))

    def reports_unknown_name(self, weights: BlockWeights) -> bool:
        return all(self._start().call(f"{self._module}:reports_unknown_name", weights))

    def gradients(self, case: PipelineCase) -> BlockWeights:
        stages = self._start().call(f"{self._module}:pipeline_gradients", case)
        return {name: gradient for stage in stages for name, gradient in stage.items()}
