"""Installing by uv, or by plain pip where uv is missing or `CONFORMANCE_INSTALLER=pip` asks for it."""

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from frameworks.installer import uv
from frameworks.installer.distributions import Unavailable

INSTALLER = "CONFORMANCE_INSTALLER"
"""Environment variable: "uv", the default where it is installed, or "pip", which has pip's settings."""

_NO_EXTRA = re.compile(r"^warning: (.* does not (?:provide the|have an) extra .*)", re.IGNORECASE | re.MULTILINE)


def by_uv() -> bool:
    """Return whether uv is to install.

    Raises:
        Unavailable: the variable says something else, or uv is not installed.
    """
    there = uv.program() is not None
    asked = os.environ.get(INSTALLER) or ("uv" if there else "pip")
    if asked not in ("pip", "uv"):
        raise Unavailable(f"{INSTALLER}={asked!r} is no installer; write pip or uv")
    if asked == "uv" and not there:
        raise Unavailable(f"{INSTALLER}=uv, and uv is not installed: pip install uv")
    return asked == "uv"


def install(requirements: Sequence[str], pins: Mapping[str, str], indexes: Sequence[str] = ()) -> None:
    """Install requirements, from these indexes too; whatever comes with them has the pinned version.

    Raises:
        Unavailable: it cannot be done, with the last error in one line, or an extra that was asked for is not there.
    """
    program = [sys.executable, "-m", "pip", "install", "--no-compile"]
    if by_uv():
        program = [str(uv.program()), "pip", "install", "--python", sys.executable, "--torch-backend=auto"]
    beside = [word for index in indexes for word in ("--extra-index-url", index)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "constraints.txt")
        path.write_text("".join(f"{name}=={version}\n" for name, version in sorted(pins.items())), encoding="utf-8")
        completed = subprocess.run(
            [*program, "--constraint", str(path), *beside, *requirements],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "PIP_NO_INPUT": "1"},
        )
    if completed.returncode:
        errors = [line for line in completed.stderr.splitlines() if line.startswith("ERROR: ")]
        named = [line.removeprefix("ERROR: ") for line in errors if "ResolutionImpossible" not in line]
        reason = (
            named[-1] if named else " ".join((completed.stderr.partition("error: ")[2] or completed.stderr).split())
        )
        raise Unavailable(reason or f"the installer ended with status {completed.returncode}")
    if missing := _NO_EXTRA.search(completed.stderr):
        raise Unavailable(missing[1])
