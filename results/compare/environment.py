"""Differences between the environments of two runs, which of them can move numbers, and a command that separates them.

Companions are packages that compute next to the framework, or select kernels for it: another version of one can change
every number of a run. `COMPANIONS` and `BUNDLED` list them; all other packages are reported separately.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime

from packaging.utils import canonicalize_name

from results.record.reading import Record

LIBRARIES = frozenset({"accelerate", "lightning", "transformers"})
"""Add-on libraries; each is a companion only in the modes that train by it, whose version names it."""

COMPANIONS = frozenset(
    {
        "autograd",
        "chex",
        "flax",
        "jmp",
        "keras",
        "ml-dtypes",
        "numpy",
        "opt-einsum",
        "optax",
        "orbax-checkpoint",
        "scipy",
        "tf-keras",
    }
)
"""Packages that compute, and of which another version can be installed with the same framework."""

BUNDLED = ("intel-", "jaxlib", "mkl", "onednn", "scipy-openblas")
"""Prefixes of the names of packages that compute and whose version the framework's own wheel requires."""

ON_A_GPU = ("jax-cuda", "nvidia-", "pytorch-triton", "triton")
"""Prefixes of the names of packages that compute only on a GPU, in a version that the framework's wheel requires."""

OWN = {
    "jax": frozenset({"jax"}),
    "paddle": frozenset({"paddlepaddle", "paddlepaddle-gpu"}),
    "tf": frozenset({"tensorflow", "tensorflow-cpu"}),
    "torch": frozenset({"torch"}),
}
"""Distributions of each framework itself. The variable NAME_VERSION chooses its version, and that of any other package,
with the package's name in capitals and with _ for - and . (see README)."""

THREADS = "sums may round differently"
KERNELS = "other kernels may run, which round differently"
_WHY = (
    (re.compile("thread", re.IGNORECASE), THREADS),
    (
        re.compile(
            "precision|tensor_?float|tf32|x64|onednn|mkl|cudnn|cublas|blas|capability|instruction|deterministic|xla|"
            "fast.?math|flush|denormal|fusion|device|processor|cuda|driver",
            re.IGNORECASE,
        ),
        KERNELS,
    ),
)
_LISTED = 4
_COMMITS = ("commit", "version.git_version")
_VERSION = re.compile(r"[0-9][0-9A-Za-z.+!-]*")
_LABEL = re.compile(r"([a-z][a-z0-9-]*)\.(\d+(?:\.\d+)*)")
"""A package and its version among the parts of a local version label, such as "keras.3.15.1"."""


@dataclass(frozen=True)
class ChangedSetting:
    """A setting with its old and new value; "" where it is absent."""

    name: str
    old: str
    new: str

    @property
    def line(self) -> str:
        """The change in one line."""
        return f"{self.name}: {self.old or 'none'} → {self.new or 'none'}"


