"""The plan of a sweep, a TOML file (docs/sweep.md lists its keys), its cells, and checks of its names and releases.

Releases are those that pip finds for this Python and platform, with all its settings. If the main index answers in JSON
(PEP 691) without a login, it gives upload times, and the reasons why pip does not take a version.
"""

import ast
import json
import platform
import re
import shlex
import ssl
import subprocess
import sys
import tomllib
import urllib.request
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import msgspec
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import (
    InvalidSdistFilename,
    InvalidWheelFilename,
    canonicalize_name,
    parse_sdist_filename,
    parse_wheel_filename,
)
from packaging.version import InvalidVersion, Version

from conformance.runner.selection import NAMES
from conformance.runner.subprocesses import check_mode
from frameworks.installer.distributions import bare, distribution_of, package_of
from frameworks.registry import UnknownFramework, adapter_file, built_in, folder_of, path_of
from frameworks.ways import load_ways
from results.record.files import RecordError, one_line, read

INDEX_S = 60.0
"""Limit for an answer of the index, in seconds."""
LARGEST_INDEX = 256 * 2**20
"""Largest number of bytes that are read of an index page."""

OF_ITS_TIME = "of its time"
"""Version of a framework: the newest one at the release of the package that varies."""

DEVICES = ("cuda", "gpu", "hpu", "ipu", "metal", "mlu", "mps", "mtia", "neuron", "npu", "rocm", "tpu", "xla", "xpu")
"""Names of accelerators in frameworks."""
PLUGINS = ("gcu", "iluvatar_gpu", "intel_gpu", "intel_hpu", "metax_gpu", "openreg", "privateuseone", "sdaa", "vulkan")
"""Names of accelerators in plug-ins of frameworks."""

_JSON = "application/vnd.pypi.simple.v1+json"
_PYPI = "https://pypi.org/simple"
_PYTHON = ".".join(map(str, sys.version_info[:2]))
_OPTIONS = ("-k", "-m", "--tests", "--deselect", "--timeout")
"""Options of pytest that a selection may contain, each with one value."""
NO_TESTS = ("none",)
"""Selection of a plan whose cells make fingerprints alone."""
_VERSION_RULES = "a version, a range such as >=0.6,<0.9, latest N, or minor RANGE"
_LATEST = re.compile(r"latest(?: ([1-9][0-9]{0,2}))?")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_WAY_SET = re.compile(r"set-[1-9][0-9]*")
_TIME = re.compile(r"(\d+(?:\.\d+)?)(s|m|min|h)?")
_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
"""Seconds of a unit of time."""


@dataclass(frozen=True)
class Release:
    """One public version of a package.

    Attributes:
        uploaded: ISO 8601 upload time of its first file, "" if no index gives it.
        outcome, reason: why it cannot be installed here; "" if it can.
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
    """Return the releases of a package by public version, oldest first.

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
    """Return the newest installable release up to a day that is not a prerelease; "" if there is none."""
    fitting = [
        version
        for version, release in known.items()
        if not version.is_prerelease and not release.outcome and release.uploaded and release.day <= day
    ]
    return str(max(fitting)) if fitting else ""


def next_upload(known: Releases, version: str) -> str:
    """Return the upload time of the next installable release; "" if there is none or no index gives its time."""
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
    """Return the versions with a wheel for this Python, and pip's last error message."""
    argv = [sys.executable, "-m", "pip", "index", "versions", "--pre", "--only-binary=:all:", package]
    completed = subprocess.run(argv, capture_output=True, text=True, check=False)
    line = re.search(r"^Available versions: (.*)$", completed.stdout, re.MULTILINE)
    names = line[1].split(", ") if line else []
    errors = [text.removeprefix("ERROR: ") for text in completed.stderr.splitlines() if text.startswith("ERROR: ")]
    return {Version(Version(name).public) for name in names}, one_line((errors or ["pip gives no reason"])[-1])


