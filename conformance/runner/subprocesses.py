"""Subprocesses of a command: they end with it, however it ends, and get time to write their record."""

import os
import signal
import subprocess
import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

VARIABLES = {
    "PYTHONHASHSEED": "0",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false",
    "TF_CPP_MIN_LOG_LEVEL": "2",
}
"""Variables of the environments of tox, under which the baselines were written."""

GRACE_S = 30.0
"""Seconds between SIGTERM and SIGKILL."""

_GUARD = """
while read -r line; do :; done
kill -s TERM "$0"
left="$1"
while [ "$left" -gt 0 ] && kill -s 0 -- "-$0"; do
    sleep 1
    left=$((left - 1))
done
kill -s KILL -- "-$0"
"""


def run_to_end(command: Sequence[str], folder: Path, *, silent: bool = False) -> int:
    """Runs a command in a new process group, which has ended when this returns or raises.

    It has `VARIABLES` where they are not set otherwise. If an exception ends the wait (Ctrl-C, a signal under
    `ending_signals`), the command gets SIGTERM and `GRACE_S`.

    Args:
        silent: without its output and without input.

    Returns:
        Its exit status.
    """
    stream = subprocess.DEVNULL if silent else None
    process = subprocess.Popen(
        command,
        cwd=folder,
        env={**VARIABLES, **os.environ},
        process_group=0,
        stdin=stream,
        stdout=stream,
        stderr=stream,
    )
    try:
        with guarded(process.pid):
            return _ended(process)
    finally:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def killed_by(status: int) -> str:
    """The name of the signal that ended a process with this exit status, "" if none did."""
    try:
        return signal.Signals(-status).name
    except ValueError:
        return "" if status >= 0 else f"signal {-status}"


def _ended(process: subprocess.Popen[bytes]) -> int:
    try:
        return process.wait()
    except BaseException:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_S)
        raise


@contextmanager
def guarded(group: int) -> Generator[None]:
    """Within the context, a process group ends if this process dies: SIGTERM to its leader, after `GRACE_S` SIGKILL to
    all.

    A shell in a new session does so when the other end of a pipe closes.
    """
    words = ["/bin/sh", "-c", _GUARD, str(group), str(int(GRACE_S))]
    guard = subprocess.Popen(
        words,
        cwd="/",
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield
    finally:
        guard.kill()
        guard.communicate()


@contextmanager
def ending_signals(*, once: bool = False) -> Generator[None]:
    """Within the context, SIGTERM and SIGHUP raise KeyboardInterrupt, as Ctrl-C does.

    Args:
        once: the first of the three does, and those that follow do nothing, so that they interrupt no ending.
    """
    came = False

    def end(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        nonlocal came
        if not (once and came):
            came = True
            raise KeyboardInterrupt

    changed = {}
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGHUP, *([signal.SIGINT] if once else [])):
            heeded = signal.getsignal(number)
            if heeded is signal.SIG_DFL or (once and heeded is not signal.SIG_IGN):
                changed[number] = signal.signal(number, end)
    try:
        yield
    finally:
        for number, handler in changed.items():
            signal.signal(number, handler)