@dataclass(frozen=True)
class Environment:
    """Differences between the environments of two runs.

    Attributes:
        framework: the framework's own version, if it differs.
        companions: packages that can move numbers. packages: all others.
        switches: settings of precision, determinism, threads and device that the adapter reports.
        variables: environment variables. instruction_sets: those that only one processor has.
        missing: parts that one of the records does not contain.
        contradictions: what of the new record, and not of the old one, cannot be true at once.
        crossing: the command that runs the new framework with the old companions, or "".
    """

    framework: ChangedSetting | None = None
    companions: tuple[ChangedSetting, ...] = ()
    packages: tuple[ChangedSetting, ...] = ()
    switches: tuple[ChangedSetting, ...] = ()
    variables: tuple[ChangedSetting, ...] = ()
    instruction_sets: ChangedSetting | None = None
    missing: tuple[str, ...] = ()
    crossing: str = ""
    contradictions: tuple[str, ...] = ()

    @property
    def same(self) -> bool:
        """Return whether nothing differs that both records contain."""
        settings = self.switches, self.variables, self.instruction_sets
        return not any((self.framework, self.companions, self.packages, *settings, self.contradictions))

    @property
    def only_the_processor(self) -> bool:
        """Return whether the runs had one version of everything that computes, and different processors."""
        other = self.instruction_sets is not None or any(switch.name == "device" for switch in self.switches)
        return other and self.framework is None and not self.companions

    @property
    def crossed(self) -> str:
        """Description of the run that the command `crossing` makes."""
        return f"the {'new' if self.framework is not None else 'same'} framework with the old companion packages"

    def lines(self) -> Iterator[str]:
        """One line for each difference, the most informative first; other packages are counted."""
        yield from self.versions()
        yield from self.settings()

    def versions(self) -> Iterator[str]:
        """The `lines` about the framework and its companions, which `crossing` is about."""
        if self.framework is not None:
            yield self.framework.line
        if self.companions:
            yield f"companion packages, which may be the cause: {'; '.join(step.line for step in self.companions)}"

    def settings(self) -> Iterator[str]:
        """The other `lines`."""
        for step in self.switches:
            if step.old and step.new:
                yield f"{step.line}{_why(step.name)}"
        for side, names in (
            ("old", [step.name for step in self.switches if not step.new]),
            ("new", [step.name for step in self.switches if not step.old]),
        ):
            if names:
                yield f"only the {side} record names: {', '.join(names[:_LISTED])}{_more(len(names) - _LISTED)}"
        for step in self.variables:
            yield f"variable {step.line}{_why(step.name)}"
        if self.instruction_sets is not None:
            only = ((self.instruction_sets.old, "old"), (self.instruction_sets.new, "new"))
            parts = "; ".join(f"{names} only on the {side} machine" for names, side in only if names)
            yield f"instruction sets: {parts}: {KERNELS}"
        if self.packages:
            plural = "s differ" if len(self.packages) > 1 else " differs"
            yield f"{len(self.packages)} other package{plural}"
        yield from self.missing
        if self.contradictions:
            yield f"the new record contradicts itself: {'; '.join(self.contradictions)}"


def _more(count: int) -> str:
    return f" and {count} more" if count > 0 else ""


def _why(name: str) -> str:
    return next((f": {reason}" for pattern, reason in _WHY if pattern.search(name)), "")


def environment(old: Record, new: Record) -> Environment:
    """Return the differences between the environments of two records of one framework."""
    before, after = _versions(old), _versions(new)
    installed = {*before, *after}
    known = installed - OWN.get(new.series.framework, frozenset())
    is_full = bool(old.variant.packages), bool(new.variant.packages)
    incomplete = "" if is_full[0] == is_full[1] else "old" if is_full[1] else "new"
    if incomplete:  # an older record names few packages: no other one is known to have come or gone
        known &= (before if incomplete == "old" else after).keys()
    packages = _changes({name: before.get(name, "") for name in known}, {name: after.get(name, "") for name in known})
    bundled = BUNDLED if new.series.device == "cpu" else (*BUNDLED, *ON_A_GPU)
    named = COMPANIONS | parse_version_label(old).keys() | parse_version_label(new).keys()
    companions = tuple(package for package in packages if package.name in named or package.name.startswith(bundled))
    framework = _framework_change(old, new)
    missing = [f"only the old record notes: {note}" for note in old.notes if note not in new.notes]
    if incomplete:
        missing.append(f"the {incomplete} record does not list its packages, variables and instruction sets")
    contradictions = [line for line in _contradictions(new) if line not in {*_contradictions(old)}]
    commits = [max(record.variant.environment.get(name, "") for name in _COMMITS) for record in (old, new)]
    if public(old) != public(new) and commits[0] and commits[0] == commits[1]:
        contradictions.append(f"another version of the framework, built from the same commit {commits[0]}")
    return Environment(
        framework,
        companions,
        tuple(package for package in packages if package not in companions),
        _changes(_switches(old, installed), _switches(new, installed)),
        () if incomplete else _changes(old.variant.variables, new.variant.variables),
        _instruction_set_change({*old.variant.instruction_sets}, {*new.variant.instruction_sets}),
        tuple(missing),
        _crossing(new, public(new), companions, framework is not None),
        tuple(contradictions),
    )


