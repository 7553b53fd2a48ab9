"""The plan of a sweep: a TOML file with versions, companions, modes, ways and devices. docs/sweep.md has its keys."""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import msgspec
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from conformance.runner.selection import NAMES
from conformance.sweep.versions import read_rule
from results.record.files import RecordError, one_line, os_problem

LARGEST = 2**20
"""Most bytes of a plan."""

OF_ITS_TIME = "of its time"

_OPTIONS = ("-k", "-m", "--tests", "--deselect", "--timeout")
"""Options of pytest that a selection may have, each with one value."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_PACKAGE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
_ADAPTER = re.compile(r"\w[\w.+-]*(:[\w.]+)?")
_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+:-]*")
_Names = tuple[Annotated[str, msgspec.Meta(min_length=1)], ...]
_Some = Annotated[_Names, msgspec.Meta(min_length=1)]


class CellGroup(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="kebab"):
    """One table of a plan: the cells are every combination of its lists.

    Attributes:
        framework: an adapter's name, or package.module:Class.
        versions: rules for the package that varies, as `read_rule` takes them.
        package: the package that varies, where that is not the framework's own; "" else.
        framework_version: of the framework while another package varies: a version, `OF_ITS_TIME`, or "" for the
            pinned one.
        companions: versions of other packages, by normalized name.
        modes: of the adapter; none for those of its adapter.toml.
        ways: ways of techniques of one run each.
    """

    framework: str
    versions: _Some
    package: str = ""
    framework_version: str = ""
    companions: tuple[dict[str, str], ...] = ({},)
    modes: _Some = ()
    ways: tuple[_Names, ...] = ((),)
    devices: _Some = ("cpu",)


class _File(msgspec.Struct, forbid_unknown_fields=True):
    cells: Annotated[tuple[CellGroup, ...], msgspec.Meta(min_length=1)]
    name: Annotated[str, msgspec.Meta(min_length=1)] = ""
    selection: str = ""
    limit: str = "30m"
    seed: Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)] = 0
    repeat: bool = True


@dataclass(frozen=True)
class SweepPlan:
    """A plan.

    Attributes:
        name: of the sweep; it is the name of its folder too.
        selection: words for pytest that select tests.
        limit_s: seconds for the suite in one cell, repetitions included.
        repeat: whether verdicts that need action are repeated in new processes.
        file: where the plan is, "" for one that no file has.
    """

    name: str
    groups: tuple[CellGroup, ...]
    selection: tuple[str, ...] = ()
    limit_s: float = 1800.0
    seed: int = 0
    repeat: bool = True
    file: str = ""


def read_plan(path: Path) -> SweepPlan:
    """The plan in a file.

    Raises:
        RecordError: it cannot be read, or something in it is not as docs/sweep.md says.
    """
    try:
        with path.open("rb") as file:
            content = file.read(LARGEST + 1)
        if len(content) > LARGEST:
            raise ValueError(f"is larger than {LARGEST >> 20} MiB")
        read = msgspec.convert(tomllib.loads(content.decode()), _File, strict=True)
        return replace(_plan(read, path.stem), file=str(path))
    except OSError as error:
        raise RecordError(path, f"cannot be read ({os_problem(error)})", "name a plan's .toml file") from None
    except UnicodeDecodeError:
        raise RecordError(path, "is no text in UTF-8", "name a plan's .toml file") from None
    except (ValueError, RecursionError) as error:
        raise RecordError(path, _problem(error), "docs/sweep.md has the keys of a plan") from None


def _problem(error: Exception) -> str:
    """The message of a reader, with the place first."""
    text, _, place = str(error).partition(" - at `$")
    return one_line(f"{place.removesuffix('`').lstrip('.')}: {text}" if place else text)


def _plan(file: _File, stem: str) -> SweepPlan:
    name = file.name or stem
    if not _NAME.fullmatch(name):
        raise ValueError(f"name: got {name!r}, want letters, digits, '.', '_' and '-'")
    try:
        limit = seconds_of(file.limit)
    except ValueError:
        raise ValueError(f"limit: got {file.limit!r}, want a time such as 20m") from None
    groups = tuple(_group(each, f"cells[{place}]") for place, each in enumerate(file.cells))
    return SweepPlan(name, groups, _selection(file.selection), limit, file.seed, file.repeat)


_TIME = re.compile(r"(\d+(?:\.\d+)?)(s|m|min|h)?")
_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}


def seconds_of(text: str) -> float:
    """The seconds of a duration such as "60s", "2m" or "90".

    Raises:
        ValueError: it is none, or is zero.
    """
    match = _TIME.fullmatch(text.strip())
    seconds = float(match[1]) * _UNITS[match[2] or ""] if match else 0.0
    if seconds <= 0:
        raise ValueError(f"got {text!r}, want a time such as 60s or 5m")
    return seconds


def _selection(text: str) -> tuple[str, ...]:
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ValueError(f"selection: {error}") from None
    chosen: list[str] = []
    following = iter(words)
    for word in following:
        option, given, value = word.partition("=")
        value = value if given else next(following, "")
        if option not in _OPTIONS or not value:
            raise ValueError(f"selection: got {word!r}, want options among {', '.join(_OPTIONS)}, each with a value")
        if option == "--tests" and value not in NAMES:
            raise ValueError(f"selection: got --tests {value!r}, want {', '.join(NAMES)}")
        from conformance.runner.collection import problem_of  # takes pytest

        if option in ("-k", "-m") and (problem := problem_of(value)):
            raise ValueError(f"selection: got {option} {value!r}, want an expression of pytest ({problem})")
        chosen += [option, value] if option.startswith("-") and len(option) == 2 else [f"{option}={value}"]
    return tuple(chosen)


def _group(group: CellGroup, place: str) -> CellGroup:
    def refused(key: str, got: object, want: str) -> ValueError:
        return ValueError(f"{place}.{key}: got {got!r}, want {want}")

    for key, names in (("modes", group.modes), ("devices", group.devices), ("ways", sum(group.ways, ()))):
        if bad := [name for name in names if not _WORD.fullmatch(name)]:
            raise refused(key, bad[0], "a name")
    if not _ADAPTER.fullmatch(group.framework):
        raise refused("framework", group.framework, "an adapter's name or package.module:Class")
    if group.package and not _PACKAGE.fullmatch(group.package):
        raise refused("package", group.package, "the name of a package")
    if group.framework_version and not group.package:
        raise refused("framework-version", group.framework_version, "it next to `package` alone; name `versions`")
    if group.framework_version not in ("", OF_ITS_TIME):
        _version(group.framework_version, f"{place}.framework-version", f' or "{OF_ITS_TIME}"')
    try:
        for rule in group.versions:
            read_rule(rule)
    except ValueError as error:
        raise ValueError(f"{place}.versions: {error}") from None
    companions = tuple(
        {_package(name, place): _version(version, f"{place}.companions.{name}") for name, version in each.items()}
        for each in group.companions
    )
    if not companions or not group.ways:
        raise ValueError(f"{place}.{'ways' if companions else 'companions'}: got [], want at least one entry")
    package = str(canonicalize_name(group.package)) if group.package else ""
    return msgspec.structs.replace(group, package=package, companions=companions)


def _package(name: str, place: str) -> str:
    if not _PACKAGE.fullmatch(name):
        raise ValueError(f"{place}.companions: got {name!r}, want the name of a package")
    return str(canonicalize_name(name))


def _version(text: str, place: str, others: str = "") -> str:
    try:
        return str(Version(text))
    except InvalidVersion:
        raise ValueError(f"{place}: got {text!r}, want a version{others}") from None


def selection_text(selection: Sequence[str]) -> str:
    """The selection as a record has it."""
    words = []
    following = iter(selection)
    for word in following:
        words.append(f"{word} {next(following)}" if len(word) == 2 else word)
    return " ".join(words)
