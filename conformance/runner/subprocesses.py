"""Subprocesses of a command: their end together with it, their output; and an adapter's declarations, read in one.

`python -m conformance.runner.subprocesses NAME DEVICE` prints an adapter's declarations as JSON.
"""

import os
import re
import secrets
import signal
import subprocess
import sys
import threading
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from functools import cache
from io import BufferedIOBase, TextIOWrapper
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec

from conformance.known_failures.entries import drop_ways
from conformance.known_failures.reading import load_known
from frameworks.installer.distributions import distribution_of
from frameworks.registry import UnknownFramework, adapter_file, built_in, load

VARIABLES = {
    "PYTHONHASHSEED": "0",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false",
    "TF_CPP_MIN_LOG_LEVEL": "2",
}
"""Variables that tox sets; the baselines were written with these values."""

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
_COMMAND = re.compile(rb"\A[^!-~]*:(?=:)|#(?=#\[)")
"""Workflow commands: `::` at the beginning of a line, also after spaces, or the older `##[` anywhere."""
_BEGUN = re.compile(rb"\A[^!-~]*:?\Z|##?\Z")
"""The end of a line that the next character may turn into a command."""
_GAP = rb"\g<0>" + "\N{ZERO WIDTH SPACE}".encode()
ROOT = Path(__file__).parents[2]
LIMIT_S = 120


def run_to_end(command: Sequence[str], folder: Path, *, silent: bool = False) -> int:
    """Run a command in a new process group, which has ended when this function returns or raises.

    `VARIABLES` that are not set are added to its environment. If an exception ends the wait (Ctrl-C, a signal under
    `ending_signals`), the command gets SIGTERM, and SIGKILL after `GRACE_S`.

    Args:
        silent: whether the command has no input and its output is dropped.

    Returns:
        The command's exit status.
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
        with guard_group(process.pid):
            return _wait_for_end(process)
    finally:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def killed_by(status: int) -> str:
    """Return the name of the signal that ended a process with this exit status, "" if none did."""
    try:
        return signal.Signals(-status).name
    except ValueError:
        return "" if status >= 0 else f"signal {-status}"


def _wait_for_end(process: subprocess.Popen[bytes]) -> int:
    try:
        return process.wait()
    except BaseException:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_S)
        raise


@contextmanager
def guard_group(group: int) -> Generator[None]:
    """Within the context, a process group ends if this process dies: SIGTERM to its leader, after `GRACE_S` SIGKILL to
    all.

    A shell in a new session sends the signals when the other end of a pipe closes.
    """
    command = ["/bin/sh", "-c", _GUARD, str(group), str(int(GRACE_S))]
    guard = subprocess.Popen(
        command,
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
        once: only the first signal, Ctrl-C included, raises; later ones are ignored, so that clean-up can finish.
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


def in_job() -> bool:
    """Return whether this process runs in a job of GitHub Actions."""
    return os.environ.get("GITHUB_ACTIONS") == "true"


class _Harmless(BufferedIOBase):
    """Output stream that inserts a space into text that would be a workflow command."""

    def __init__(self, target: Any) -> None:
        self._target = target
        self._line, self._passed = b"", 0

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return int(self._target.fileno())

    def isatty(self) -> bool:
        return bool(self._target.isatty())

    def write(self, data: Any, /) -> int:
        for piece in bytes(data).splitlines(True):
            self._line += piece
            if piece.endswith((b"\n", b"\r")):
                self._pass_on()
                self._line, self._passed = b"", 0
        return len(data)

    def flush(self) -> None:
        if not _BEGUN.search(self._line):
            self._pass_on()
        self._target.flush()

    def end(self) -> None:
        """Write the rest of the pending output."""
        self._pass_on()
        self._target.flush()

    def _pass_on(self) -> None:
        harmless = _COMMAND.sub(_GAP, self._line)
        self._target.write(harmless[self._passed :])
        self._passed = len(harmless)


@contextmanager
def harmless() -> Generator[None]:
    """Within the context, text that this process prints by `sys.stdout` or `sys.stderr` is no workflow command."""
    with ExitStack() as stack:
        for stream, redirect in ((sys.stdout, redirect_stdout), (sys.stderr, redirect_stderr)):
            if in_job() and isinstance(stream, TextIOWrapper):
                stream.flush()
                target: Any = _Harmless(stream.buffer)
                stack.callback(target.end)
                wrapper = TextIOWrapper(target, stream.encoding, "replace", write_through=True)
                stack.callback(wrapper.detach)
                stack.enter_context(redirect(wrapper))
        yield


@contextmanager
def no_commands() -> Generator[None]:
    """Within the context, the job ignores commands of this process and its children, however they print."""
    token = secrets.token_hex(16) if in_job() else ""
    if token:
        print(f"::stop-commands::{token}", flush=True)
    try:
        yield
    finally:
        if token:
            print(f"\n::{token}::", flush=True)


@dataclass(frozen=True)
class AdapterInfo:
    """The declarations of an adapter.

    Attributes:
        modes: its modes, the default first.
        refused: reason by capability, for all capabilities that it declares as unsupported.
    """

    name: str
    version: str
    device: str
    modes: tuple[str, ...]
    supported: tuple[str, ...]
    refused: dict[str, str]


@cache
def ask(name: str, device: str = "auto") -> AdapterInfo | str:
    """Return an adapter's declarations on a device in its default mode, or one line why it cannot be loaded."""
    command = [sys.executable, "-m", "conformance.runner.subprocesses", name, device]
    try:
        completed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        return f"no answer within {LIMIT_S} s"
    lines = completed.stdout.strip().splitlines()
    if completed.returncode:
        lines_of_error = (completed.stderr.strip() or "it printed nothing").splitlines()
        return lines_of_error[-1]
    return msgspec.json.decode(lines[-1], type=AdapterInfo)


