"""The committed records that later runs are compared with: one a series."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from results.compare.pairing import series
from results.record.files import RecordError
from results.record.folders import LAST_RUNS
from results.record.reading import Record, load, write

BASELINES = LAST_RUNS.parent / "baselines"


def former(record: Record, folder: Path = BASELINES) -> tuple[Path, Record] | None:
    """The baseline of a record's series and where it lies; None if there is none.

    Raises:
        RecordError: a baseline cannot be read.
    """
    for path in sorted(folder.glob("*.json")):
        baseline = load(path)
        if series(baseline) == series(record):
            return path, baseline
    return None


def accept(path: Path, reason: str, folder: Path = BASELINES) -> Path:
    """Makes a record the baseline of its series, in place of the former one, with the reason among its notes.

    Raises:
        RecordError: it cannot be read, or it is of an interrupted run or of some tests only.
    """
    record = load(path)
    if record.status != "complete":
        raise RecordError(path, "is of an interrupted run", "run the suite to its end")
    if record.selection:
        raise RecordError(path, f"is of some tests only ({record.selection})", "run all of them")
    old = former(record, folder)
    accepted = folder / f"{path.name.removesuffix('.json')}.json"
    folder.mkdir(parents=True, exist_ok=True)
    write(accepted, replace(record, notes=(*record.notes, f"accepted as the baseline: {reason}")))
    if old is not None and old[0] != accepted:
        old[0].unlink()
    return accepted
