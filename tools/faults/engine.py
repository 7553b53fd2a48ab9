"""Runs faults: each by the tests of its clauses, up to a clause's first failure; by all tests for the kill matrix.

Only tests that pass without the fault count, so every framework is first run as it is (the baseline). A fault that its
own clauses do not all catch is run through all other tests too, to tell whether anything else saw it.
"""

from __future__ import annotations

import gzip
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pytest

from conformance.runner.recorder import SETTINGS
from conformance.runner.selection import ALL
from conformance.spec.clauses import load_clauses
from conformance.test_ids import inventory, node_of
from results.record.reading import Outcome, RecordError, TestVerdict, load
from tools.faults.catalogue import ADAPTERS, Fault

ROOT = Path(__file__).parent.parent.parent
FILE = Path(__file__).with_name("kills.json.gz")
BASELINE = ROOT / "results" / "baselines" / "reference-1-cpu-emulated.json.gz"
"""Which tests pass on the reference, and how long each takes."""
QUICK_S = 0.2
"""Limit in seconds of tests of a fault's families that are not about it; longer ones are not run."""
SUITES = "conformance/suites"
PRELOADED = (
    "conformance.runner.plugin",
    "conformance.runner.recorder",
    "frameworks.reference",
    "hypothesis.strategies",
    "pytest",
    "scipy.special",
    "sklearn.datasets",
    "tools.faults.stop",
)
QUICK = ("--profile=quick",)
"""Arguments without the search for a smaller failing case of a law."""
STOP = ("-p", "tools.faults.stop", *QUICK)
"""Arguments that skip the tests of a clause after its first failure."""
LIMIT_S = 1800
"""Timeout of one run in seconds. The laws and all other tests take a third of it on a core that has other work too."""
FIRST = ("--exitfirst", *QUICK, "--timeout=300")
"""Arguments of a run up to the first failure."""
LAWS = "laws."
"""Prefix of the ids of laws, whose failures name the broken clause."""
DETECTED = {Outcome.FAIL, Outcome.MISDECLARED}
ABORTED = {Outcome.TIMEOUT, Outcome.CRASH}
RAISED = DETECTED | {Outcome.ERROR} | ABORTED
_THREADS = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")

Kills = Mapping[str, Sequence[str]]
"""Test ids, CLAUSE/function[parameters], by FRAMEWORK.CLASS of a fault; other tests passed or were not run."""
Group = tuple[str, str]
"""A framework and its mode, "" for the first mode."""


def read(path: Path = FILE) -> dict[str, list[str]]:
    """The tests that fail on each fault; nothing if none was measured."""
    if not path.exists():
        return {}
    known: dict[str, list[str]] = json.loads(gzip.decompress(path.read_bytes()))
    return known


def write(kills: Kills, path: Path = FILE) -> None:
    """Writes the tests that fail on each fault, the same bytes for the same content."""
    text = json.dumps({fault: sorted(tests) for fault, tests in sorted(kills.items())}, indent=0)
    path.write_bytes(gzip.compress(text.encode(), mtime=0))


def find_dominated(kills: Kills) -> list[str]:
    """The faults to leave out by mutant subsumption: those whose failing tests include all of another fault's.

    Of faults with the same failing tests all but the first are left out.
    """
    first: dict[frozenset[str], str] = {}
    for fault, tests in kills.items():
        first.setdefault(frozenset(tests), fault)
    hardest = {tests: fault for tests, fault in first.items() if not any(subset < tests for subset in first)}
    return [fault for fault in kills if fault not in hardest.values()]


class RunError(Exception):
    """A run could not be made; one line says why."""


