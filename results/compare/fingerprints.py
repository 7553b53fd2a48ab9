"""Fingerprints of packages: reading them, and what differs between those of two versions.

A fingerprint has the signatures of a package's public callables and the outcomes of generated calls. An outcome is a
structure (paths, formats and shapes of arrays, texts, categories of warnings, or "!" and the name of an exception), a
digest of all bits, and of each array two numbers with 16 significant bits: its root mean square, and its mean with
weights of both signs. Rounding moves these by less than the format's roundoff; whatever moves them further is a change.
"""

import base64
import re
import struct
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Literal

import msgspec

from results.record.files import RecordError, one_line, read

SUFFIX = ".fingerprint.gz"
RESOLUTION = 2.0**-12
"""Relative difference that counts as rounding in every format; a stored number has 16 bits."""
FLOOR = 2.0**-23
"""Difference that counts as rounding for any size, that of float32: inputs are about 1."""
ROUNDINGS = {"w": 0.0, "b": 2.0**-7, "h": 2.0**-9, "8": 2.0**-2, "f": RESOLUTION}
"""Relative difference that counts as rounding, by letter: whole numbers, bfloat16, float16, float8, other formats."""
SKETCH = 9
"""Characters of an array: its letter, its root mean square, its weighted mean."""
DIGEST = 4
"""Characters of the digest of all bits."""
LEAVES = 12
"""Greatest number of arrays with numbers of their own; the others share the last."""

_NUMERIC = re.compile(r"(?:\w\[[1-9][\dx]*\]|\w\[\]|\b(?:int|float|complex))(?: nan=\d+)?(?: inf=\d+)?(?: ![! \w]+)?$")
_WARNINGS = re.compile(r" ![! \w]+$")


class VariantTable(msgspec.Struct, forbid_unknown_fields=True):
    """A variant of a program: texts to replace, and whether the result must be that of the plain program."""

    replace: list[tuple[str, str]]
    same: bool


class KindTable(msgspec.Struct, forbid_unknown_fields=True):
    """The program of a kind of callables, and its variants by name."""

    program: str
    variants: dict[str, VariantTable]


class CallableTable(msgspec.Struct, forbid_unknown_fields=True):
    """A callable's signature, kind ("" for one that is not called), and outcomes by arguments and variant."""

    signature: str
    kind: str
    cases: dict[str, str]


class PackageFingerprint(msgspec.Struct, forbid_unknown_fields=True):
    """What a version of a package does.

    Attributes:
        packages: versions of all installed packages.
        structures: the structures of outcomes, which name them by index.
    """

    fingerprint: Literal[1]
    package: str
    version: str
    packages: dict[str, str]
    instruction_sets: list[str]
    kinds: dict[str, KindTable]
    structures: list[str]
    callables: dict[str, CallableTable]

    def outcome(self, text: str) -> tuple[str, str]:
        """Return the structure and the numbers of an outcome."""
        index, _, numbers = text.partition(" ")
        return self.structures[int(index)], numbers

    def program(self, name: str, case: str) -> str:
        """Return the program of a case."""
        kind = self.kinds[self.callables[name].kind]
        arguments, _, variant = case.partition(" # ")
        program = kind.program
        if variant:
            for old, new in kind.variants[variant].replace:
                program = program.replace(old, new)
        return f"{fill_program(program, name, arguments)}print(result)\n"


def fill_program(program: str, name: str, arguments: str) -> str:
    """Return a kind's program with a call and its import; the class of a method begins with a capital."""
    module = re.sub(r"([.][A-Z]\w*)?[.]\w+$", "", name)
    return f"import {module}\n{program.replace('CALL', f'{name}({arguments})')}\n"


def load(path: Path) -> PackageFingerprint:
    """Read a fingerprint.

    Raises:
        RecordError: it cannot be read.
    """
    try:
        fingerprint = msgspec.json.decode(read(path), type=PackageFingerprint)
        for entry in fingerprint.callables.values():
            if entry.kind and entry.kind not in fingerprint.kinds:
                raise ValueError(f"got a callable of kind {entry.kind!r}, want one of its kinds")
            for outcome in entry.cases.values():
                fingerprint.outcome(outcome)
    except (msgspec.MsgspecError, ValueError, IndexError, RecursionError) as error:
        raise RecordError(path, f"is no fingerprint ({one_line(str(error))})", "make it again") from None
    return fingerprint


class Difference(StrEnum):
    """How a callable differs, the gravest first."""

    BROKEN = "raises now"
    OTHERWISE = "behaves otherwise"
    DEFAULT = "other defaults"
    REMOVED = "removed"
    PARAMETERS = "other parameters"
    REPAIRED = "no longer raises"
    WARNS = "other warnings"
    EXCEPTION = "raises something else"
    NEW = "new"


