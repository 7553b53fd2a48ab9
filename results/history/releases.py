"""What the fingerprints of a package's neighbouring versions say of each release, as JSON to commit and as lines."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import msgspec

from results.compare.fingerprints import SUFFIX, Difference, FingerprintComparison, compare_fingerprints, load, order_of
from results.record.files import RecordError, one_line, read
from results.show.fingerprints import list_names

FOLDER = Path(__file__).parents[1] / "releases"
"""The committed releases, a file for each package."""


class Release(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The differences between two versions of a package.

    Attributes:
        packages: other packages that differ, with both versions.
        calls: numbers of calls that are identical, differ by rounding, and changed.
        changes: what changed, by difference and callable.
    """

    package: str
    old: str
    new: str
    packages: dict[str, tuple[str, str]]
    calls: tuple[int, int, int]
    changes: dict[Difference, dict[str, str]]

    def lines(self) -> Iterator[str]:
        """Yield the release with its counts, then a line for each kind of difference, the gravest first."""
        identical, rounding, changed = self.calls
        calls = f"{identical} calls identical, {rounding} rounding, {changed} changed"
        yield f"{self.package} {self.old} -> {self.new}: {calls}"
        if self.packages:
            yield "  with " + ", ".join(
                f"{name} {old or 'none'} -> {new or 'none'}" for name, (old, new) in self.packages.items()
            )
        for difference in Difference:
            if names := self.changes.get(difference):
                yield one_line(f"  {difference} ({len(names)}): {list_names(list(names.items()))}", 2000)


def find_releases(paths: Iterable[Path]) -> list[Release]:
    """Compare the neighbouring versions of each package in folders, which are searched to any depth.

    Raises:
        RecordError: a fingerprint cannot be read.
    """
    files = (file for path in paths for file in (sorted(path.rglob(f"*{SUFFIX}")) if path.is_dir() else [path]))
    files = (file for file in files if file.name.endswith(SUFFIX))
    packages: dict[str, dict[str, Path]] = {}
    for file in files:
        package, _, version = file.name.removesuffix(SUFFIX).rpartition("-")
        packages.setdefault(package, {})[version] = file
    result = []
    for _, versions in sorted(packages.items()):
        for old, new in pairwise(sorted(versions, key=order_of)):
            result.append(_condense(compare_fingerprints(load(versions[old]), load(versions[new]))))
    return result


def _condense(comparison: FingerprintComparison) -> Release:
    changes: dict[Difference, dict[str, str]] = {}
    for change in comparison.changes:
        changes.setdefault(change.difference, {})[change.name] = change.step
    old, new = comparison.old, comparison.new
    counts = (comparison.identical, comparison.rounding, comparison.changed)
    return Release(new.package, old.version, new.version, comparison.packages, counts, changes)


def write_releases(releases: Sequence[Release]) -> dict[str, bytes]:
    """Return the content of a file for each package, a line for each release."""
    packages: dict[str, list[Release]] = {}
    for release in releases:
        packages.setdefault(release.package, []).append(release)
    return {
        f"{package}.jsonl": b"".join(msgspec.json.encode(release) + b"\n" for release in some)
        for package, some in packages.items()
    }


def load_releases(folder: Path = FOLDER) -> list[Release]:
    """Read the committed releases.

    Raises:
        RecordError: a file is damaged.
    """
    result: list[Release] = []
    for path in sorted(folder.glob("*.jsonl")):
        try:
            result += msgspec.json.Decoder(Release).decode_lines(read(path))
        except msgspec.MsgspecError as error:
            raise RecordError(path, f"has no releases ({error})", "restore it") from None
    return result