def _contradictions(record: Record) -> Iterator[str]:
    """Yield what cannot be true of a record at once: versions, dates, selection, device, damaged journal."""
    variant, series = record.variant, record.series
    packages: dict[str, str] = {canonicalize_name(name): version for name, version in variant.packages.items()}
    listed = {name: packages[name] for name in OWN.get(series.framework, ()) if name in packages}
    if listed and public(record) not in {version.partition("+")[0] for version in listed.values()}:
        yield f"it is of {series.framework} {public(record)}, and lists {', '.join(map(' '.join, listed.items()))}"
    for name, version in variant.environment.items():
        other = packages.get(canonicalize_name(name), version)
        if _VERSION.fullmatch(version) and other != version:
            yield f"its environment has {name} {version}, its packages have {other}"
    with suppress(ValueError):
        if datetime.fromisoformat(record.finished) < datetime.fromisoformat(record.started):
            yield f"it ended at {record.finished}, before its start at {record.started}"
    if record.status == "complete" and record.selection:
        yield f"it is complete, and has only the tests of {record.selection}"
    devices = series.device.replace("auto", ""), series.device_kind
    if all(devices) and (devices[0] == "cpu") is not (devices[1] == "cpu"):
        yield f"it ran on {series.device}, of the kind {series.device_kind}"
    if not record.duration_s:
        yield "it took no time"
    yield from (note for note in record.notes if "left out" in note)


def _framework_change(old: Record, new: Record) -> ChangedSetting | None:
    """Return the change of the framework's version, or else of its build; companions in the label do not count."""
    sides = public(old), public(new)
    if sides[0] == sides[1]:
        sides = _without_companions(old), _without_companions(new)
    return ChangedSetting(new.series.framework, *sides) if sides[0] != sides[1] else None


def _instruction_set_change(old: set[str], new: set[str]) -> ChangedSetting | None:
    only = ", ".join(sorted(old - new)), ", ".join(sorted(new - old))
    return ChangedSetting("instruction sets", *only) if old and new and any(only) else None


def public(record: Record) -> str:
    """Return a framework's version without its local label, which names a build or companions."""
    return record.variant.framework_version.partition("+")[0]


def parse_version_label(record: Record) -> dict[str, str]:
    """Return the versions of the companions in the local label of a framework's version, by package."""
    label = record.variant.framework_version.partition("+")[2]
    return {name: version for name, version in _LABEL.findall(label) if name in COMPANIONS | LIBRARIES}


def _without_companions(record: Record) -> str:
    release, _, label = record.variant.framework_version.partition("+")
    rest = _LABEL.sub(lambda part: "" if part[1] in COMPANIONS | LIBRARIES else part[0], label).strip(".")
    return f"{release}+{rest}" if rest else release


def _versions(record: Record) -> dict[str, str]:
    """Return versions by normalized package name: all that the record lists, else those in version and environment."""
    if record.variant.packages:
        return {canonicalize_name(name): version for name, version in record.variant.packages.items()}
    result = parse_version_label(record)
    for name, value in record.variant.environment.items():
        plain = canonicalize_name(name)
        if plain in COMPANIONS.union({"jaxlib"}, *OWN.values()) and _VERSION.fullmatch(value):
            result[plain] = value
    return result


def _switches(record: Record, packages: set[str]) -> dict[str, str]:
    settings = record.variant.environment
    return {name: value for name, value in settings.items() if canonicalize_name(name) not in packages}


def _changes(old: Mapping[str, str], new: Mapping[str, str]) -> tuple[ChangedSetting, ...]:
    names = [name for name in sorted(old.keys() | new.keys()) if old.get(name) != new.get(name)]
    return tuple(ChangedSetting(name, old.get(name, ""), new.get(name, "")) for name in names)


def _crossing(new: Record, version: str, companions: tuple[ChangedSetting, ...], moved: bool) -> str:
    """Return the command that runs the new framework with those old companions that its wheel does not fix."""
    name = new.series.framework
    wheels = (*BUNDLED, *ON_A_GPU)
    free = [step for step in companions if not (moved and step.name.startswith(wheels)) and step.old and step.new]
    wanted = [(name, version), *((step.name, step.old) for step in free)]
    if not free or name not in OWN or not all(_VERSION.fullmatch(text) for _, text in wanted):
        return ""
    mode = new.series.mode
    modes = [f"CONFORMANCE_MODES={mode}"] if LIBRARIES & parse_version_label(new).keys() else []
    return " ".join((*modes, *(f"{variable(package)}={text}" for package, text in wanted), f"tox -e {name}"))


def variable(package: str) -> str:
    """Return the name of the environment variable that chooses a package's version."""
    return re.sub("[-.]+", "_", package).upper() + "_VERSION"