@dataclass(frozen=True)
class CallableChange:
    """A difference of a callable: the old and the new value in words, and the smallest program that shows it, or ""."""

    difference: Difference
    name: str
    step: str = ""
    program: str = ""
    cases: int = 1


@dataclass(frozen=True)
class FingerprintComparison:
    """Two fingerprints of a package.

    Attributes:
        identical, rounding, changed: numbers of cases that both have.
        packages: other packages that differ, with both versions, "" where one is missing.
    """

    old: PackageFingerprint
    new: PackageFingerprint
    changes: tuple[CallableChange, ...]
    identical: int
    rounding: int
    changed: int

    @property
    def packages(self) -> dict[str, tuple[str, str]]:
        old, new = self.old.packages, self.new.packages
        names = sorted(old.keys() | new.keys(), key=str.lower)
        return {
            name: (old.get(name, ""), new.get(name, ""))
            for name in names
            if old.get(name) != new.get(name) and name.lower().replace("_", "-") != self.new.package
        }

    def list_changes(self, difference: Difference) -> list[CallableChange]:
        """Return the changes of a kind."""
        return [change for change in self.changes if change.difference is difference]

    @property
    def exit_status(self) -> int:
        """1 if a call that worked raises, or a callable is gone."""
        return int(any(change.difference in (Difference.BROKEN, Difference.REMOVED) for change in self.changes))


def compare_fingerprints(old: PackageFingerprint, new: PackageFingerprint) -> FingerprintComparison:
    """Compare two versions of a package, callable by callable and case by case."""
    changes: list[CallableChange] = []
    counts = {"": 0, "rounding": 0, "changed": 0}
    steps: dict[tuple[str, Difference], dict[str, list[str]]] = {}
    for name, before in old.callables.items():
        after = new.callables.get(name)
        if after is None:
            changes.append(CallableChange(Difference.REMOVED, name))
            continue
        changes += _compare_signatures(name, before.signature, after.signature)
        for difference, found in _compare_cases(before.cases, after.cases, old, new, counts).items():
            steps[name, difference] = found
    shared = Counter((difference, step) for (_, difference), found in steps.items() for step in found)
    for (name, difference), found in steps.items():
        step = min(found, key=lambda step: shared[difference, step])
        cases = sum(map(len, found.values()))
        changes.append(CallableChange(difference, name, step, new.program(name, found[step][0]), cases))
    added = new.callables.keys() - old.callables.keys()
    changes += [CallableChange(Difference.NEW, name) for name in new.callables if name in added]
    order = [*Difference]
    changes.sort(key=lambda change: order.index(change.difference))
    return FingerprintComparison(old, new, tuple(changes), counts[""], counts["rounding"], counts["changed"])


def _compare_cases(
    before: dict[str, str],
    after: dict[str, str],
    old: PackageFingerprint,
    new: PackageFingerprint,
    counts: dict[str, int],
) -> dict[Difference, dict[str, list[str]]]:
    """Count a callable's cases, and return those that differ by how they differ and in what, the smallest first."""
    result: dict[Difference, dict[str, list[str]]] = {}
    for case in sorted(before.keys() & after.keys(), key=lambda case: (" # " in case, len(case), case)):
        found = explain_outcomes(old.outcome(before[case]), new.outcome(after[case]))
        counts["changed" if found and found != "rounding" else str(found)] += 1
        if isinstance(found, tuple):
            result.setdefault(found[0], {}).setdefault(found[1], []).append(case)
    return result


def explain_outcomes(old: tuple[str, str], new: tuple[str, str]) -> Literal["", "rounding"] | tuple[Difference, str]:
    """Compare two outcomes of a program: "", "rounding", or the difference in words."""
    (was, old_numbers), (now, new_numbers) = old, new
    if was.startswith("!") or now.startswith("!"):
        if was == now:
            return ""
        if not was.startswith("!"):
            return Difference.BROKEN, now.removeprefix("!")
        return (
            (Difference.EXCEPTION, f"{was[1:]} -> {now[1:]}") if now.startswith("!") else (Difference.REPAIRED, was[1:])
        )
    plain, plain_now = _WARNINGS.sub("", was), _WARNINGS.sub("", now)
    if plain != plain_now:
        return Difference.OTHERWISE, explain_structures(plain, plain_now)
    step = explain_numbers(plain, old_numbers, new_numbers)
    if step not in ("", "rounding"):
        return Difference.OTHERWISE, step
    if was != now:
        categories = (" ".join(text.removeprefix(plain).replace("!", "").split()) or "none" for text in (was, now))
        return Difference.WARNS, " -> ".join(categories)
    return "rounding" if step else ""