@dataclass(frozen=True)
class Baseline:
    """Node id and seconds of every test that passes on a framework without a fault, by clause."""

    passed: Mapping[str, Sequence[tuple[str, float]]]

    def tests(self, clauses: Iterable[str]) -> list[str]:
        """Node ids of the passing tests of some clauses, the quickest first.

        `autocast.settings-restored` has no test of its own; those of scopes stand for it.
        """
        chosen: list[tuple[float, str]] = []
        for clause in clauses:
            entries = self.passed.get(clause, ())
            if clause == SETTINGS:
                entries = [e for tests in self.passed.values() for e in tests if "test_autocast_scope" in e[0]]
            chosen += [(seconds, node) for node, seconds in entries]
        return list(dict.fromkeys(node for _, node in sorted(chosen)))

    def tests_of_other_clauses(self, clauses: Iterable[str]) -> list[str]:
        """Node ids of every other passing test."""
        return self.tests(self.passed.keys() - set(clauses))


@dataclass(frozen=True)
class Fate:
    """The result of the runs of a fault.

    Attributes:
        broken: clauses that failed among those that are about the fault.
        elsewhere: other clauses that failed, looked for only where some were missed.
        unnamed: failing tests of the fault's clauses whose message does not contain what it must.
        seconds: wall time.
    """

    fault: Fault
    broken: tuple[str, ...]
    elsewhere: tuple[str, ...] = ()
    seconds: float = 0.0
    unnamed: tuple[str, ...] = ()

    @property
    def missed(self) -> tuple[str, ...]:
        """Clauses about the fault that did not fail."""
        return tuple(clause for clause in self.fault.clauses if clause not in self.broken)

    @property
    def status(self) -> str:
        """ "caught", "not named", "missed by", "by accident" or "survived".

        "not named": a message lacks its required text; "missed by": some of its clauses passed; "by accident": only
        other clauses failed.
        """
        if not self.missed:
            return "not named" if self.unnamed else "caught"
        if self.broken:
            return "missed by"
        return "by accident" if self.elsewhere else "survived"


class Engine:
    """Runs pytest in a process of its own for each fault.

    Args:
        selection: the tests that may catch a fault: quick, core or all.
    """

    def __init__(self, selection: str = ALL) -> None:
        self._selection = selection

    def baseline(
        self, group: Group, clauses: Iterable[str] | None, workers: int, *, may_be_empty: bool = False
    ) -> Baseline:
        """Runs a framework without a fault on the tests of some clauses, on all tests without them.

        Raises:
            RunError: nothing passed, unless the baseline may be empty, as that of laws where no mode draws programs.
        """
        framework, mode = group
        tests = [SUITES] if clauses is None else _files(set(clauses))
        verdicts = self.run(framework, mode, tests, [f"--tests={self._selection}"], workers=workers)
        passed: dict[str, list[tuple[str, float]]] = {}
        for verdict in verdicts:
            node = node_of(verdict.test)
            if verdict.outcome is Outcome.PASS and node is not None:
                passed.setdefault(verdict.clause, []).append((node, verdict.duration_s))
        if not passed and not may_be_empty:
            raise RunError(f"no test passes on {framework} {mode} without a fault")
        return Baseline(passed)

    def fate(self, fault: Fault, baselines: Baselines) -> Fate:
        """The fate of a fault; its clauses may be broken by their own tests or by a law."""
        baseline = baselines.needed
        begun = time.monotonic()
        counted = RAISED if fault.raises else DETECTED

        def run_tests(tests: list[str]) -> tuple[TestVerdict, ...]:
            return self.run(fault.name, fault.mode, tests, STOP) if tests else ()

        def failing(verdicts: tuple[TestVerdict, ...]) -> set[str]:
            leaking = {SETTINGS} if any(v.leaks for v in verdicts) else set()
            broken = {name for v in verdicts if v.outcome in counted for name in (v.clause, _named_by_a_law(v))}
            return broken | leaking

        verdicts = run_tests(baseline.tests(fault.clauses))
        result = failing(verdicts)
        if {*fault.clauses} - result:
            result |= failing(run_tests(_known_laws(fault)))
        if {*fault.clauses} - result:
            result |= failing(run_tests(baselines.laws().tests_of_other_clauses(())))
        failed = [v for v in verdicts if v.outcome in counted and v.clause in fault.clauses]
        unnamed = tuple(v.test for v in failed if fault.names not in v.message)
        broken = tuple(c for c in fault.clauses if c in result)
        elsewhere: set[str] = set()
        if broken != fault.clauses:
            tests = baselines.all_tests().tests_of_other_clauses(fault.clauses)
            elsewhere = failing(run_tests(tests)) - set(fault.clauses)
        return Fate(fault, broken, tuple(sorted(elsewhere)), time.monotonic() - begun, unnamed)

    def run(
        self, framework: str, mode: str, tests: Sequence[str], options: Sequence[str] = (), *, workers: int = 1
    ) -> tuple[TestVerdict, ...]:
        """Runs tests on a framework; returns the verdicts.

        Args:
            options: more arguments of pytest.
        Raises:
            RunError: there is no record, or the run did not end in time.
        """
        with tempfile.TemporaryDirectory(prefix="faults-") as temporary:
            folder = Path(temporary)
            record, log = folder / "record.json", folder / "output.log"
            arguments = ["-q", f"--framework={framework}", "--device=cpu"]
            arguments += [f"--mode={mode}"] if mode else []
            arguments += [f"--numprocesses={workers}"] if workers > 1 else ["-p", "no:xdist"]
            arguments += ["--timeout=120", f"--record={record}", *options, *tests]
            can_fork = workers == 1 and _needs_reference_only(framework)
            line = _run_in_fork(arguments, log) if can_fork else _run_pytest(arguments)
            # A run that leaves tests out, once their clause has failed, writes record.interrupted-1.json.
            written = [*folder.glob("record*.json"), *folder.glob("record.jsonl")]
            if not written:
                raise RunError(f"{framework}: no record was written: {line}")
            try:
                return load(written[0]).verdicts
            except RecordError as error:
                raise RunError(f"{framework}: {error}: {line}") from None


