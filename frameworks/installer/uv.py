"""uv, run as a command where it is installed: locks, and what goes with another version of a framework.

What goes with a version are the newest versions that were uploaded before the framework's next release and that agree
with each other by their declared requirements. What the suite itself computes with, such as NumPy, stays as it is
locked wherever those requirements admit it, so that a comparison with the pinned version is about the framework.

uv reads its own settings alone (`UV_*`, uv.toml), none of pip's.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sysconfig
import tempfile
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from frameworks.installer.distributions import InstallerInterrupted, Unavailable, check_ended


def program() -> str | None:
    """Where uv is: in this environment, or on the path."""
    return shutil.which("uv", path=os.pathsep.join((sysconfig.get_path("scripts"), os.environ.get("PATH", ""))))


def solve(requirements: Iterable[str], output: Path, *options: str, folder: Path | None = None) -> None:
    """Resolves requirements into a file; versions that it has already are kept where they can be.

    Args:
        folder: to which paths among the options are relative, this process' if None.

    Raises:
        Unavailable: uv is not installed, or there is no solution. InstallerInterrupted: a signal ended uv.
    """
    result = program()
    if result is None:
        raise Unavailable("uv is not installed")
    ended = subprocess.run(
        [result, "pip", "compile", "--quiet", "--no-annotate", *options, "--output-file", str(output), "-"],
        input="\n".join(requirements),
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
    )
    check_ended(ended.returncode, ended.stderr)
    if ended.returncode:
        raise Unavailable(" ".join(ended.stderr.removeprefix("error: ").split()) or "uv gave no reason")


def of_its_time(
    package: str,
    wanted: str,
    requirements: Sequence[str],
    asked: Mapping[str, str],
    suite: Mapping[str, str],
    others: Mapping[str, str] | None = None,
    *options: str,
) -> dict[str, str]:
    """What goes with a version of a framework, versions by normalized name, the framework's own included.

    Args:
        package: the framework's.
        requirements: the framework at that version, its companions, and what no package declares.
        asked: versions that the user asks for by normalized name; they may be newer.
        suite: locked versions of what every environment has.
        others: versions of more packages whose time counts, if it is later.
        options: further options of uv.

    Raises:
        Unavailable: uv is not installed, or there is no solution.
    """
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder, "pins.txt")
        output.write_text(_pins(suite), encoding="utf-8")
        times = [
            _next_release(name, version, Path(folder, "pylock.toml"))
            for name, version in ({package: wanted} | dict(others or {})).items()
        ]
        before = max(times) if all(times) else ""
        now = datetime.now(UTC).isoformat(timespec="seconds")
        newer = [f"--exclude-newer-package={name}={now}" for name in {*suite, *asked}]
        limits = ["--exclude-newer", before, *newer] if before else []
        solve([*requirements, *_pins(asked).splitlines()], output, "--no-header", *limits, *options)
        pins = [Requirement(line) for line in output.read_text("utf-8").splitlines()]
    return {canonicalize_name(pin.name): str(pin.specifier).removeprefix("==") for pin in pins}


def _next_release(package: str, wanted: str, output: Path) -> str:
    """When the release after a version was uploaded, "" if there is none or the index does not say."""
    try:
        solve([f"{package}>{wanted}"], output, "--no-deps", "--universal", "--resolution=lowest")
    except InstallerInterrupted:
        raise
    except Unavailable:
        return ""
    (locked,) = tomllib.loads(output.read_text("utf-8"))["packages"]
    uploads = [file["upload-time"] for file in locked.get("wheels", ()) if "upload-time" in file]
    return min(uploads).isoformat() if uploads else ""


def _pins(versions: Mapping[str, str]) -> str:
    return "".join(f"{name}=={version}\n" for name, version in sorted(versions.items()))
