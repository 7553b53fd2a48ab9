"""The records that a command reads, whole or reduced: files, journals, folders, or the last runs of this checkout."""

import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from results.record.files import RecordError, os_problem
from results.record.model import CheckResult, ClauseText, Record, RunSetup, TestVerdict
from results.record.reading import load, pause_collector

SHIPPED = Path(__file__).parents[1]
"""The suite's own results: baselines and histories."""

INSTALLED = SHIPPED.parts[-3:-1] == ("conformance", "tree")
"""True if the suite is installed as a package, and is not a checkout."""

_VARIABLE = "CONFORMANCE_RESULTS"

if INSTALLED:  # for the processes of a run as well, which run elsewhere
    os.environ.setdefault(_VARIABLE, os.path.abspath("conformance-results"))

WRITTEN = Path(os.environ.get(_VARIABLE) or SHIPPED)
"""Folder that runs write to: a checkout's `results`, or the current folder's `conformance-results` if installed."""

LAST_RUNS = WRITTEN / "records"
"""Folder of the records of runs of all tests."""

ENDINGS = (".json", ".json.gz", ".jsonl")
"""Suffixes of records and journals."""

Watch = Callable[[list[Path]], Iterable[Path]]

_EARLIER = re.compile(r"(.*)\.(?:interrupted|partial)-[0-9]+\.json")

_TEXTS = ("test", "clause", "message", "reason", "link", "repro")


def read(
    paths: Sequence[Path],
    watch: Watch = lambda files: files,
    convert: Callable[[Record], Record] = lambda record: record,
) -> list[Record]:
    """The records of files and folders; of the last runs if none is named. `watch` sees each file as it is read.

    Args:
        convert: makes of a record what the caller needs, as soon as it is read, such as its outline.

    Raises:
        RecordError: one cannot be read, or there is none.
    """
    if not paths and not LAST_RUNS.is_dir():
        raise RecordError(os.path.relpath(LAST_RUNS), "contains no record", "run the suite first or name records")
    with pause_collector():
        return [convert(load(path)) for path in watch(find(paths or [LAST_RUNS]))]


def find(paths: Sequence[Path]) -> list[Path]:
    """The record files that `paths` name: files as they are, of a folder its records in order.

    A folder's NAME.interrupted-N.json or NAME.partial-N.json is left out if NAME.json lies next to it.

    Raises:
        RecordError: a folder cannot be read or holds no record.
    """
    result: list[Path] = []
    for path in paths:
        chosen = list_records(path) if os.path.isdir(path) else [path]
        if not chosen:
            raise RecordError(path, "contains no record", "run the suite first")
        result += chosen
    return result


def list_records(folder: Path) -> list[Path]:
    """The record files of a folder, as `find` has them; none if there is no such folder.

    Raises:
        RecordError: it cannot be read.
    """
    try:
        names = {entry.name for entry in folder.iterdir() if entry.name.endswith(ENDINGS)}
    except FileNotFoundError:
        return []
    except OSError as error:
        raise RecordError(folder, f"cannot be read ({os_problem(error)})", "check its permissions") from None
    earlier = {name for name in names if (match := _EARLIER.fullmatch(name)) and f"{match[1]}.json" in names}
    return [folder / name for name in sorted(names - earlier) if not name.startswith(".")]


class Outlines:
    """Makes outlines of records: no fingerprints, and one object for equal texts, checks and runs.

    Args:
        details: whether checks, runs, costs and curves stay, as a report shows them.
    """

    def __init__(self, details: bool = False) -> None:
        self._details = details
        self._texts: dict[str, str] = {}
        self._clauses: dict[ClauseText, ClauseText] = {}
        self._checks: dict[str, CheckResult] = {}
        self._runs: dict[str, RunSetup] = {}

    def __call__(self, record: Record) -> Record:
        """The outline of a record."""
        clauses = {
            self._texts.setdefault(name, name): self._clauses.setdefault(text, text)
            for name, text in record.clauses.items()
        }
        verdicts = tuple(self._verdict(verdict) for verdict in record.verdicts)
        outline = replace(record, clauses=clauses, verdicts=verdicts, tensors=())
        return outline if self._details else replace(outline, measurements=(), traces=())

    def _verdict(self, verdict: TestVerdict) -> TestVerdict:
        share, values = self._texts.setdefault, vars(verdict)
        shared: dict[str, Any] = {name: share(values[name], values[name]) for name in _TEXTS}
        checks, runs = (verdict.checks, verdict.runs) if self._details else ((), ())
        shared["checks"] = tuple(self._checks.setdefault(repr(check), check) for check in checks)
        shared["runs"] = tuple(self._runs.setdefault(repr(run), run) for run in runs)
        return TestVerdict(**(values | shared))


def heading(record: Record) -> Record:
    """The record without the results of its tests."""
    return replace(record.with_parts(lambda _: ()), clauses={}, findings={}, verdicts=())
