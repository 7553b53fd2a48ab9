"""Writes the record: the controller's side of the plugin. Workers hand their verdicts over as report properties."""

import os
import shlex
import time
from collections import Counter
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from conformance.checks.evidence import Check, Violation
from conformance.checks.evidence import Verdict as Collected
from conformance.checks.outcome import Judgement, conclude, unmatched
from conformance.known_failures.entries import EXPECTATION, Known
from conformance.known_failures.reading import series_of
from conformance.runner.completeness import Completeness
from conformance.runner.identity import name_of, series, suite, variant
from conformance.runner.isolation import clipped
from conformance.runner.reports import closing_lines
from conformance.runner.selection import ALL, CORE, QUICK
from conformance.spec.clauses import load_clauses
from conformance.test_ids.inventory import SUITES, code_of, id_of, inventory
from frameworks.contract import Framework
from results.record.encoding import decode_judged, encode_judged
from results.record.files import RecordError
from results.record.folders import INSTALLED, LAST_RUNS
from results.record.journal import Journal, now
from results.record.model import (
    CheckResult,
    Header,
    JudgedTest,
    Measurement,
    Observation,
    RunSetup,
    Tensors,
    TestVerdict,
    Trace,
)
from results.record.outcomes import Outcome
from results.record.values import as_number

PROPERTY = "conformance"
LIMIT = 4 * 2**20
"""Largest record of one test, in characters."""

_ENDED = (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED)
SETTINGS, EVERY_TEST = "autocast.settings-restored", "every test"


def to_property(
    node_id: str,
    judgement: Judgement,
    collected: Collected,
    duration: float,
    leaks: tuple[str, ...],
    seed: int,
    repro: str,
    runs: Sequence[RunSetup] = (),
) -> str:
    """A test's part of the record, as one line of JSON from a worker to the journal.

    Raises:
        ValueError: it is longer than `LIMIT`, or is no part of a record. TypeError: something in it has no JSON form.
    """
    test = id_of(node_id)
    clause, _, case = test.partition("/")
    verdict = TestVerdict(
        test=test,
        clause=clause,
        checks=tuple(_result(check) for check in collected.checks),
        seed=seed,
        repro=repro,
        duration_s=duration,
        leaks=leaks,
        runs=tuple(runs),
        **asdict(judgement),
    )
    curves = ((key, {name: tuple(points) for name, points in each.items()}) for key, each in collected.traces.items())
    line = encode_judged(
        JudgedTest(
            verdict,
            tuple(Observation(clause, key, case, value) for key, value in collected.observations.items()),
            tuple(
                Measurement(clause, key, case, unit, tuple(samples), tuple(control))
                for key, (unit, samples, control) in collected.measurements.items()
            ),
            tuple(Trace(key, case, each) for key, each in curves),
            tuple(Tensors(key, case, tuple(taken)) for key, taken in collected.fingerprints.items()),
        )
    )
    if len(line) > LIMIT:
        raise ValueError(f"{len(line) >> 20} MiB, at most {LIMIT >> 20}")
    return line


def _result(check: Check) -> CheckResult:
    """A check for the record; numbers in texts become numbers."""
    measured, expected = (
        as_number(each) if isinstance(each, str) else each for each in (check.measured, check.expected)
    )
    return CheckResult(check.what, measured, check.bound, expected, check.passed, check.derivation)


@contextmanager
def _writing() -> Generator[None]:
    """Ends the session with one line if the record cannot be written."""
    try:
        yield
    except RecordError as error:
        pytest.exit(str(error), returncode=2)


