"""The process that judges one cell: `python -m conformance.sweep.cell_process FOLDER`.

It reads the request from the folder, makes the environment, runs the suite in it within the cell's limit, and writes
the result into the folder. It ends, with everything that it started, when its standard input closes.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec
from packaging.utils import canonicalize_name

from conformance.runner.identity import adapter_files, digest
from conformance.runner.machine import shareable
from conformance.runner.retry import repeat
from conformance.sweep import supervision
from conformance.sweep.cells import SweepCell
from conformance.sweep.environments import EnvironmentCache, environments_folder
from conformance.sweep.plan import selection_text
from conformance.sweep.requests import OUT_OF_TIME, CellRequest, CellResult
from conformance.sweep.supervision import Finished
from conformance.sweep.verdict_cache import VerdictCache, VerdictKey, due, of_cell, selection_digest, verdicts_folder
from conformance.test_ids.inventory import ROOT, code_of, id_of, node_of
from frameworks.installer import locks
from frameworks.installer.distributions import InstallerInterrupted, Unavailable, bare
from frameworks.installer.resolution import distribution_of
from results.record.files import RecordError, one_line, packed, replace
from results.record.journal import journal_of
from results.record.reading import Record, load, to_json

REQUEST, RESULT = "request.json", "result.json"
PROBE_S = 300.0
"""Limit for importing the framework, and for collecting the tests."""

_SETTINGS = {
    "PYTHONHASHSEED": "0",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "TF_CPP_MIN_LOG_LEVEL": "2",
}
_DEFAULTS = {"XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false"}
_LEFT_OUT = ("RAY_", "PYTEST_", "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "CONFORMANCE_MODES", "CONFORMANCE_DEVICE")


class CellNotJudged(Exception):
    """A cell cannot be judged; the arguments are those of its result."""

    def __init__(self, outcome: str, reason: str, log: str = "") -> None:
        super().__init__(outcome, reason)
        self.result = CellResult(outcome, one_line(shareable(reason)), log=log)


@dataclass
class CellRun:
    """One cell, while it is judged.

    Attributes:
        folder: for its temporary files.
        python: of its environment.
    """

    request: CellRequest
    folder: Path
    python: Path
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def cell(self) -> SweepCell:
        """The cell."""
        return self.request.cell

    def judge(self) -> CellResult:
        """Runs the tests that have no verdict yet, and merges the record.

        Raises:
            CellNotJudged: the framework cannot be imported, is another version, or the suite did not end.
        """
        probed = self._probe()
        self._check_version(probed["packages"])
        cache = VerdictCache.of(self._key(probed), verdicts_folder())
        earlier = None if self.request.fresh else cache.read()
        tests: list[str] | None = None
        fresh: Record | None = None
        if earlier is None:
            fresh = self._run([], cache)
            if fresh.status != "interrupted":
                judged = [verdict.test for verdict in fresh.verdicts if node_of(verdict.test) is not None]
                cache.keep_tests(self._selected, judged)
        else:
            tests = self._tests(cache)
            if left := due(tests, earlier):
                fresh = self._run(left, cache)
        record = of_cell(fresh, earlier, tests, selection_text(self.request.plan.selection))
        ran = 0 if fresh is None else len(fresh.verdicts)
        content = packed(Path("record.json.gz"), to_json(record))
        return CellResult("judged", "", content, ran, len(record.verdicts) - ran, self.seconds)

    @property
    def _selected(self) -> str:
        return selection_digest(self.cell.framework, self.request.plan.selection)

    def _tests(self, cache: VerdictCache) -> list[str]:
        """The tests of the cell: those of the last run with this selection and code, or else by a collection."""
        known = cache.tests(self._selected)
        if known is None:
            known = self._collected()
            cache.keep_tests(self._selected, known)
        return known

    def _probe(self) -> Mapping[str, Any]:
        file = self.folder / "probe.json"
        words = [self.cell.framework, self.cell.device, self.cell.mode, str(file)]
        ended = self._command([str(self.python), "-m", "conformance.sweep.probe", *words], PROBE_S)
        if ended.status == 0:
            probed: Mapping[str, Any] = json.loads(file.read_bytes())
            return probed
        reason = f"the import took more than {PROBE_S:.0f} s" if ended.status is None else ended.last_line
        if ended.status is not None and ended.status < 0:
            reason = f"the import ended by {_signal(ended.status)}"
        raise CellNotJudged("import failed", reason, ended.output)

    def _check_version(self, packages: Mapping[str, str]) -> None:
        """Compares the installed versions with those that were asked for."""
        chosen = distribution_of(self.cell.framework)
        if chosen is None:
            return
        own = {canonicalize_name(bare(each)) for each in (chosen.cpu, chosen.gpu)}
        wanted: dict[str, tuple[set[str], str]] = {"the framework": ({*own}, self.cell.framework_version)}
        wanted |= {name: ({name}, version) for name, version in self.cell.packages.items()}
        for name, (names, version) in wanted.items():
            there = [packages[each] for each in names if each in packages]
            if not any(locks.same(each, version) for each in there):
                raise CellNotJudged("wrong version", f"{name}: got {', '.join(there) or 'none'}, want {version}")

    def _key(self, probed: Mapping[str, Any]) -> VerdictKey:
        return VerdictKey(
            self.cell.framework,
            digest(adapter_files(self.cell.framework)),
            probed["packages"],
            probed["machine"],
            tuple(probed["instruction_sets"]),
            probed["device"],
            probed["mode"],
            self.cell.ways,
            self.request.plan.seed,
        )

    def _words(self, workers: int) -> list[str]:
        words = [str(self.python), "-m", "pytest", f"--framework={self.cell.framework}", f"--device={self.cell.device}"]
        words += [f"--mode={self.cell.mode}"] if self.cell.mode else []
        words += [f"--way={way}" for way in self.cell.ways]
        if workers:
            words += [f"--numprocesses={workers}", "--max-worker-restart=1000", "--dist=worksteal", "--timeout=120"]
        return words

    def _collected(self) -> list[str]:
        """The tests of the cell, by one collection."""
        plan = self.request.plan
        words = [*self._words(0), f"--seed={plan.seed}", "--collect-only", "-q", *plan.selection]
        file = self.folder / "collected.txt"
        ended = self._command(words, PROBE_S, file)
        if ended.status not in (0, 5):
            raise CellNotJudged("crash", f"the tests cannot be collected ({ended.last_line})", ended.output)
        nodes = [line.strip() for line in file.read_text("utf-8", "replace").splitlines() if "::" in line]
        return [id_of(node) for node in nodes if code_of(node) is not None]

    def _run(self, tests: Sequence[str], cache: VerdictCache) -> Record:
        """The record of a run of some tests, of the whole selection without any.

        Raises:
            CellNotJudged: it did not end, or not within the limit. Verdicts until then are kept for another run.
        """
        path, plan = self.folder / "record.json", self.request.plan
        words = [*self._words(self.request.workers), f"--seed={plan.seed}", f"--record={path}", "-q"]
        words += _options(plan.selection) if tests else plan.selection
        if tests:
            nodes = self.folder / "nodes.txt"
            nodes.write_text("\n".join(filter(None, map(node_of, tests))), encoding="utf-8")
            words.append(f"@{nodes}")
        begun = time.monotonic()
        ended = self._command(words, plan.limit_s)
        if ended.status in (0, 1) and plan.repeat:
            end, again = begun + plan.limit_s, self._words(1)
            repeat(path, again, lambda _: None, lambda command: self._command(command, end - time.monotonic()))
        self.seconds["suite"] = round(time.monotonic() - begun, 1)
        record = _written(path)
        if record is not None:
            cache.add(record)
        if ended.status is None:
            reached = 0 if record is None else len(record.verdicts)
            reason = f"the suite took more than {plan.limit_s:.0f} s, with {reached} verdicts until then"
            raise CellNotJudged(OUT_OF_TIME, reason, ended.output)
        if ended.status not in (0, 1) or record is None:
            raise CellNotJudged("crash", f"pytest ended with {_signal(ended.status)}: {ended.last_line}", ended.output)
        return record

    def _command(self, words: Sequence[str], limit_s: float, log: Path | None = None) -> Finished:
        file = log or self.folder / "output.log"
        return supervision.run(words, file, limit_s, self._variables(), ROOT)

    def _variables(self) -> dict[str, str]:
        """The environment of the suite: as tox sets it, whatever engine runs the cell."""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(_LEFT_OUT)}
        temporary = self.folder / "t"
        temporary.mkdir(exist_ok=True)
        path = {"PYTHONPATH": self.request.path} if self.request.path else {}
        return {**_DEFAULTS, **inherited, **_SETTINGS, **path, "TMPDIR": str(temporary)}


def judge(request: CellRequest, folder: Path) -> CellResult:
    """Judges a cell; `folder` is for temporary files.

    Raises:
        InstallerInterrupted: a signal ended the installation.
    """
    if request.lock is None:
        return _judged(CellRun(request, folder, Path(sys.executable)))
    environments = EnvironmentCache(environments_folder(), request.largest, request.beneath)
    begun = time.monotonic()
    try:
        with environments.using(request.lock) as python:
            return _judged(CellRun(request, folder, python, {"install": round(time.monotonic() - begun, 1)}))
    except InstallerInterrupted:
        raise
    except Unavailable as refusal:
        return CellResult("install failed", one_line(shareable(str(refusal))))


def _judged(run: CellRun) -> CellResult:
    try:
        return run.judge()
    except CellNotJudged as ended:
        return ended.result
    except (RecordError, OSError) as error:
        return CellResult("crash", one_line(shareable(str(error))))


def _options(selection: Sequence[str]) -> list[str]:
    """The options of a selection, without tests that it names."""
    result = []
    for before, word in zip(("", *selection), selection, strict=False):
        if word.startswith("-") or (before.startswith("-") and len(before) == 2):
            result.append(word)
    return result


def _written(path: Path) -> Record | None:
    """The record of a run, or of its journal as far as it got."""
    for place in (path, *sorted(path.parent.glob(f"{path.stem}.*-*.json")), journal_of(path)):
        if place.is_file():
            try:
                return load(place)
            except RecordError:
                continue
    return None


def _signal(status: int | None) -> str:
    if status is not None and status < 0:
        try:
            return signal.Signals(-status).name
        except ValueError:
            return f"signal {-status}"
    return f"status {status}"


def main(folder: Path) -> int:
    """Judges the cell whose request lies in a folder."""

    def end(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        supervision.end_here(folder)

    signal.signal(signal.SIGTERM, end)
    supervision.adopt_orphans()
    supervision.end_with(0, folder)
    try:
        result = judge(msgspec.json.decode((folder / REQUEST).read_bytes(), type=CellRequest), folder)
        replace(folder / RESULT, msgspec.json.encode(result))
        supervision.end_descendants()
    except InstallerInterrupted as ended:
        print(ended, file=sys.stderr)
        return 1
    finally:
        supervision.await_end()
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
