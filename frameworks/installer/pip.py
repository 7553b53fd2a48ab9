"""Installing by pip, or by uv where `CONFORMANCE_INSTALLER=uv` asks for it; refusals in one line."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from packaging.utils import canonicalize_name

from frameworks.installer import uv
from frameworks.installer.distributions import Unavailable, check_ended

INSTALLER = "CONFORMANCE_INSTALLER"
"""Environment variable: "pip", the default; "uv", which ignores pip's settings and finds torch's CUDA build; `NONE`."""

NONE = "none"
"""Nothing is installed: what is there is used."""


def by_uv() -> bool:
    """Whether uv is to install.

    Raises:
        Unavailable: the variable says something else, or uv is not installed.
    """
    asked = os.environ.get(INSTALLER) or "pip"
    if asked not in ("pip", "uv"):
        raise Unavailable(f"{INSTALLER}={asked!r} is no installer; write pip, uv or none")
    if asked == "uv" and uv.program() is None:
        raise Unavailable(f"{INSTALLER}=uv, and uv is not installed: pip install uv")
    return asked == "uv"


def install(
    requirements: Sequence[str],
    pins: Mapping[str, str],
    indexes: Sequence[str] = (),
    python: str = "",
    words: Sequence[str] = (),
) -> None:
    """Installs requirements, from these indexes too; whatever comes with them has the pinned version.

    Args:
        python: the interpreter of the environment to install into; this one's by default. It needs no pip.
        words: further options of the installer.

    Raises:
        Unavailable: it cannot be done, or an extra that was asked for is not there. InstallerEnded: a signal ended it.
    """
    if by_uv():
        program = [str(uv.program()), "pip", "install", "--python", python or sys.executable, "--torch-backend=auto"]
    else:
        program = [sys.executable, "-m", "pip", *(["--python", python] if python else []), "install"]
    ended = _run([*program, *words], requirements, pins, indexes)
    if ended.returncode:
        raise Unavailable(reason(ended))
    if lacking := re.search(r"^warning: (.* does not (?:provide the|have an) extra .*)", ended.stderr, re.I | re.M):
        raise Unavailable(lacking[1])


def resolve(
    requirements: Sequence[str], pins: Mapping[str, str], indexes: Sequence[str] = (), python: str = ""
) -> dict[str, str]:
    """What pip would install for requirements, versions by normalized name; it installs nothing.

    Raises:
        Unavailable: there is no solution. InstallerEnded: a signal ended pip.
    """
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.json")
        program = [sys.executable, "-m", "pip", *(["--python", python] if python else []), "install", "--dry-run"]
        ended = _run([*program, "--ignore-installed", "--report", str(report)], requirements, pins, indexes)
        if ended.returncode:
            raise Unavailable(reason(ended))
        chosen = [each["metadata"] for each in json.loads(report.read_bytes())["install"]]
    return {canonicalize_name(each["name"]): str(each["version"]) for each in chosen}


def _run(
    program: Sequence[str], requirements: Sequence[str], pins: Mapping[str, str], indexes: Sequence[str]
) -> subprocess.CompletedProcess[str]:
    beside = [word for index in indexes for word in ("--extra-index-url", index)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "constraints.txt")
        path.write_text("".join(f"{name}=={version}\n" for name, version in sorted(pins.items())), encoding="utf-8")
        words = [*program, "--constraint", str(path), *beside, *requirements]
        ended = subprocess.run(words, capture_output=True, text=True, check=False)
    check_ended(ended.returncode, ended.stderr)
    return ended


def reason(ended: subprocess.CompletedProcess[str]) -> str:
    """Why pip ended as it did, in one line, with the requirement that it stumbled over."""
    errors = [line[6:].strip() for line in ended.stderr.splitlines() if line.lower().startswith("error:")]
    asked = re.search(r"No matching distribution found for (\S+?)==(\S+)", ended.stderr)
    needs = re.search(rf"[ ,]{re.escape(asked[2])} Requires-Python ([^;\n]+)", ended.stderr) if asked else None
    if asked and needs:
        running = ".".join(map(str, sys.version_info[:2]))
        return f"{asked[1]} {asked[2]} wants Python {needs[1].strip()}, and this is {running}"
    conflict = re.search(r"The conflict is caused by:\n((?: {4}\S.*\n)+)", ended.stdout + ended.stderr)
    if conflict:
        return "; ".join(dict.fromkeys(line.strip() for line in conflict[1].splitlines()))
    if cause := re.search(r"cause: (.+)", ended.stderr, re.DOTALL):
        return " ".join(cause[1].split())
    named = [line for line in errors if "No matching distribution found" in line or line.startswith("Cannot install")]
    return (named or errors or ["the installer gave no reason"])[-1]