def _files(package: str) -> list[Mapping[str, Any]]:
    """Return the files of a package from the main index's JSON; none if it gives no JSON."""
    settings = _settings_of_pip()
    address = f"{settings.get('index-url', _PYPI).rstrip('/')}/{package}/"
    has_index = settings.get("no-index", "").lower() not in ("1", "true", "yes", "on")
    if not has_index or urlsplit(address).scheme not in ("http", "https"):
        return []
    with suppress(OSError, ValueError, TypeError, LookupError):
        context = ssl.create_default_context(cafile=settings.get("cert"))
        request = urllib.request.Request(address, headers={"Accept": _JSON})
        with urllib.request.urlopen(request, timeout=INDEX_S, context=context) as answer:
            return [dict(file) for file in json.loads(answer.read(LARGEST_INDEX))["files"]]
    return []


@cache
def _settings_of_pip() -> Mapping[str, str]:
    argv = [sys.executable, "-m", "pip", "config", "list"]
    completed = subprocess.run(argv, capture_output=True, text=True, check=False)
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
    reason = f"{package} {version} has no wheel for here: {declared}this is Python {_PYTHON} on {platform.machine()}"
    return Release(uploaded, "no wheel", reason)


def check_device(framework: str, device: str) -> None:
    """Refuse a device that a built-in adapter cannot have.

    Raises:
        ValueError: no framework has a device of that name.
    """
    if framework not in built_in() or device in ("auto", "cpu"):
        return
    if distribution_of(framework) is None:
        raise ValueError(f"got device {device!r}, want cpu or auto: {framework} has no other")
    folder, quoted = folder_of(path_of(framework)), f'"{device}"'
    named = folder is None or any(quoted in path.read_text("utf-8", "replace") for path in folder.rglob("*.py"))
    if device.lower() not in (*DEVICES, *PLUGINS) and not named:
        raise ValueError(f"got device {device!r}, want cpu, auto or an accelerator: {', '.join(DEVICES)}")


def check_ways(framework: str, modes: Sequence[str], ways: Sequence[str]) -> None:
    """Refuse ways that an adapter does not declare in all of these modes, and two ways of one technique.

    Raises:
        ValueError: they cannot be chosen. UnknownFramework: there is no such adapter.
    """
    known = {str(way): way for way in load_ways(framework)}
    for name in ways:
        if name not in known and not (known and _WAY_SET.fullmatch(name)):
            raise ValueError(f"got way {name!r}, want one that `conformance ways {framework}` lists")
    named = [known[name] for name in ways if name in known]
    for mode, way in product(filter(None, modes), named):
        if mode not in way.modes:
            raise ValueError(f"got way {str(way)!r} in mode {mode!r}, want it in {' or '.join(way.modes)}")
    if len({way.technique for way in named}) < len(named):
        raise ValueError(f"got ways {', '.join(ways)} together, want at most one of each technique")


def check_companions(framework: str, package: str, companions: Sequence[str]) -> None:
    """Refuse companions whose version is already set: the framework, and the package that varies.

    Args:
        package: normalized name of the package that varies.
        companions: normalized names of the companions.

    Raises:
        ValueError: one of them is the framework or that package.
    """
    chosen = distribution_of(framework)
    own = {str(canonicalize_name(bare(requirement))) for requirement in (chosen.cpu, chosen.gpu)} if chosen else set()
    for name in companions:
        if name == package or (name in own and package in own):
            raise ValueError(f"got {name} as a companion, and it is the package that varies; want another package")
        if name in own:
            raise ValueError(f"got {name} as a companion, want its version as the framework's")


_AtLeastOne = msgspec.Meta(min_length=1)
_Adapter = Annotated[str, msgspec.Meta(pattern=r"^\w[\w.+-]*(:[\w.]+)?\Z")]
_Package = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?\Z")]
_Names = tuple[Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._+:-]*\Z")], ...]


class CellGroup(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="kebab"):
    """One table of a plan; its cells are all combinations of its lists.

    Attributes:
        framework: an adapter's name, or package.module:Class.
        versions: rules for the package that varies, as `choose` takes them.
        package: the package that varies, if it is not the framework's own; "" otherwise.
        framework_version: the framework's version while another package varies: a version, `OF_ITS_TIME`, or "" for
            the pinned one.
        companions: versions of other packages, by normalized name.
        modes: modes of the adapter; empty for those in its adapter.toml.
        ways: ways of techniques; each element is for one run.
    """

    framework: _Adapter
    versions: Annotated[tuple[str, ...], _AtLeastOne]
    package: _Package = ""
    framework_version: str = ""
    companions: Annotated[tuple[dict[_Package, str], ...], _AtLeastOne] = ({},)
    modes: Annotated[_Names, _AtLeastOne] = ()
    ways: Annotated[tuple[_Names, ...], _AtLeastOne] = ((),)
    devices: Annotated[_Names, _AtLeastOne] = ("cpu",)

    @property
    def varying(self) -> str:
        """The normalized name of the package that varies; "" if nothing is installed for the framework."""
        return self.package or str(canonicalize_name(package_of(self.framework)))


