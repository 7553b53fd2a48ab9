"""Output within GitHub Actions, without accidental workflow commands."""

import os
import re
import secrets
import sys
from collections.abc import Generator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from io import BufferedIOBase, TextIOWrapper
from typing import Any

_COMMAND = re.compile(rb"\A[^!-~]*:(?=:)|#(?=#\[)")
"""Workflow commands: `::` at the beginning of a line, also after spaces, or the older `##[` anywhere."""

_BEGUN = re.compile(rb"\A[^!-~]*:?\Z|##?\Z")
"""The end of a line that the next character may turn into a command."""

_GAP = rb"\g<0>" + "\N{ZERO WIDTH SPACE}".encode()


def in_job() -> bool:
    """Whether this process runs in a job of GitHub Actions."""
    return os.environ.get("GITHUB_ACTIONS") == "true"


class _Harmless(BufferedIOBase):
    """Passes output on, with a space inserted into what would be a command."""

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
        """Passes the rest on."""
        self._pass_on()
        self._target.flush()

    def _pass_on(self) -> None:
        harmless = _COMMAND.sub(_GAP, self._line)
        self._target.write(harmless[self._passed :])
        self._passed = len(harmless)


@contextmanager
def harmless() -> Generator[None]:
    """Within the context, nothing that this process prints by `sys.stdout` and `sys.stderr` is a workflow command."""
    with ExitStack() as stack:
        for stream, redirect in ((sys.stdout, redirect_stdout), (sys.stderr, redirect_stderr)):
            if in_job() and isinstance(stream, TextIOWrapper):
                stream.flush()
                target: Any = _Harmless(stream.buffer)
                stack.callback(target.end)
                made = TextIOWrapper(target, stream.encoding, "replace", write_through=True)
                stack.callback(made.detach)
                stack.enter_context(redirect(made))
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
