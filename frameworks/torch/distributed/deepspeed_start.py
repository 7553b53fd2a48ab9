"""Requirements of DeepSpeed's ranks: DeepSpeed itself, and its compiled shared-memory operation."""

import os
import shutil
import subprocess
import sys
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

MODE = "deepspeed"
NOT_INSTALLED = "DeepSpeed is not installed: DS_BUILD_OPS=0 pip install --no-build-isolation deepspeed"
BUILD_S = 600.0
"""Timeout of the compilation, which takes three minutes on two busy cores."""
_OPERATION = "deepspeed_shm_comm"
_BUILD = """
from deepspeed.accelerator import get_accelerator
get_accelerator().create_op_builder("ShareMemCommBuilder").load()
"""


@cache
def is_installed() -> bool:
    """Whether DeepSpeed is installed."""
    return find_spec("deepspeed") is not None


@cache
def problem() -> str:
    """Why DeepSpeed's ranks cannot start here, "" if they can; the first call may compile for `BUILD_S`."""
    if not is_installed():
        return NOT_INSTALLED
    try:
        _prepare()
    except (RuntimeError, OSError) as error:
        return f"DeepSpeed's ranks cannot start: {error}"
    return ""


def require() -> None:
    """Raises RuntimeError if DeepSpeed's ranks cannot be started here."""
    if problem():
        raise RuntimeError(problem())


def environment() -> dict[str, str]:
    """The variables of DeepSpeed's ranks: the CPU, and this environment's tools for one that is not activated."""
    tools = str(Path(sys.executable).parent)
    return {"DS_ACCELERATOR": "cpu", "PATH": os.pathsep.join([os.environ.get("PATH", os.defpath), tools])}


def _prepare() -> None:
    """Compiles the operation that DeepSpeed's ranks would compile as they start, unless that has been done.

    Processes that prepare at the same time do so one after the other. The lock of a build that was killed, which
    PyTorch would wait for without a limit, is removed.

    Raises:
        RuntimeError: it was not compiled, or not in time.
    """
    import fcntl  # not on Windows, where DeepSpeed compiles no such operation

    from torch.utils.cpp_extension import get_default_build_root

    root = Path(os.environ.get("TORCH_EXTENSIONS_DIR") or get_default_build_root())
    root.mkdir(parents=True, exist_ok=True)
    with (root / f"{_OPERATION}.made").open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        stale = list(root.rglob(f"{_OPERATION}/lock"))
        if file.read() == _made_by() and not stale and any(root.rglob(f"{_OPERATION}.so")):
            return
        for lock in stale:
            lock.unlink()
        _build()
        file.truncate(0)
        file.write(_made_by())


def _made_by() -> str:
    """Inputs whose change makes PyTorch compile again."""
    packages = [f"{name} {version(name)}" for name in ("deepspeed", "torch")]
    return " ".join([*packages, sys.version, str(shutil.which("ninja", path=environment()["PATH"]))])


def _build() -> None:
    try:
        subprocess.run(
            [sys.executable, "-c", _BUILD],
            env={**os.environ, **environment()},
            capture_output=True,
            text=True,
            timeout=BUILD_S,
            check=True,
        )
    except (subprocess.SubprocessError, OSError) as error:
        errors = str(getattr(error, "stderr", None) or "")
        raise RuntimeError(f"DeepSpeed's {_OPERATION} could not be compiled: {error} {errors[-500:]}") from error