class _File(msgspec.Struct, forbid_unknown_fields=True):
    cells: Annotated[tuple[CellGroup, ...], _AtLeastOne]
    name: Annotated[str, _AtLeastOne] = ""
    selection: str = ""
    limit: str = "30m"
    workers: Annotated[int, msgspec.Meta(ge=1, le=64)] = 2
    seed: Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)] = 0
    repeat: bool = True
    fingerprints: bool = True


@dataclass(frozen=True)
class SweepPlan:
    """The settings and the tables of a plan.

    Attributes:
        name: name of the sweep and of its folder.
        selection: words for pytest that select tests.
        limit_s: seconds for the suite in one cell, repetitions included.
        workers: processes of the suite in one cell.
        repeat: whether verdicts that need action are repeated in new processes.
        fingerprints: whether cells make the fingerprints of their packages.
        file: path of the plan, "" for a plan without a file.
    """

    name: str
    groups: tuple[CellGroup, ...]
    selection: tuple[str, ...] = ()
    limit_s: float = 1800.0
    workers: int = 2
    seed: int = 0
    repeat: bool = True
    fingerprints: bool = False
    file: str = ""


@dataclass(frozen=True)
class SweepCell:
    """One combination of versions, device and mode, which one run of the suite judges.

    Attributes:
        framework: an adapter's name, or package.module:Class.
        framework_version: version of the framework; "" if the adapter names nothing to install.
        package: the package that varies.
        version: version of that package.
        released: day of its release, YYYY-MM-DD, "" if unknown.
        before: time before which companions were uploaded, "" for any.
        companions: versions of other packages that the plan asks for, by normalized name.
        mode: mode of the adapter, "" for its first.
        outcome, reason: why the index says that the cell cannot be judged; "" otherwise.
    """

    framework: str
    framework_version: str
    package: str
    version: str
    released: str = ""
    before: str = ""
    companions: Mapping[str, str] = field(default_factory=dict)
    mode: str = ""
    ways: tuple[str, ...] = ()
    device: str = "cpu"
    outcome: str = ""
    reason: str = ""

    @property
    def name(self) -> str:
        """The name, valid as a file name: FRAMEWORK-VERSION[+PACKAGE.VERSION]-DEVICE-MODE[+WAYS]."""
        packages = ".".join(f"{name}.{version}" for name, version in self.packages.items() if name)
        version = f"{self.framework_version or 'here'}{f'+{packages}' if packages else ''}"
        mode = "+".join((self.mode or "default", *self.ways))
        return f"{self.framework.replace(':', '.')}-{version}-{self.device}-{mode}"

    @property
    def release(self) -> str:
        """Package, version, and the day of its release if it is known: "jax 0.9.2 of 2026-03-18"."""
        return f"{self.package} {self.version}{f' of {self.released}' if self.released else ''}"

    @property
    def packages(self) -> dict[str, str]:
        """Versions of packages next to the framework, by normalized name."""
        own = {} if self.package == package_of(self.framework) else {self.package: self.version}
        return {**own, **self.companions}

    def document(self) -> dict[str, Any]:
        """Return the cell's part of `outcomes.json`."""
        names = ("framework", "framework_version", "package", "version", "released", "mode", "ways", "device")
        values = {name: getattr(self, name) for name in names}
        return {**values, "companions": dict(self.companions), "python": platform.python_version()}


def read_plan(path: Path) -> SweepPlan:
    """Read the plan in a file.

    Raises:
        RecordError: the file cannot be read, or its content is not as docs/sweep.md describes.
    """
    try:
        return _plan(msgspec.convert(tomllib.loads(read(path).decode()), _File, strict=True), path)
    except UnicodeDecodeError:
        raise RecordError(path, "is no text in UTF-8", "name a plan's .toml file") from None
    except (ValueError, RecursionError) as error:
        text, _, key = str(error).partition(" - at `$")
        problem = one_line(f"{key.removesuffix('`').lstrip('.')}: {text}" if key else text)
        raise RecordError(path, problem, "docs/sweep.md has the keys of a plan") from None


