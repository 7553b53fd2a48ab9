"""Installs packages by uv or pip, and resolves locks and the companions of other framework versions by uv.

uv reads only its own settings (`UV_*`, uv.toml), not pip's.
"""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from frameworks.installer.distributions import Unavailable

INSTALLER = "CONFORMANCE_INSTALLER"
"""Environment variable: "uv", the default if it is installed, or "pip", which uses pip's settings."""

_NO_EXTRA = re.compile(r"^warning: (.* does not (?:provide the|have an) extra .*)", re.IGNORECASE | re.MULTILINE)


def program() -> str | None:
    """Return the path of the uv program in this environment or on PATH; None without one."""
    return shutil.which("uv", path=os.pathsep.join((sysconfig.get_path("scripts"), os.environ.get("PATH", ""))))


def solve(requirements: Iterable[str], output: Path, *options: str, folder: Path | None = None) -> None:
    """Resolve requirements into a file; versions that the file already has are kept if possible.

    Args:
        folder: base of relative paths in the options; None for the working folder.

    Raises:
        Unavailable: uv is not installed, or there is no solution.
    """
    uv = program()
    if uv is None:
        raise Unavailable("uv is not installed")
    completed = subprocess.run(
        [uv, "pip", "compile", "--quiet", "--no-annotate", *options, "--output-file", str(output), "-"],
        input="\n".join(requirements),
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
    )
    if completed.returncode:
        reason = " ".join(completed.stderr.removeprefix("error: ").split())
        raise Unavailable(reason or f"uv ended with status {completed.returncode}")


def companions(
    package: str, version: str, requirements: Sequence[str], packages: Mapping[str, str], suite: Mapping[str, str]
) -> dict[str, str]:
    """Return the versions that go with a version of a framework, its own included, by normalized name.

    They are the newest versions uploaded before the framework's next release. Packages that the suite uses itself, such
    as NumPy, keep their locked version if the declared requirements permit it.

    Args:
        package: the framework's package.
        requirements: the framework at that version, its companions, and undeclared requirements.
        packages: requested versions of other packages by normalized name; they may be newer than that release.
        suite: locked versions of the packages of every environment; they may be newer than that release.

    Raises:
        Unavailable: uv is not installed, or there is no solution.
    """
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder, "pins.txt")
        output.write_text("".join(f"{name}=={pin}\n" for name, pin in sorted(suite.items())), encoding="utf-8")
        limits: list[str] = []
        if before := _next_release(package, version, Path(folder, "pylock.toml")):
            now = datetime.now(UTC).isoformat(timespec="seconds")
            newer = [f"--exclude-newer-package={name}={now}" for name in {*suite, *packages}]
            limits = ["--exclude-newer", before, *newer]
        wanted = [*requirements, *(f"{name}=={pin}" for name, pin in sorted(packages.items()))]
        solve(wanted, output, "--no-header", *limits)
        pins = [Requirement(line) for line in output.read_text("utf-8").splitlines()]
    return {canonicalize_name(pin.name): str(pin.specifier).removeprefix("==") for pin in pins}


def _next_release(package: str, version: str, output: Path) -> str:
    """Return the upload time of the release after a version, "" if there is none or the index has no time."""
    try:
        solve([f"{package}>{version}"], output, "--no-deps", "--universal", "--resolution=lowest")
    except Unavailable:
        return ""
    (locked,) = tomllib.loads(output.read_text("utf-8"))["packages"]
    uploads = [file["upload-time"] for file in locked.get("wheels", ()) if "upload-time" in file]
    return min(uploads).isoformat() if uploads else ""


def by_uv() -> bool:
    """Return whether uv installs packages, by `CONFORMANCE_INSTALLER`.

    Raises:
        Unavailable: the variable has another value, or asks for uv, which is not installed.
    """
    has_uv = program() is not None
    installer = os.environ.get(INSTALLER) or ("uv" if has_uv else "pip")
    if installer not in ("pip", "uv"):
        raise Unavailable(f"{INSTALLER}={installer!r} is no installer; write pip or uv")
    if installer == "uv" and not has_uv:
        raise Unavailable(f"{INSTALLER}=uv, and uv is not installed: pip install uv")
    return installer == "uv"


def install(requirements: Sequence[str], pins: Mapping[str, str], indexes: Sequence[str] = ()) -> None:
    """Install requirements, also from these indexes; their dependencies get the pinned versions.

    Raises:
        Unavailable: the installation failed, with the last error in one line, or a requested extra does not exist.
    """
    command = [sys.executable, "-m", "pip", "install", "--no-compile"]
    if by_uv():
        command = [str(program()), "pip", "install", "--python", sys.executable, "--torch-backend=auto"]
    options = [word for index in indexes for word in ("--extra-index-url", index)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "constraints.txt")
        path.write_text("".join(f"{name}=={version}\n" for name, version in sorted(pins.items())), encoding="utf-8")
        completed = subprocess.run(
            [*command, "--constraint", str(path), *options, *requirements],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "PIP_NO_INPUT": "1"},
        )
    if completed.returncode:
        errors = [line for line in completed.stderr.splitlines() if line.startswith("ERROR: ")]
        named = [line.removeprefix("ERROR: ") for line in errors if "ResolutionImpossible" not in line]
        text = completed.stderr.partition("error: ")[2] or completed.stderr
        reason = named[-1] if named else " ".join(text.split())
        raise Unavailable(reason or f"the installer ended with status {completed.returncode}")
    if missing := _NO_EXTRA.search(completed.stderr):
        raise Unavailable(missing[1])