def explain_structures(old: str, new: str) -> str:
    """Return the first part in which two structures differ."""
    before, after = old.split("; "), new.split("; ")
    for was, now in zip(before, after, strict=False):
        if was != now:
            return f"{_cut(was)} -> {_cut(now)}"
    longer = before if len(before) > len(after) else after
    return f"{'no longer' if longer is before else 'now also'} {_cut(longer[min(len(before), len(after))])}"


def _cut(text: str) -> str:
    return text if len(text) <= 60 else text[:59] + "…"


def explain_numbers(structure: str, old: str, new: str) -> str:
    """Compare the numbers of two results of one structure: "", "rounding", or the first array that changed."""
    if old == new:
        return ""
    for start in range(DIGEST, min(len(old), len(new)), SKETCH):
        was, now = old[start : start + SKETCH], new[start : start + SKETCH]
        if was == now:
            continue
        (old_size, old_mean), (new_size, new_mean) = (_decode_pair(text) for text in (was, now))
        rounding = ROUNDINGS[was[0]] * max(abs(old_size), abs(new_size))
        share = max(rounding, FLOOR) if rounding else 0.0
        for name, before, after in (("size", old_size, new_size), ("weighted mean", old_mean, new_mean)):
            if not abs(before - after) <= share:
                return f"{_name_array(structure, start)}{name} {before:.5g} -> {after:.5g}"
    return "rounding"


def _decode_pair(text: str) -> tuple[float, float]:
    """Return the root mean square and the weighted mean of an array."""
    size, mean = (struct.unpack(">f", base64.b64decode(part) + b"\0")[0] for part in (text[1:5], text[5:9]))
    return size, mean


def _name_array(structure: str, start: int) -> str:
    """Return the path and the format of the array whose numbers begin at an index, with a blank after it."""
    paths = [part for part in structure.split("; ") if _NUMERIC.search(part)]
    index = (start - DIGEST) // SKETCH
    return f"{paths[index]} " if index < min(len(paths), LEAVES - 1) else ""


def _compare_signatures(name: str, old: str, new: str) -> Iterator[CallableChange]:
    if old == new:
        return
    before, after = _split_signature(old), _split_signature(new)
    both = [parameter for parameter in before if parameter in after]
    if moved := [parameter for parameter in both if before[parameter] != after[parameter]]:
        steps = (f"{parameter}={before[parameter]} -> {after[parameter]}" for parameter in moved)
        yield CallableChange(Difference.DEFAULT, name, ", ".join(steps))
    gone = [f"-{parameter}" for parameter in before if parameter not in after]
    order = [*after]
    added = [
        f"+{parameter}"
        + next((f" before {later}" for later in order[index:] if later in before and later[0] != "*"), "")
        for index, parameter in enumerate(order)
        if parameter not in before
    ]
    if gone or added:
        yield CallableChange(Difference.PARAMETERS, name, " ".join([*gone, *added]))


def _split_signature(text: str) -> dict[str, str]:
    """Return the defaults of a signature's parameters by name, "" for none."""
    parts, depth, start = [], 0, 1
    for index, character in enumerate(text):
        depth += (character in "([{") - (character in ")]}")
        if (character == "," and depth == 1) or (character == ")" and depth == 0):
            parts.append(text[start:index].strip())
            start = index + 1
    pairs = (part.partition("=") for part in parts if part)
    return {name: default for name, _, default in pairs}


def order_of(version: str) -> tuple[int, ...]:
    """Return the numbers of a version, by which versions are ordered."""
    return tuple(map(int, re.findall(r"\d+", version)))


def find_disagreements(fingerprint: PackageFingerprint) -> tuple[int, list[tuple[str, str, str, str]]]:
    """Compare calls whose results must agree: plain ones, those that name a default, and variants of the same result.

    Returns:
        The number of comparisons; of each that fails the callable, the arguments, the variant or "", and what differs.
    """
    count, failures = 0, []
    for name, entry in fingerprint.callables.items():
        defaults = _split_signature(entry.signature)
        for case, outcome in entry.cases.items():
            arguments, _, variant = case.partition(" # ")
            plain = arguments
            if not variant:
                plain, _, option = arguments.rpartition(", ") if ", " in arguments else ("", "", arguments)
                parameter, _, text = option.partition("=")
                if not text or defaults.get(parameter) != text:
                    continue
            elif not fingerprint.kinds[entry.kind].variants[variant].same:
                continue
            before = fingerprint.outcome(entry.cases[plain]) if plain in entry.cases else ("!", "")
            if before[0].startswith("!"):
                continue
            count += 1
            found = explain_outcomes(before, fingerprint.outcome(outcome))
            if isinstance(found, tuple) and found[0] is not Difference.WARNS:
                failures.append((name, arguments, variant, f"{found[0]}: {found[1]}"))
    return count, failures