def _plan(file: _File, path: Path) -> SweepPlan:
    name = file.name or path.stem
    if not _NAME.fullmatch(name):
        raise ValueError(f"name: got {name!r}, want letters, digits, '.', '_' and '-'")
    match = _TIME.fullmatch(file.limit.strip())
    limit_s = float(match[1]) * _UNITS[match[2] or ""] if match else 0.0
    if limit_s <= 0:
        raise ValueError(f"limit: got {file.limit!r}, want a time such as 20m")
    groups = tuple(_checked_group(group, f"cells[{index}]") for index, group in enumerate(file.cells))
    selection = _selection(file.selection)
    settings = (limit_s, file.workers, file.seed, file.repeat, file.fingerprints)
    return SweepPlan(name, groups, selection, *settings, str(path))


def _selection(text: str) -> tuple[str, ...]:
    if text == "none":
        return NO_TESTS
    try:
        tokens = shlex.split(text)
    except ValueError as error:
        raise ValueError(f"selection: {error}") from None
    result: list[str] = []
    remaining = iter(tokens)
    for token in remaining:
        option, equals, value = token.partition("=")
        value = value if equals else next(remaining, "")
        if option not in _OPTIONS or not value:
            raise ValueError(f"selection: got {token!r}, want options among {', '.join(_OPTIONS)}, each with a value")
        if option == "--tests" and value not in NAMES:
            raise ValueError(f"selection: got --tests {value!r}, want {', '.join(NAMES)}")
        from conformance.runner.plugin import problem_of  # takes pytest

        if option in ("-k", "-m") and (problem := problem_of(value)):
            raise ValueError(f"selection: got {option} {value!r}, want an expression of pytest ({problem})")
        result += [option, value] if len(option) == 2 else [f"{option}={value}"]
    return tuple(result)


def _checked_group(group: CellGroup, where: str) -> CellGroup:
    """Return the group with normalized names, after a check that its versions are valid."""
    if group.framework_version and not group.package:
        want = "it next to `package` alone; name `versions`"
        raise ValueError(f"{where}.framework-version: got {group.framework_version!r}, want {want}")
    if group.framework_version not in ("", OF_ITS_TIME):
        _normalize(group.framework_version, f"{where}.framework-version", f' or "{OF_ITS_TIME}"')
    try:
        choose(group.versions, None)
    except ValueError as error:
        raise ValueError(f"{where}.versions: {error}") from None
    companions = tuple(
        {str(canonicalize_name(name)): _normalize(text, f"{where}.companions.{name}") for name, text in pins.items()}
        for pins in group.companions
    )
    package = str(canonicalize_name(group.package)) if group.package else ""
    return msgspec.structs.replace(group, package=package, companions=companions)


def _normalize(text: str, where: str, others: str = "") -> str:
    try:
        return str(Version(text))
    except InvalidVersion:
        raise ValueError(f"{where}: got {text!r}, want a version{others}") from None


def choose(rules: Iterable[str], known: Releases | None) -> list[str]:
    """Return the versions that rules select, oldest first, each once.

    Rules are "0.9.2", ">=0.6,<0.9", "latest 3" or "minor >=3.3"; `minor` takes the newest patch of each minor version.
    Only the first kind may select versions that are yanked, missing or prereleases.

    Args:
        known: None to check the rules alone.

    Raises:
        ValueError: a text is not a rule, or a rule selects no release.
    """
    result: dict[Version, str] = {}
    for rule in rules:
        try:
            versions = [Version(rule)] if re.match(r"[0-9]", rule) else _select(rule, known)
        except (InvalidVersion, InvalidSpecifier):
            raise ValueError(f"got {rule!r}, want {_VERSION_RULES}") from None
        result |= {version: str(version) for version in versions}
    return [result[version] for version in sorted(result)]


