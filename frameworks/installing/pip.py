"""pip, run as a command: what it would install, which versions there are, and its refusals in one line."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from frameworks.installing.distributions import Unavailable

_REMOTE = ("http:", "https:")
_SECTIONS = ("global", "install", "download", "index")
_UNDATED = ("does not provide upload-time metadata", "no such option: --uploaded-prior-to")


class Undated(Unavailable):
    """The index does not say when files were uploaded, or pip cannot select by it."""


@dataclass(frozen=True)
class Resolved:
    """A distribution that pip would install: its version, and the requirements that it declares."""

    version: str
    requires: tuple[str, ...] = ()


def run(
    *words: str, environment: Mapping[str, str] | None = None, interpreter: str = ""
) -> subprocess.CompletedProcess[str]:
    """Runs pip to its end, for another interpreter if one is named."""
    other = ["--python", interpreter] if interpreter else []
    return subprocess.run(
        [sys.executable, "-m", "pip", *other, *words], capture_output=True, text=True, check=False, env=environment
    )


def install(requirements: Sequence[str], pins: Mapping[str, str], indexes: Sequence[str] = ()) -> None:
    """Installs requirements, from these indexes too; whatever comes with them has the pinned version.

    Raises:
        Unavailable: it cannot be done, or an extra that was asked for is not there.
    """
    with tempfile.TemporaryDirectory() as folder:
        ended = run("install", *_constrained(pins, folder), *_beside(indexes), *requirements)
    if ended.returncode:
        raise Unavailable(reason(ended))
    if lacking := re.search(r"WARNING: (\S+ \S+ does not provide the extra \S+)", ended.stderr):
        raise Unavailable(lacking[1])


def resolve(
    requirements: Sequence[str],
    pins: Mapping[str, str],
    *,
    before: date | None = None,
    environment: Mapping[str, str] | None = None,
    interpreter: str = "",
) -> dict[str, Resolved]:
    """What pip would install into an empty environment, by normalized name.

    Args:
        before: leave out what was uploaded on this day or later.

    Raises:
        Undated: `before` is given, and the index gives no dates.
        Unavailable: there is no solution.
    """
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.json")
        words = ["--dry-run", "--ignore-installed", "--report", str(report), *_dated(before)]
        ended = run(
            "install",
            *words,
            *_constrained(pins, folder),
            *requirements,
            environment=environment,
            interpreter=interpreter,
        )
        if ended.returncode:
            raise _refusal(ended)
        items = [item["metadata"] for item in json.loads(report.read_text("utf-8"))["install"]]
    return {
        canonicalize_name(item["name"]): Resolved(item["version"], tuple(item.get("requires_dist", ())))
        for item in items
    }


def versions(package: str, *, before: date | None = None, environment: Mapping[str, str] | None = None) -> set[Version]:
    """The released versions of a package that fit this Python and platform.

    Raises:
        Undated: `before` is given, and the index gives no dates.
        Unavailable: there is none, or pip cannot say.
    """
    ended = run("index", "versions", "--json", *_dated(before), package, environment=environment)
    if ended.returncode:
        raise _refusal(ended)
    try:
        return {Version(version) for version in json.loads(ended.stdout)["versions"]}
    except (ValueError, KeyError, InvalidVersion) as broken:
        raise Unavailable(f"pip lists no versions of {package}") from broken


def remote() -> dict[str, str]:
    """This process' environment with pip's settings, but without indexes and folders on this machine.

    What lies in a folder has no upload date, so a choice by date leaves it out.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
    settings = {name: value for name, value in _settings().items() if value}
    for name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS"):
        places = [place for place in settings.pop(name, "").split() if place.startswith(_REMOTE)]
        settings |= {name: " ".join(places)} if places else {}
    return kept | settings | {"PIP_CONFIG_FILE": os.devnull}


def _settings() -> dict[str, str]:
    """pip's configuration as environment variables: files first, then what the environment itself says."""
    settings: dict[str, str] = {}
    for line in run("config", "list").stdout.splitlines():
        name, _, value = line.partition("=")
        section, _, key = name.partition(".")
        if section in _SECTIONS:
            settings["PIP_" + key.upper().replace("-", "_")] = str(ast.literal_eval(value))
    return settings | {name: value for name, value in os.environ.items() if name.startswith("PIP_")}


def reason(ended: subprocess.CompletedProcess[str]) -> str:
    """Why pip ended as it did, in one line, with the requirement that it stumbled over."""
    errors = [line[7:].strip() for line in ended.stderr.splitlines() if line.startswith("ERROR: ")]
    asked = re.search(r"No matching distribution found for (\S+?)==(\S+)", ended.stderr)
    needs = re.search(rf"[ ,]{re.escape(asked[2])} Requires-Python ([^;\n]+)", ended.stderr) if asked else None
    if asked and needs:
        running = ".".join(map(str, sys.version_info[:2]))
        return f"{asked[1]} {asked[2]} wants Python {needs[1].strip()}, and this is {running}"
    conflict = re.search(r"The conflict is caused by:\n((?: {4}\S.*\n)+)", ended.stdout + ended.stderr)
    if conflict:
        return "; ".join(dict.fromkeys(line.strip() for line in conflict[1].splitlines()))
    named = [line for line in errors if "No matching distribution found" in line or line.startswith("Cannot install")]
    return (named or errors or ["pip gave no reason"])[-1]


def _refusal(ended: subprocess.CompletedProcess[str]) -> Unavailable:
    if any(text in ended.stderr for text in _UNDATED):
        return Undated("the index or pip does not select by upload date")
    return Unavailable(reason(ended))


def _dated(before: date | None) -> list[str]:
    return ["--uploaded-prior-to", f"{before.isoformat()}T00:00:00Z"] if before else []


def _beside(indexes: Sequence[str]) -> list[str]:
    return [word for index in indexes for word in ("--extra-index-url", index)]


def _constrained(pins: Mapping[str, str], folder: str) -> list[str]:
    if not pins:
        return []
    path = Path(folder, "constraints.txt")
    path.write_text("".join(f"{name}=={version}\n" for name, version in sorted(pins.items())), encoding="utf-8")
    return ["--constraint", str(path)]
