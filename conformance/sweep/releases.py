"""Releases of a package: which of them pip finds for this Python and platform, and when they were uploaded.

pip says which versions there are, with all its settings. The main index says when files were uploaded, and why a
version is none that pip takes, where it answers in JSON (PEP 691) and needs no login.
"""

import ast
import json
import platform
import re
import ssl
import subprocess
import sys
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any
from urllib.parse import urlsplit

from packaging.utils import InvalidSdistFilename, InvalidWheelFilename, parse_sdist_filename, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from results.record.files import RecordError, one_line

LIMIT_S = 60.0
LARGEST = 256 * 2**20
"""Most bytes of an index page that are read."""

_JSON = "application/vnd.pypi.simple.v1+json"
_PYPI = "https://pypi.org/simple"
_HERE = ".".join(map(str, sys.version_info[:2]))


@dataclass(frozen=True)
class Release:
    """One public version of a package.

    Attributes:
        uploaded: ISO 8601 time of its first file, "" where no index says.
        outcome, reason: why it cannot be had here; "" if it can.
    """

    uploaded: str = ""
    outcome: str = ""
    reason: str = ""

    @property
    def day(self) -> str:
        """The day of the upload, YYYY-MM-DD; "" where unknown."""
        return self.uploaded[:10]


Releases = Mapping[Version, Release]


@cache
def releases(package: str) -> Releases:
    """The releases of a package by public version, oldest first.

    Raises:
        RecordError: no index has it, or none answers.
    """
    available, problem = _versions_of_pip(package)
    files: dict[Version, list[Mapping[str, Any]]] = {}
    for file in _files(package):
        if (version := _version_of(str(file.get("filename")))) is not None:
            files.setdefault(version, []).append(file)
    if not available and not files:
        raise RecordError(package, f"its releases cannot be listed ({problem})", "correct the name, or pip's index-url")
    return {
        version: _release(package, version, files.get(version, ()), version in available)
        for version in sorted({*available, *files})
    }


def newest_at(known: Releases, day: str) -> str:
    """The newest release up to a day that can be had here and is no prerelease; "" if there is none."""
    fitting = [
        version
        for version, release in known.items()
        if not version.is_prerelease and not release.outcome and release.uploaded and release.day <= day
    ]
    return str(max(fitting)) if fitting else ""


def next_upload(known: Releases, version: str) -> str:
    """When the release after a version was uploaded; "" if there is none or no index says."""
    later = [release.uploaded for number, release in known.items() if number > Version(version) and not release.outcome]
    return later[0] if later else ""


def check_release(package: str, wanted: Version, known: Releases) -> None:
    """Refuse a version that no index has.

    Raises:
        RecordError: no index has it; the message names the next one.
    """
    if Version(wanted.public) not in known:
        next_one = min((version for version in known if version >= wanted), default=max(known))
        raise RecordError(f"{package} {wanted}", "no index has it", f"the next one is {next_one}")


def _versions_of_pip(package: str) -> tuple[set[Version], str]:
    """The versions with a wheel for this Python, and what pip says where there is none."""
    argv = [sys.executable, "-m", "pip", "index", "versions", "--pre", "--only-binary=:all:", package]
    completed = subprocess.run(argv, capture_output=True, text=True, check=False)
    line = re.search(r"^Available versions: (.*)$", completed.stdout, re.MULTILINE)
    names = line[1].split(", ") if line else []
    errors = [text.removeprefix("ERROR: ") for text in completed.stderr.splitlines() if text.startswith("ERROR: ")]
    return {Version(Version(name).public) for name in names}, one_line((errors or ["pip gives no reason"])[-1])


def _files(package: str) -> list[Mapping[str, Any]]:
    """The files of a package as the main index lists them in JSON; none if it does not."""
    settings = _settings_of_pip()
    address = f"{settings.get('index-url', _PYPI).rstrip('/')}/{package}/"
    if settings.get("no-index", "").lower() in ("1", "true", "yes", "on") or urlsplit(address).scheme not in (
        "http",
        "https",
    ):
        return []
    with suppress(OSError, ValueError, TypeError, LookupError):
        context = ssl.create_default_context(cafile=settings.get("cert"))
        request = urllib.request.Request(address, headers={"Accept": _JSON})
        with urllib.request.urlopen(request, timeout=LIMIT_S, context=context) as answer:
            return [dict(file) for file in json.loads(answer.read(LARGEST))["files"]]
    return []


@cache
def _settings_of_pip() -> Mapping[str, str]:
    completed = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=False
    )
    sections: dict[str, dict[str, str]] = {"global": {}, "install": {}, ":env:": {}}  # the later ones count
    for line in completed.stdout.splitlines():
        key, _, text = line.partition("=")
        section, _, option = key.rpartition(".")
        if section in sections:
            sections[section][option] = str(ast.literal_eval(text))
    return {option: text for options in sections.values() for option, text in options.items()}


def _version_of(filename: str) -> Version | None:
    try:
        parse = parse_wheel_filename if filename.endswith(".whl") else parse_sdist_filename
        return Version(parse(filename)[1].public)
    except (InvalidWheelFilename, InvalidSdistFilename, InvalidVersion):
        return None


def _release(package: str, version: Version, files: Any, available: bool) -> Release:
    uploaded = min((time for file in files if isinstance(time := file.get("upload-time"), str)), default="")
    if available:
        return Release(uploaded)
    if all(file.get("yanked") for file in files):
        return Release(uploaded, "yanked", f"{package} {version} was withdrawn")
    wanted = sorted({str(file["requires-python"]) for file in files if file.get("requires-python")})
    declared = f"it wants Python {wanted[0]}, and " if len(wanted) == 1 else ""
    reason = f"{package} {version} has no wheel for here: {declared}this is Python {_HERE} on {platform.machine()}"
    return Release(uploaded, "no wheel", reason)
