"""Parent's side of one worker process."""

import os
import pickle
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path

from frameworks.ranks.messages import Answer, Command

ROOT = Path(__file__).resolve().parents[2]
LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"
QUIET = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": LOOPBACK}
REAP_S = 10.0
"""Seconds to wait for an ended process."""
LONGEST = 300
"""Characters quoted of a rank's last output line."""


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
        """Starts the process; `stuck_s` is how long a half-read message may wait for its other half."""
        self.name = name
        self.ranks = ranks
        self._log = log
        self._swept = False
        ours, its = socket.socketpair()
        read_end, write_end = os.pipe()
        self._lifeline = open(write_end, "wb", buffering=0)  # noqa: SIM115 - it is closed where the process ends
        for option in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
            ours.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", int(stuck_s), int(stuck_s % 1 * 1e6)))
        self.connection = Connection(ours.detach())
        words = [sys.executable, "-u", "-m", "frameworks.ranks.worker_main", str(its.fileno()), str(read_end)]
        try:
            with log.open("wb") as output:
                self._process = subprocess.Popen(
                    words,
                    cwd=ROOT,
                    env={**os.environ, **QUIET, **environment},
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    pass_fds=(its.fileno(), read_end),
                    start_new_session=True,
                )
        except BaseException:
            self.let_go()
            raise
        finally:
            its.close()
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
        """The next answer, of whatever command.

        Raises:
            EOFError: the process is dead.
            OSError: an answer is incomplete.
        """
        answer: Answer = pickle.loads(self.connection.recv_bytes())
        return answer

    def ending(self, wait_s: float = 0.0) -> str | None:
        """How the process has ended, None if it has not ended after `wait_s` seconds."""
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
        with suppress(subprocess.TimeoutExpired):  # one that waits for its device within the kernel ends when it may
            self._process.wait(REAP_S)
        self.let_go()

    def _sweep(self) -> None:
        """Kills the process group, once: its id may be reused later."""
        if not self._swept:
            self._swept = True
            with suppress(ProcessLookupError, PermissionError):  # the second from a group of zombies alone, on macOS
                os.killpg(self.pid, signal.SIGKILL)

    def let_go(self) -> None:
        """Closes this process' ends of the shared pipes."""
        self.connection.close()
        self._lifeline.close()


class Guardian:
    """A shell that kills ranks and removes their folder if their parent dies.

    A rank detects this itself too, unless it hangs without releasing the interpreter's lock.
    """

    SCRIPT = 'cat >/dev/null; kill -s KILL -- "$@" 2>/dev/null; rm -rf -- "$0"'

    def __init__(self, folder: Path, pids: Sequence[int]) -> None:
        words = ["/bin/sh", "-c", self.SCRIPT, str(folder), *(f"-{pid}" for pid in pids)]
        self._process = subprocess.Popen(
            words,
            cwd="/",
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        """Its number."""
        return self._process.pid

    def kill(self) -> None:
        """Stops it before it acts."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()
        self.let_go()

    def let_go(self) -> None:
        """Closes this process' end of the pipe that it watches."""
        if self._process.stdin is not None:
            self._process.stdin.close()