class Baselines:
    """Runs of a framework without a fault, each made once, at its first use.

    Args:
        clauses: clauses that its faults name.
    """

    def __init__(self, engine: Engine, group: Group, clauses: Collection[str], workers: int) -> None:
        self._engine, self._group, self._clauses, self._workers = engine, group, clauses, workers
        self._lock = threading.Lock()

    @cached_property
    def needed(self) -> Baseline:
        """The tests of the clauses that the faults name."""
        return self._engine.baseline(self._group, self._clauses, self._workers)

    def laws(self) -> Baseline:
        """The baseline of the laws."""
        with self._lock:
            return self._laws

    def all_tests(self) -> Baseline:
        """The baseline of all tests."""
        with self._lock:
            return self._all

    @cached_property
    def _laws(self) -> Baseline:
        laws = [clause for clause in load_clauses() if clause.startswith(LAWS)]
        return self._engine.baseline(self._group, laws, self._workers, may_be_empty=True)

    @cached_property
    def _all(self) -> Baseline:
        return self._engine.baseline(self._group, None, self._workers)


def first_failure(verdicts: Iterable[TestVerdict]) -> TestVerdict | None:
    """The first verdict that shows a fault, None if none does.

    A timeout does not count: it can be due to a busy machine. Nor does the end of the interpreter, by which a test is
    stopped that nothing else stops.
    """
    return next((v for v in verdicts if v.outcome in RAISED - ABORTED or v.leaks), None)


def _named_by_a_law(verdict: TestVerdict) -> str:
    """The clause that a failing law says is broken, the test's own where it is no law."""
    return (verdict.signature or verdict.clause) if verdict.clause.startswith(LAWS) else verdict.clause


def _known_laws(fault: Fault) -> list[str]:
    """Node ids of the laws that failed on a fault before, which are tried first."""
    tests = read().get(fault.id, ()) if fault.framework == "reference" else ()
    return [node for test in tests if test.startswith(LAWS) and (node := node_of(test)) is not None]