def list_fingerprints(paths: Sequence[Path]) -> list[Path]:
    """Return the fingerprints among files, and those of folders, by name."""
    found: list[Path] = []
    for path in paths:
        inner = sorted(path.glob(f"*{SUFFIX}")) if path.is_dir() else [path] if path.name.endswith(SUFFIX) else []
        found += inner
    return found


def pair_fingerprints(old: Sequence[Path], new: Sequence[Path]) -> list[FingerprintComparison]:
    """Compare the fingerprints of each package that both sides have, of several versions the newest."""
    before, after = (
        {entry.package: entry for entry in sorted(map(load, paths), key=lambda entry: order_of(entry.version))}
        for paths in (old, new)
    )
    return [compare_fingerprints(before[name], after[name]) for name in sorted(before.keys() & after.keys())]


_LISTED = 40
"""Greatest number of callables of a line."""
_EXPLAINED = 12
"""Greatest number of callables of a line that are listed with what changed."""
_PROGRAMS = 5
"""Number of programs on a terminal."""
_COUNTED = (Difference.EXCEPTION, Difference.WARNS)
"""Differences that are only counted on a terminal."""


def to_text(comparisons: Sequence[FingerprintComparison]) -> str:
    """Return the changes of each package in a few lines, and the first programs."""
    lines = [line for comparison in comparisons for line in (*_head(comparison), *_programs(comparison, _PROGRAMS))]
    return "\n".join(lines) + "\n"


def markdown(comparisons: Sequence[FingerprintComparison]) -> str:
    """Return the changes as Markdown, with a folded program for each callable that behaves otherwise."""
    lines: list[str] = []
    for comparison in comparisons:
        title, *rest = _head(comparison)
        lines += [f"### {title}", "", *(f"- {line.strip()}" for line in rest), ""]
        for change in list_important(comparison):
            lines += [f"<details><summary>{change.name}: {change.difference}, {change.step}</summary>", ""]
            lines += ["```python", change.program.rstrip(), "```", "</details>", ""]
    return "\n".join(lines)


def _head(comparison: FingerprintComparison) -> Iterator[str]:
    """Yield the package with its counts, then one line for each kind of difference."""
    old, new = comparison.old, comparison.new
    cases = f"{comparison.identical} identical, {comparison.rounding} rounding, {comparison.changed} changed"
    yield f"{new.package} {old.version} -> {new.version}: {len(new.callables)} callables; of the calls {cases}"
    if packages := comparison.packages:
        steps = [f"{name} {before or 'none'} -> {after or 'none'}" for name, (before, after) in packages.items()]
        yield f"  other packages ({len(steps)}): {_join(steps, _EXPLAINED)}"
    if set(old.instruction_sets) != set(new.instruction_sets):
        yield "  of another processor"
    for difference in Difference:
        if changes := comparison.list_changes(difference):
            listed = list_names([(change.name, change.step) for change in changes])
            names = "" if difference in _COUNTED else f": {listed}"
            yield f"  {difference} ({len(changes)}){names}"


def list_names(changes: Sequence[tuple[str, str]]) -> str:
    """Return callables with what changed if the changes are few, otherwise those of a namespace together."""
    steps: dict[str, list[str]] = {}
    for name, step in changes:
        steps.setdefault(step or name, []).append(name)
    if len(steps) <= _EXPLAINED:
        return "; ".join(
            f"{', '.join(_group(names))}{f' ({step})' if step not in names else ''}" for step, names in steps.items()
        )
    return _join(_group(name for name, _ in changes), _LISTED)


def _group(names: Iterable[str]) -> list[str]:
    spaces: dict[str, list[str]] = {}
    for name in names:
        space, _, last = name.rpartition(".")
        spaces.setdefault(space, []).append(last)
    return [
        f"{space}.{last}" if index == 0 else last for space, rest in spaces.items() for index, last in enumerate(rest)
    ]


def _join(texts: Sequence[str], limit: int) -> str:
    more = len(texts) - limit
    return ", ".join(texts[:limit]) + (f" and {more} more" if more > 0 else "")


def list_important(comparison: FingerprintComparison) -> list[CallableChange]:
    """Return the changes that a program shows and a user must look at."""
    kinds = (Difference.BROKEN, Difference.OTHERWISE)
    return [change for change in comparison.changes if change.difference in kinds]


def _programs(comparison: FingerprintComparison, limit: int) -> Iterator[str]:
    for change in list_important(comparison)[:limit]:
        yield f"\n  {change.name} {change.difference}: {change.step}"
        yield from (f"    {line}" for line in change.program.splitlines())
