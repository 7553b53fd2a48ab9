"""The committed records that later runs are compared with, one for each series."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from conformance.test_ids.inventory import inventory
from results.compare.pairing import series
from results.record.files import RecordError
from results.record.folders import LAST_RUNS, listed
from results.record.reading import Record, load, write

BASELINES = LAST_RUNS.parent / "baselines"


def former(record: Record, folder: Path = BASELINES) -> tuple[Path, Record] | None:
    """The baseline of a record's series and its path; None if there is none, or if it is of an interrupted run.

    Raises:
        RecordError: a baseline cannot be read.
    """
    for path in listed(folder):
        baseline = load(path)
        if series(baseline) == series(record) and baseline.status != "interrupted":
            return path, baseline
    return None


def nearest(name: str, mode: str, device: str, folder: Path = BASELINES) -> Path | None:
    """The path of the nearest baseline of a framework, None without any baseline.

    It is of the same framework, mode and device; of the same framework and device; of the same framework; or else of
    the reference.
    """

    def distance(path: Path) -> tuple[bool, bool, bool, bool, str]:
        words = path.name.removesuffix(".gz").removesuffix(".json")
        own, there = words.startswith(f"{name}-"), f"-{device}-" in words
        return not own, not (own and words.endswith(f"-{mode}")), not there, not words.startswith("reference-"), words

    return min(listed(folder), key=distance, default=None)


def lacking(record: Record) -> list[str]:
    """Test functions without a verdict in the record; an adapter may have no case of a workaround or a way."""
    judged = {verdict.test.partition("[")[0] for verdict in record.verdicts}
    own = {"workaround", "way", "rank_way", "file_way", "rate_way"}
    return sorted(code.id for code in inventory().values() if code.id not in judged and not own & {*code.parameters})


def accept(path: Path, reason: str, folder: Path = BASELINES) -> Path:
    """Makes a record the baseline of its series and adds the reason to its notes.

    Raises:
        RecordError: it cannot be read, is of an interrupted run or of some tests only, or lacks tests of the present
            suites.
    """
    record = load(path)
    if record.status == "interrupted":
        raise RecordError(path, "is of an interrupted run", "run the suite to its end")
    if record.selection or record.status == "partial":
        words = record.selection or "; ".join(record.notes)
        raise RecordError(path, f"is of selected tests only ({words})", "run all tests")
    if tests := lacking(record):
        problem = f"lacks {len(tests)} of the suites' {len(inventory())} test functions ({tests[0]}, ...)"
        raise RecordError(path, problem, "run the present suites")
    old = former(record, folder)
    accepted = folder / f"{path.name.removesuffix('.gz').removesuffix('.json')}.json.gz"
    folder.mkdir(parents=True, exist_ok=True)
    write(accepted, replace(record, notes=(*record.notes, f"accepted as the baseline: {reason}")))
    if old is not None and old[0] != accepted:
        old[0].unlink()
    return accepted