def _select(rule: str, known: Releases | None) -> list[Version]:
    """Return the releases that a rule with a range selects, oldest first; none if `known` is None."""
    latest = _LATEST.fullmatch(rule)
    text = "" if latest else rule.removeprefix("minor ").strip()
    if not text and not latest:
        raise InvalidSpecifier
    specifier = SpecifierSet(text)
    if known is None:
        return []
    fitting = sorted(version for version in known if specifier.contains(version) and not version.is_prerelease)
    fitting = [version for version in fitting if known[version].outcome != "yanked"]
    if latest:
        fitting = fitting[-int(latest[1] or 1) :]
    elif rule.startswith("minor "):
        fitting = [*{version.release[:2]: version for version in fitting}.values()]
    if not fitting:
        raise ValueError(f"{rule!r} fits no release")
    return fitting


def cells_of(plan: SweepPlan) -> tuple[SweepCell, ...]:
    """Return the cells of a plan, in its order, each once.

    Raises:
        RecordError: an adapter is unknown or has no such mode, versions cannot be listed, or none fits.
    """
    result: dict[str, SweepCell] = {}
    for index, group in enumerate(plan.groups):
        try:
            for cell in cells_of_group(group):
                result.setdefault(cell.name, cell)
        except (ValueError, UnknownFramework) as error:
            known = "" if isinstance(error, UnknownFramework) else f"{group.framework}: "
            where = f"{plan.file}: cells[{index}]" if plan.file else f"cells[{index}] of the plan"
            raise RecordError(where, f"{known}{error}", "correct the plan") from None
    return tuple(result.values())


def cells_of_group(group: CellGroup) -> Iterator[SweepCell]:
    path_of(group.framework)
    distribution = distribution_of(group.framework)
    modes = group.modes or adapter_file(group.framework).modes or ("",)
    check_group(group, modes)
    lists = [*product(group.companions, modes, group.ways, group.devices)]
    if distribution is None:
        if group.package or list(group.versions) != ["1"]:
            raise ValueError('nothing is installed for it; write versions = ["1"] and no package')
        for companions, mode, ways, device in lists:
            yield SweepCell(group.framework, "", "", "1", companions=companions, mode=mode, ways=ways, device=device)
        return
    known = releases(group.varying)
    for version in choose(group.versions, known):
        cell = _cell(group, version, known, distribution.pinned)
        for companions, mode, ways, device in lists:
            yield replace(cell, companions=companions, mode=mode, ways=ways, device=device)


def check_group(group: CellGroup, modes: Sequence[str]) -> None:
    """Refuse a group that cannot be judged whatever is installed.

    Raises:
        ValueError: there is no such mode, device, way or companion. UnknownFramework: there is no such adapter.
    """
    path = path_of(group.framework)
    if group.framework not in built_in() and folder_of(path) is None:
        raise ValueError(f"no module {path.partition(':')[0]} can be imported from here; want package.module:Class")
    for mode in modes:
        check_mode(group.framework, mode)
    for device in group.devices:
        check_device(group.framework, device)
    for ways in group.ways:
        check_ways(group.framework, modes, ways)
    for companions in group.companions:
        check_companions(group.framework, group.varying, [*companions])


def _cell(group: CellGroup, version: str, known: Releases, pinned: str) -> SweepCell:
    """Return the cell of a version, without mode, ways and companions from the lists of its group."""
    release = known.get(Version(Version(version).public))
    cell = SweepCell(group.framework, version, group.varying, version, before=next_upload(known, version))
    if release is None:
        return replace(cell, outcome="no solution", reason=f"no index has {group.varying} {version}")
    cell = replace(cell, released=release.day, outcome=release.outcome, reason=release.reason)
    if not group.package:
        return cell
    own = package_of(group.framework)
    frameworks = releases(own)
    of_its_time = newest_at(frameworks, release.day)
    other = of_its_time if group.framework_version == OF_ITS_TIME else group.framework_version or pinned
    cell = replace(cell, framework_version=other)
    if cell.outcome:
        return cell
    if not other:
        return replace(cell, outcome="no solution", reason="the framework has no wheel of that time for this Python")
    framework = frameworks.get(Version(Version(other).public))
    if framework is None:
        return replace(cell, outcome="no solution", reason=f"no index has {own} {other}")
    later = next_upload(frameworks, other)
    before = max(cell.before, later) if cell.before and later else ""
    return replace(cell, before=before, outcome=framework.outcome, reason=framework.reason)