def _needs_reference_only(framework: str) -> bool:
    """Returns whether a run needs only the reference, so that it can run in a fork."""
    module = framework.removeprefix("tools.faults.")
    return framework == "reference" or (module != framework and not module.startswith(f"{ADAPTERS}."))


def _run_pytest(arguments: Sequence[str]) -> str:
    """Runs pytest in a new interpreter; returns the last line that it printed."""
    command = [sys.executable, "-m", "pytest", *arguments]
    environment = {**os.environ, **_THREADS}
    try:
        completed = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise RunError(f"a run did not end within {LIMIT_S} s") from None
    return _last_line(completed.stdout + completed.stderr)


def _run_in_fork(arguments: Sequence[str], log: Path) -> str:
    """Runs pytest in a fork of a process that has imported what every run needs; returns the last line printed."""
    os.environ.update(_THREADS)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(PRELOADED))
    process = context.Process(target=_pytest, args=(list(arguments), log))
    process.start()
    process.join(LIMIT_S)
    if process.is_alive():
        process.kill()
        process.join()
        raise RunError(f"a run did not end within {LIMIT_S} s")
    return _last_line(log.read_text("utf-8", "replace"))


def _pytest(arguments: list[str], log: Path) -> None:
    with log.open("wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.chdir(ROOT)
    sys.exit(int(pytest.main(arguments)))


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "pytest said nothing"


def _files(clauses: set[str]) -> list[str]:
    """Node ids, without parameters, of the tests of these clauses; for the settings clause the scopes' file."""
    scopes = [f"{SUITES}/autocast/test_autocast_scope.py"] if SETTINGS in clauses else []
    codes = (code for code in inventory().values() if code.clause in clauses)
    nodes = sorted(f"{SUITES}/{code.file}::{code.function}" for code in codes)
    return [*scopes, *(node for node in nodes if not node.startswith(tuple(f"{scope}::" for scope in scopes)))]


def measure_faults(chosen: Sequence[Fault], workers: int) -> Iterator[tuple[Fault, list[str]]]:
    """Each of some faults of the reference with the tests that fail on it, as its runs end.

    The tests are those of the clauses about a fault and the quick ones of their families. If none of them fails, the
    drawn programs run up to the first failure, the quickest first.
    """
    passed = [verdict for verdict in load(BASELINE).verdicts if verdict.outcome is Outcome.PASS]
    passed.sort(key=lambda verdict: verdict.duration_s)
    laws = [verdict for verdict in passed if verdict.clause.startswith(LAWS)]
    tests = [verdict for verdict in passed if not verdict.clause.startswith(LAWS)]
    engine = Engine()

    def find_failing(fault: Fault) -> list[str]:
        outcomes = RAISED if fault.raises else DETECTED
        verdicts = _run(engine, fault, [v for v in tests if _concerns(v, fault)], QUICK)
        failing = [v.test for v in verdicts if v.outcome in outcomes or v.leaks]
        if not failing and (failed := first_failure(_run(engine, fault, laws, FIRST))):
            failing.append(failed.test)
        return failing

    with ThreadPoolExecutor(workers) as pool:
        jobs = {pool.submit(find_failing, fault): fault for fault in chosen}
        for job in as_completed(jobs):
            try:
                yield jobs[job], job.result()
            except RunError as error:
                print(f"not measured: {error}", flush=True)


def _concerns(verdict: TestVerdict, fault: Fault) -> bool:
    family = verdict.clause.partition(".")[0]
    if verdict.duration_s < QUICK_S and any(clause.partition(".")[0] == family for clause in fault.clauses):
        return True
    return verdict.clause in fault.clauses or (SETTINGS in fault.clauses and "scope" in verdict.test)


def _run(
    engine: Engine, fault: Fault, verdicts: Sequence[TestVerdict], arguments: Sequence[str]
) -> Sequence[TestVerdict]:
    nodes = [node for verdict in verdicts if (node := node_of(verdict.test)) is not None]
    return engine.run(fault.name, fault.mode, nodes, arguments) if nodes else ()