def check_mode(framework: str, mode: str, *, loadable: bool = False) -> None:
    """Refuses a mode that an adapter does not have; it is asked if neither its files of settings nor its judged series
    name the mode.

    Args:
        loadable: whether an adapter of one's own must be loadable here; else it may have any mode.

    Raises:
        ValueError: there is no such mode.
        UnknownFramework: there is no such adapter, or its modes are not known.
    """
    modes = _listed_modes(framework)
    if not mode or mode in modes:
        return
    answer = ask(framework)
    if isinstance(answer, AdapterInfo):
        modes = [*answer.modes]
    elif framework not in built_in():
        if loadable:
            raise UnknownFramework(answer)
        return
    if mode not in modes:
        raise ValueError(f"got mode {mode!r}, want a mode of {framework}, such as {', '.join(modes)}")


def _listed_modes(framework: str) -> list[str]:
    """Return the modes that an adapter's settings files name, or in which it was judged."""
    from frameworks.ways import load_ways

    file, chosen = adapter_file(framework), distribution_of(framework)
    listed = [*file.modes, *file.serial, *(mode for entry in file.absent for mode in entry.modes)]
    listed += [*(chosen.modes if chosen else ()), *(mode for way in load_ways(framework) for mode in way.modes)]
    if framework in built_in():
        listed += [drop_ways(series.mode) for series in load_known([framework]).judged.get(framework, ())]
    return [*dict.fromkeys(listed)]


def main(name: str, device: str) -> int:
    """Print the adapter's declarations; if it cannot be loaded, print one line and return 2."""
    from frameworks.contract import Capability, MissingDevice

    try:
        framework = load(name, device)
    except (UnknownFramework, MissingDevice, ValueError) as error:
        print(" ".join(str(error).split()), file=sys.stderr)
        return 2
    answers = {capability.value: framework.declares(capability) for capability in Capability}
    supported = tuple(key for key, answer in answers.items() if answer.supported)
    refused = {key: answer.reason for key, answer in answers.items() if not answer.supported}
    result = AdapterInfo(framework.name, framework.version(), framework.device, framework.modes, supported, refused)
    print(msgspec.json.encode(result).decode())
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
