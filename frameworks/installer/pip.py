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
from frameworks.installer.distributions import InstallerInterrupted, Unavailable, check_ended
from frameworks.installer.request import redacted

INSTALLER = "CONFORMANCE_INSTALLER"
"""Environment variable: "pip", the default; "uv", which ignores pip's settings and finds torch's CUDA build."""

_UNREACHED = re.compile(
    r"Could not fetch URL (?P<index>\S+: (?!4(?!08|29)\d\d ).*) - skipping"
    r"|(?P<installer>(?:.*Max retries exceeded|HTTP error (?:5\d\d|408|429) while|.*Read timed out|.*Connection broken"
    r"|.*Failed to connect to|Failed to fetch: \S+\s+cause: (?!HTTP status client error \(4(?!08|29)\d\d )).*)"
)
"""What pip's log and both installers print where a server cannot be reached or fails; nothing of what it refuses."""


def by_uv() -> bool:
    """Whether uv is to install.

    Raises:
        Unavailable: the variable says something else, or uv is not installed.
    """
    asked = os.environ.get(INSTALLER) or "pip"
    if asked not in ("pip", "uv"):
        raise Unavailable(f"{INSTALLER}={asked!r} is no installer; write pip or uv")
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
        Unavailable: it cannot be done, or an extra that was asked for is not there.
        InstallerInterrupted: a signal ended it, or an index cannot be reached.
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
        Unavailable: there is no solution. InstallerInterrupted: a signal ended pip, or an index cannot be reached.
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
        log = Path(folder, "pip.log")
        variables = {**os.environ, "PIP_LOG": str(log), "PIP_NO_INPUT": "1"}
        ended = subprocess.run(words, capture_output=True, text=True, check=False, env=variables)
        said = log.read_text("utf-8", "replace") if ended.returncode and log.is_file() else ""
    check_ended(ended.returncode, ended.stderr)
    if ended.returncode and (unreached := _UNREACHED.search(said + ended.stderr)):
        why = redacted(" ".join((unreached["index"] or unreached["installer"]).split()))
        raise InstallerInterrupted(
            f"a package index or server did not answer ({why}); check the network and pip's index-url"
        )
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
