"""Baselines: the committed records that later runs are compared with, one for each series."""

from dataclasses import replace
from functools import cache
from pathlib import Path

from conformance.known_failures.entries import split_ways
from conformance.runner import machine
from conformance.runner.identity import name_of
from conformance.test_ids import inventory
from frameworks.registry import find_adapters
from results.record.files import RecordError
from results.record.folders import INSTALLED, SHIPPED, list_records
from results.record.reading import Record, load, write

BASELINES = SHIPPED / "baselines"
SEED = 0
"""The seed of baselines, and the default seed of runs."""
FOREIGN = "on a processor that no baseline has"
"""Prefix of a failure's message on a processor that is not like that of any baseline."""


def former(record: Record, folder: Path = BASELINES) -> tuple[Path, Record] | None:
    """Return path and content of the baseline of a record's series; None without one, or if its run was interrupted.

    Of several, the first one of a processor that allows the same kernels is taken (`machine.level`), else the first.

    Raises:
        RecordError: a baseline cannot be read.
    """
    first, level = None, machine.level(record.variant.instruction_sets)
    for path in list_records(folder):
        baseline = load(path)
        if baseline.series.key == record.series.key and baseline.status != "interrupted":
            if machine.level(baseline.variant.instruction_sets) == level:
                return path, baseline
            first = first or (path, baseline)
    return first


@cache
def foreign(framework: str, mode: str, device: str, folder: Path = BASELINES) -> str:
    """Return the prefix of failures' messages if no baseline of the series is of a processor like this one; else "".

    Processors are alike if their instruction sets allow the same kernels (`machine.level`). The prefix is "" if the
    series has no baseline, and for the reference, whose results do not depend on kernels.

    Raises:
        RecordError: a baseline cannot be read.
    """
    if framework == "reference":
        return ""
    level = machine.level(machine.instruction_sets())
    named = [path for path in list_records(folder) if path.name.startswith(f"{framework}-")]
    records = [load(path) for path in named if path.name.partition(".json")[0].endswith(f"-{device}-{mode}")]
    levels = {machine.level(record.variant.instruction_sets) for record in records}
    return "" if not levels or level in levels else f"{FOREIGN} ({level}; they have {', '.join(sorted(levels))}): "


def nearest(name: str, mode: str, device: str, folder: Path = BASELINES) -> Path | None:
    """Return the path of the nearest baseline of a framework, None without any baseline.

    The first that exists is taken: of the same framework, mode and device; of the same framework and device; of the
    same framework; of the reference.
    """

    def distance(path: Path) -> tuple[bool, bool, bool, bool, str]:
        stem = path.name.removesuffix(".gz").removesuffix(".json")
        same_framework = stem.startswith(f"{name}-")
        same_mode = same_framework and stem.endswith(f"-{mode}")
        return not same_framework, not same_mode, f"-{device}-" not in stem, not stem.startswith("reference-"), stem

    return min(list_records(folder), key=distance, default=None)


def lacking(record: Record) -> list[str]:
    """Return test functions without a verdict in the record, except those that take a workaround or a way."""
    judged = {verdict.test.partition("[")[0] for verdict in record.verdicts}
    own = {"workaround", "judged_kind", "saved_run", "way", "rank_way", "file_way", "rate_way"}
    return sorted(code.id for code in inventory().values() if code.id not in judged and not own & {*code.parameters})


def acceptable(path: Path) -> Record:
    """Return the record in a file if it may be a baseline.

    Raises:
        RecordError: the file cannot be read; or the record is of an interrupted run, of selected tests, of another
            seed, or of an unknown framework or mode; or it lacks tests of the present suites.
        UnknownFramework: the adapter's modes are not known.
    """
    record = load(path)
    if record.status == "interrupted":
        raise RecordError(path, "is of an interrupted run", "run the suite to its end")
    if record.selection or record.status == "partial":
        details = record.selection or "; ".join(record.notes)
        raise RecordError(path, f"is of selected tests only{f' ({details})' if details else ''}", "run all tests")
    if tests := lacking(record):
        named = f"{tests[0]}{', ...' if tests[1:] else ''}"
        problem = f"lacks {len(tests)} of the suites' {len(inventory())} test functions ({named})"
        raise RecordError(path, problem, "run the present suites")
    if record.seed != SEED:
        raise RecordError(
            path, f"is of seed {record.seed}, and baselines are of seed {SEED}", f"run with --seed={SEED}"
        )
    if problem := _unknown(record):
        raise RecordError(path, f"is of no series of the suite ({problem})", "name a record of an adapter that is here")
    return record


def _unknown(record: Record) -> str:
    """Return which of a record's framework, mode and ways is unknown, "" if all are known."""
    from conformance.runner.subprocesses import check_mode
    from frameworks.ways import load_ways

    framework, (mode, ways) = record.series.framework, split_ways(record.series.mode)
    if framework not in find_adapters():
        return f"no adapter is called {framework!r}: one of {', '.join(sorted(find_adapters()))}"
    known_ways = [str(way) for way in load_ways(framework)]
    named = {"framework_version": record.variant.framework_version, "device": record.series.device}
    if bad := next((key for key, name in named.items() if {"/", "\\"} & {*name}), None):
        return f"{bad}: got {named[bad]!r}, want a name without path separators"
    missing = next((way for way in ways if way not in known_ways), None)
    try:
        check_mode(framework, mode, loadable=True)
    except ValueError as error:
        return str(error)
    return f"{framework} has no way {missing!r}" if missing is not None else ""


def accept(path: Path, reason: str, folder: Path = BASELINES) -> Path:
    """Make a record the baseline of its series, in a file of the series' name, and add the reason to its notes.

    Raises:
        RecordError: it cannot be read, may not be a baseline (see `acceptable`), or the file is another series'.
        UnknownFramework: the adapter's modes are not known.
    """
    if INSTALLED and folder == BASELINES:
        raise RecordError(
            path, "cannot be a baseline of an installed suite", "compare with it: conformance compare OLD NEW"
        )
    record = acceptable(path)
    old = former(record, folder)
    accepted = folder / f"{name_of(record.series, record.variant.framework_version)}.json.gz"
    if accepted.exists() and (old is None or old[0] != accepted):
        other = load(accepted).series
        if old is None or other.key != record.series.key:
            problem = f"is the baseline of another series ({other.framework} {other.mode} {other.device_kind})"
            raise RecordError(accepted, problem, "give that file another name first")
        accepted = old[0]  # the other is of another processor
    folder.mkdir(parents=True, exist_ok=True)
    write(accepted, replace(record, notes=(*record.notes, f"accepted as the baseline: {reason}")))
    if old is not None and old[0] != accepted:
        old[0].unlink()
    return accepted