class Recorder:
    """Plugin of the session's main process: writes the journal, and converts it to the record at the end."""

    def __init__(self, config: pytest.Config, framework: Framework, known: Known, completeness: Completeness) -> None:
        self._expectations = known.expectations
        self._position = known.position(framework.name, series_of(framework), framework.modes)
        self._idle = 0
        self._seed: int = config.option.seed
        self._repro = partial(repro, config, framework)
        self._cases: list[tuple[str, str]] = []
        self._completeness = completeness
        self._outcomes: dict[str, Outcome] = {}
        self._own: list[TestVerdict] | None = [] if ":" in config.option.framework else None
        self._started: dict[str, float] = {}
        self._timeout = float(config.getoption("timeout", None) or 0.0)
        self._framework = framework
        self._leaks: dict[str, list[str]] = {}
        self._inferred: Counter[str] = Counter()
        self._selection = _selection(config)
        self._journal: Journal | None = None
        self._path: Path | None = None
        chosen = config.option.record
        tests: str = config.option.tests
        if chosen is None and self._selection in ("", f"--tests={tests}"):
            ending = ".quick.json" if tests == QUICK else ".json"
            own = series(str(config.option.framework), framework, config.option.way)
            chosen = LAST_RUNS / f"{name_of(own, framework.version())}{ending}"
        if chosen is not None:
            self._journal = Journal.create(
                Path(os.path.abspath(chosen)), _header(config, framework, known, self._selection)
            )

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """A test begins: the journal notes it, so that a crash can be attributed to it."""
        code = code_of(nodeid)
        self._started[nodeid] = time.monotonic()
        if code is None or self._journal is None:
            return
        with _writing():
            self._journal.start(id_of(nodeid), code.clause, seed=self._seed, repro=self._repro(nodeid))

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """A test has an outcome, or its worker died."""
        given = [value for name, value in report.user_properties if name == PROPERTY]
        report.user_properties = [p for p in report.user_properties if p[0] != PROPERTY]
        code = code_of(report.nodeid)
        with _writing():
            if given:
                try:
                    self._keep(str(given[0]))
                except (ValueError, TypeError) as problem:
                    self._lose(report.nodeid, Outcome.ERROR, f"the verdict cannot be stored ({clipped(str(problem))})")
            elif code is not None and report.failed:
                lines = str(report.longrepr or "").strip().splitlines() or ["the test ended without a verdict"]
                self._lose(report.nodeid, self._fate(report), lines[-1])

    def _fate(self, report: pytest.TestReport) -> Outcome:
        """The outcome of a test without a verdict: crash, timeout or error."""
        if str(report.when) != "???":
            return Outcome.ERROR
        duration = time.monotonic() - self._started.get(report.nodeid, time.monotonic())
        return Outcome.TIMEOUT if self._timeout and duration > self._timeout else Outcome.CRASH

    def _lose(self, node_id: str, outcome: Outcome, message: str) -> None:
        """Writes a verdict for a test that did not reach one."""
        code = code_of(node_id)
        if code is None:
            return
        self._write(
            TestVerdict(
                id_of(node_id), code.clause, outcome, message=message, seed=self._seed, repro=self._repro(node_id)
            )
        )

    def _keep(self, line: str) -> None:
        verdict = decode_judged(line).verdict
        self._count(verdict)
        for leak in verdict.leaks:
            self._leaks.setdefault(leak, []).append(verdict.case)
        if self._journal is not None:
            self._journal.judged_line(line, verdict.clause)

    def _write(self, verdict: TestVerdict) -> None:
        self._count(verdict)
        if self._journal is not None:
            self._journal.judged(JudgedTest(verdict))

    def _count(self, verdict: TestVerdict) -> None:
        self._cases.append((verdict.clause, verdict.case))
        self._outcomes[verdict.test] = verdict.outcome
        if self._own is not None:
            self._own.append(replace(verdict, checks=()))
        if verdict.outcome is Outcome.KNOWN and verdict.inferred_from:
            self._inferred[verdict.inferred_from] += 1

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Compares the expectations with a complete run, and finishes the record; it decides the exit status."""
        status, notes = self._completeness.status(self._outcomes, exitstatus in _ENDED, self._selection)
        if status == "complete" or (status == "partial" and self._selection == f"--tests={CORE}"):
            self._judge_leaks()
        if status == "complete":
            for entry in unmatched(self._expectations, self._cases):
                if entry.inferred_from:
                    self._idle += 1
                    continue
                cases = f", cases {', '.join(entry.cases)}" if entry.cases else ""
                remedy = f"remove the entry from {entry.file} or correct it"
                message = f"the expectation for {entry.clause}{cases} matched no test of this run; {remedy}"
                test = f"{entry.clause}/{EXPECTATION}{entry.signature}{cases}"
                self._write(TestVerdict(test, entry.clause, Outcome.ERROR, message=message))
        if exitstatus in _ENDED and (
            status == "interrupted" or any(outcome.bad for outcome in self._outcomes.values())
        ):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        if self._journal is not None:
            with _writing():
                self._path = self._journal.finish(status, notes)

    def _judge_leaks(self) -> None:
        """One verdict for all process-wide settings that a test changed and did not restore."""
        leaks = "; ".join(
            f"{leak} ({len(cases)} tests, {cases[0]} first)" for leak, cases in sorted(self._leaks.items())
        )
        error = Violation("settings-leaked", leaks) if leaks else None
        matching = [entry for entry in self._expectations if entry.covers(SETTINGS, EVERY_TEST)]
        result = conclude(self._framework, error, matching)
        self._write(TestVerdict(f"{SETTINGS}/{EVERY_TEST}", SETTINGS, seed=self._seed, **asdict(result)))

    def pytest_unconfigure(self) -> None:
        """Closes the journal of a session that did not finish."""
        if self._journal is not None:
            self._journal.close()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_terminal_summary(self, terminalreporter: Any) -> Generator[None]:
        """Counts of outcomes, and the record's path; at the very end, the clauses that a user's own adapter fails."""
        self._summarise(terminalreporter)
        yield
        if self._own:
            terminalreporter.section("result")
            for line in closing_lines(self._own, self._framework.name):
                terminalreporter.line(line)

    def _summarise(self, terminalreporter: Any) -> None:
        counts, total = Counter(self._outcomes.values()), len(self._outcomes)
        parts = [f"{counts[outcome]} {outcome}" for outcome in Outcome if counts[outcome]]
        terminalreporter.section("conformance")
        terminalreporter.line(f"{' · '.join(parts) or 'nothing judged'} (of {total} verdicts)")
        position = self._position
        if not position.confirmed:
            here = f"{self._framework.name} {position.version} on {position.device} in mode {position.mode}"
            origins = ", ".join(sorted(self._inferred)) or position.nearest
            known = f"{self._inferred.total()} known failures are expected as in {origins}, not confirmed here"
            idle = f"; {self._idle} of its expectations matched no test" if self._idle else ""
            terminalreporter.line(f"{here} has not been judged yet: {known}{idle}")
        if self._path is not None:
            terminalreporter.line(f"record: {self._path}")


def repro(config: pytest.Config, framework: Framework, node_id: str) -> str:
    """The command that repeats one test."""
    option = config.option
    if INSTALLED:  # pytest would need the suite's folder
        words = ["conformance", "run", option.framework, f"--device={framework.device}", f"--mode={framework.mode}"]
        words += [f"--ways={','.join(option.way)}"] if option.way else []
        return shlex.join([*words, f"--seed={option.seed}", node_id])
    words = [f"--framework={option.framework}", f"--device={framework.device}", f"--mode={framework.mode}"]
    words += [f"--way={way}" for way in option.way]
    return shlex.join(["python", "-m", "pytest", *words, f"--seed={option.seed}", node_id])


def _selection(config: pytest.Config) -> str:
    """The options that selected tests, as command-line words; "" if all tests run."""
    option = config.option
    words = [str(a) for a in config.args if not SUITES.is_relative_to(config.invocation_params.dir / str(a))]
    words += [f"-k {option.keyword}"] if option.keyword else []
    words += [f"-m {option.markexpr}"] if option.markexpr else []
    words += [f"--deselect={prefix}" for prefix in option.deselect or ()]
    words += [f"--ignore={path}" for path in option.ignore or ()]
    words += [f"--ignore-glob={path}" for path in option.ignore_glob or ()]
    words += [f"--tests={option.tests}"] if option.tests != ALL else []
    return " ".join(words)


def _header(config: pytest.Config, framework: Framework, known: Known, selection: str) -> Header:
    clauses = load_clauses()
    tested = {SETTINGS, *(code.clause for code in inventory().values())}
    given = str(config.option.framework)
    return Header(
        suite=suite(given, tuple(sorted(tested)), tuple(sorted(clauses.keys() - tested))),
        series=series(given, framework, config.option.way),
        variant=variant(framework),
        started=now(),
        seed=config.option.seed,
        selection=selection,
        clauses={name: clause.text for name, clause in clauses.items()},
        findings={finding.id: finding.text for finding in known.findings},
    )
