"""The recorder: it writes the record, decides whether the record is complete, and prints the end of a run.

Workers send verdicts to the main process as report properties. The end of a run lists the clauses that fail, each with
its requirement and a source, and counts of outcomes.
"""

import os
import re
import shlex
import textwrap
import time
from collections import Counter, defaultdict
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from conformance.checks.evidence import Check, Violation
from conformance.checks.evidence import Verdict as Collected
from conformance.checks.outcome import Judgement, conclude, find_unmatched
from conformance.known_failures.entries import EXPECTATION, Known
from conformance.known_failures.reading import series_of
from conformance.runner import ways
from conformance.runner.identity import name_of, series, suite, variant
from conformance.runner.isolation import clip_text
from conformance.runner.selection import ALL, CORE, QUICK
from conformance.spec.clauses import Clause, load_clauses
from conformance.spec.findings import Workaround
from conformance.test_ids.inventory import SUITES, code_of, id_of, inventory
from frameworks.contract import NOT_OFFERED, Framework
from frameworks.ways import Way
from results.record.encoding import decode_judged, encode_judged
from results.record.files import RecordError, one_line
from results.record.folders import INSTALLED, LAST_RUNS
from results.record.model import (
    UNJUDGED,
    CheckResult,
    Header,
    JudgedTest,
    Measurement,
    Observation,
    Outcome,
    RunSetup,
    Status,
    Tensors,
    TestVerdict,
    Trace,
)
from results.record.reading import Journal, now
from results.record.values import as_number

_LONGEST = 300
_MOST_RUNS = 3
_WIDTH = 110
_DERIVATION = re.compile(r" \(from \{[^{}]*\}\)")
_NOT_OFFERED = f"{NOT_OFFERED.reason} (techniques that it has no place for)"


def junit_properties(judgement: Judgement, clause: str, command: str) -> list[tuple[str, object]]:
    """Return the test's properties for the report of pytest's --junitxml, without empty ones."""
    texts = {"clause": clause, "outcome": judgement.outcome.value, "signature": judgement.signature}
    texts |= {"link": judgement.link, "finding": judgement.finding, "inferred_from": judgement.inferred_from}
    texts |= {"repro": command}
    return [(name, text) for name, text in texts.items() if text]


def describe_failure(judgement: Judgement, clause: str, command: str, runs: Sequence[RunSetup]) -> str:
    """Return a failure in a few lines: clause, message, training runs, and the command that repeats it."""
    which = f"the last of {len(runs)}: " if len(runs) > _MOST_RUNS else ""
    lines = "".join(f"run: {which}{ways.describe_run(run)}\n" for run in (runs[-1:] if which else runs))
    return f"{clause} [{judgement.outcome}] {judgement.message}\n{lines}repeat: {command}"


def show(report: pytest.TestReport, item: pytest.Item, judgement: Judgement, description: str, trace: str) -> None:
    """Set pytest's report to the judgement, even if the test called `pytest.xfail`.

    Args:
        trace: the traceback, shown with an error.
    """
    vars(report).pop("wasxfail", None)
    if judgement.outcome is Outcome.PASS:
        report.outcome = "passed"
    elif judgement.outcome is Outcome.KNOWN:
        reason = f"{judgement.reason} ({judgement.mark})" if judgement.mark else judgement.reason
        report.outcome, report.wasxfail = "skipped", f"{judgement.signature}: {reason}"
    elif judgement.outcome in UNJUDGED:
        report.outcome = "skipped"
        path, line, _ = item.location
        report.longrepr = (path, (line or 0) + 1, f"{judgement.outcome}: {judgement.message}")
    else:
        text = f"{trace}\n{description}" if trace and judgement.outcome is Outcome.ERROR else description
        report.outcome, report.longrepr = "failed", clip_text(text)


def closing_lines(verdicts: Iterable[TestVerdict], framework: str) -> list[str]:
    """Return the failures by clause, and a paragraph with the numbers of tests that passed or do not apply, and why.

    Args:
        framework: the name of a framework whose documentation to quote, where a clause has several sources.
    """
    judged = list(verdicts)
    bad: dict[str, list[TestVerdict]] = defaultdict(list)
    for verdict in judged:
        if verdict.outcome.bad:
            bad[verdict.clause].append(verdict)
    totals = Counter(verdict.clause for verdict in judged if verdict.outcome not in UNJUDGED)
    groups: dict[tuple[str, str], list[TestVerdict]] = defaultdict(list)
    for failed in sorted(bad.values(), key=len, reverse=True):
        plainest = min(failed, key=lambda verdict: (verdict.outcome is not Outcome.FAIL, len(verdict.message)))
        groups[plainest.signature, re.sub(r"\d+", "N", plainest.message.partition(" got ")[0])].append(plainest)
    lines = [f"clauses that fail: {len(bad) or 'none'}"]
    for plainest, *others in groups.values():
        clause = plainest.clause
        count = f"{len(bad[clause])} of {totals[clause]} tests fail"
        lines += ["", f"{clause}: {count}", *_rule(load_clauses().get(clause), framework)]
        lines += _wrap_lines(f"{plainest.outcome}: {_shorten(plainest.message)}")
        if others:
            also = ", ".join(
                f"{verdict.clause} ({len(bad[verdict.clause])} of {totals[verdict.clause]})" for verdict in others
            )
            lines += _wrap_lines(f"in the same way: {also}")
        lines.append(f"  repeat: {plainest.repro.replace('conformance/suites/', f'{SUITES}/')}")
    return [*lines, "", *textwrap.wrap(_counts(judged), _WIDTH)]


def _rule(clause: Clause | None, framework: str) -> Iterator[str]:
    if clause is not None:
        yield from _wrap_lines(f"rule: {' '.join(clause.requirement.split())}")
        yield f"  source: {source_for(clause, framework)}"


def source_for(clause: Clause, framework: str) -> str:
    """Return the first source of a clause that names the framework, or else its first source."""
    sources = [" ".join(source.split()) for source in re.split(r";\s", clause.source)]
    return next((source for source in sources if framework in source), sources[0])


def _wrap_lines(text: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, initial_indent="  ", subsequent_indent="    ", break_long_words=False)


def _shorten(message: str) -> str:
    text = _DERIVATION.sub("", " ".join(message.split()))
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def _counts(judged: list[TestVerdict]) -> str:
    passed = sum(verdict.outcome is Outcome.PASS for verdict in judged)
    known = [verdict for verdict in judged if verdict.outcome is Outcome.KNOWN]
    parts = [f"{passed} tests pass"]
    if known:
        parts.append(f"{len(known)} fail as the framework itself is known to")
    reasons = Counter(_reason(verdict) for verdict in judged if verdict.outcome in UNJUDGED)
    if reasons:
        listed = "; ".join(f"{count}: {reason}" for reason, count in reasons.most_common())
        parts.append(f"{reasons.total()} do not apply ({listed})")
    return ", ".join(parts) + "."


def _reason(verdict: TestVerdict) -> str:
    reason = " ".join((verdict.reason or verdict.message).split())
    return _NOT_OFFERED if reason == NOT_OFFERED.reason else reason or str(verdict.outcome)


_OUTPUT = "conformance-left-out"
_NAMED = 3
_PARAMETERS = {"workaround": Workaround, **dict.fromkeys(("way", "rank_way", "file_way", "rate_way"), Way)}
"""Types of test parameters for which a framework may have no values."""


def _some(names: Sequence[str]) -> str:
    text = ", ".join(name.partition("/")[2] for name in names[:_NAMED])
    return one_line(f"{text}{', ...' if names[_NAMED:] else ''}")


class Completeness:
    """Plugin of every process: records which tests were collected, and which were deselected.

    Under pytest-xdist each worker reports its deselected tests to the controller when it ends.
    """

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self.tests: set[str] = set()
        self._left_out: list[list[str]] | None = None  # test functions not collected, and tests deselected

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> Generator[None]:
        """Compare the collected tests with the inventory, and with the tests that all plugins have selected."""
        collected = {item.nodeid: _has_parameters(item) for item in items if code_of(item.nodeid) is not None}
        items[:] = [item for item in items if collected.get(item.nodeid, True)]
        yield
        functions = {code.function for test in collected if (code := code_of(test))}
        left = {item.nodeid for item in items}
        self.tests |= {id_of(test) for test in left & collected.keys()}
        self._left_out = [
            sorted(code.id for name, code in inventory().items() if name not in functions),
            sorted(id_of(test) for test, judged in collected.items() if judged and test not in left),
        ]
        if hasattr(self._config, "workeroutput"):
            self._config.workeroutput[_OUTPUT] = self._left_out

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: Sequence[str]) -> None:
        """A worker has collected what all of them share."""
        self.tests.update(id_of(test) for test in ids if code_of(test) is not None)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """A worker has ended; one that died reports nothing."""
        output: Mapping[str, Any] = getattr(node, "workeroutput", None) or {}
        self._left_out = output.get(_OUTPUT, self._left_out)

    def status(self, judged: Collection[str], completed: bool, selection: str) -> tuple[Status, list[str]]:
        """Return the status of the run's record, and notes on what the record lacks.

        Args:
            judged: tests that have a verdict.
            completed: whether the session was completed.
            selection: command-line words that selected tests, or "".
        """
        kinds = ("test functions were not collected", "tests were deselected")
        parts = zip(kinds, self._left_out or (), strict=False)
        notes = [f"{len(names)} {what} ({_some(names)})" for what, names in parts if names]
        if selection.startswith("--tests=") and self._left_out is not None:
            left = len(self._left_out[1])
            notes = [f"{selection}: {len(self.tests)} of {len(self.tests) + left} tests"]
        unjudged = sorted(self.tests.difference(judged))
        if unjudged:
            notes.insert(0, f"{len(unjudged)} of {len(self.tests)} collected tests were not judged ({_some(unjudged)})")
        if unjudged or not completed or self._left_out is None:
            return "interrupted", notes
        return ("partial" if selection or notes else "complete"), notes


def _has_parameters(item: pytest.Item) -> bool:
    """Return whether the test has a parameter value; for a parameter without values, pytest adds one skipped test."""
    call = getattr(item, "callspec", None)
    wanted = _PARAMETERS.keys() & {*getattr(item, "fixturenames", ())}
    return all(call is not None and isinstance(call.params.get(name), _PARAMETERS[name]) for name in wanted)


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
    """Return a test's part of the record as one line of JSON, which a worker sends to the journal.

    Raises:
        ValueError: it is longer than `LIMIT`, or breaks the schema. TypeError: a value has no JSON form.
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
    curves = ((key, {name: tuple(points) for name, points in trace.items()}) for key, trace in collected.traces.items())
    line = encode_judged(
        JudgedTest(
            verdict,
            tuple(Observation(clause, key, case, value) for key, value in collected.observations.items()),
            tuple(
                Measurement(clause, key, case, unit, tuple(samples), tuple(control))
                for key, (unit, samples, control) in collected.measurements.items()
            ),
            tuple(Trace(key, case, curve) for key, curve in curves),
            tuple(Tensors(key, case, tuple(taken)) for key, taken in collected.fingerprints.items()),
        )
    )
    if len(line) > LIMIT:
        raise ValueError(f"{len(line) >> 20} MiB, at most {LIMIT >> 20}")
    return line


def _result(check: Check) -> CheckResult:
    """Return a check in the form of the record; texts of numbers become numbers."""
    measured, expected = (
        as_number(value) if isinstance(value, str) else value for value in (check.measured, check.expected)
    )
    return CheckResult(check.what, measured, check.bound, expected, check.passed, check.derivation)


@contextmanager
def _writing() -> Generator[None]:
    """End the session with one line if the record cannot be written within the context."""
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
        """Write the start of a test to the journal, so that a crash can be attributed to the test."""
        code = code_of(nodeid)
        self._started[nodeid] = time.monotonic()
        if code is None or self._journal is None:
            return
        with _writing():
            self._journal.start(id_of(nodeid), code.clause, seed=self._seed, repro=self._repro(nodeid))

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Record a test that has an outcome, or whose worker died."""
        values = [value for name, value in report.user_properties if name == PROPERTY]
        report.user_properties = [p for p in report.user_properties if p[0] != PROPERTY]
        code = code_of(report.nodeid)
        with _writing():
            if values:
                try:
                    self._keep(str(values[0]))
                except (ValueError, TypeError) as problem:
                    self._lose(
                        report.nodeid, Outcome.ERROR, f"the verdict cannot be stored ({clip_text(str(problem))})"
                    )
            elif code is not None and report.failed:
                lines = str(report.longrepr or "").strip().splitlines() or ["the test ended without a verdict"]
                self._lose(report.nodeid, self._fate(report), lines[-1])

    def _fate(self, report: pytest.TestReport) -> Outcome:
        """Return the outcome of a test without a verdict: crash, timeout or error."""
        if str(report.when) != "???":
            return Outcome.ERROR
        duration = time.monotonic() - self._started.get(report.nodeid, time.monotonic())
        return Outcome.TIMEOUT if self._timeout and duration > self._timeout else Outcome.CRASH

    def _lose(self, node_id: str, outcome: Outcome, message: str) -> None:
        """Write a verdict for a test that ended without one."""
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
            self._journal.write_judged(JudgedTest(verdict))

    def _count(self, verdict: TestVerdict) -> None:
        self._cases.append((verdict.clause, verdict.case))
        self._outcomes[verdict.test] = verdict.outcome
        if self._own is not None:
            self._own.append(replace(verdict, checks=()))
        if verdict.outcome is Outcome.KNOWN and verdict.inferred_from:
            self._inferred[verdict.inferred_from] += 1

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Compare the expectations with a complete run, finish the record, and set the exit status by it."""
        status, notes = self._completeness.status(self._outcomes, exitstatus in _ENDED, self._selection)
        if status == "complete" or (status == "partial" and self._selection == f"--tests={CORE}"):
            self._judge_leaks()
        if status == "complete":
            for entry in find_unmatched(self._expectations, self._cases):
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
        """Write one verdict for all process-wide settings that tests changed and did not restore."""
        leaks = "; ".join(
            f"{leak} ({len(cases)} tests, {cases[0]} first)" for leak, cases in sorted(self._leaks.items())
        )
        error = Violation("settings-leaked", leaks) if leaks else None
        matching = [entry for entry in self._expectations if entry.covers(SETTINGS, EVERY_TEST)]
        result = conclude(self._framework, error, matching)
        self._write(TestVerdict(f"{SETTINGS}/{EVERY_TEST}", SETTINGS, seed=self._seed, **asdict(result)))

    def pytest_unconfigure(self) -> None:
        """Close the journal of a session that did not finish."""
        if self._journal is not None:
            self._journal.close()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_terminal_summary(self, terminalreporter: Any) -> Generator[None]:
        """Print counts of outcomes and the record's path, and at the end the clauses that a user's adapter fails."""
        counts, total = Counter(self._outcomes.values()), len(self._outcomes)
        parts = [f"{counts[outcome]} {outcome}" for outcome in Outcome if counts[outcome]]
        terminalreporter.section("conformance")
        terminalreporter.line(f"{' · '.join(parts) or 'nothing judged'} (of {total} verdicts)")
        position = self._position
        if not position.confirmed:
            here = f"{self._framework.name} {position.version} on {position.device} in mode {position.mode}"
            origins = ", ".join(sorted(self._inferred)) or position.label(position.sources[0])
            known = f"{self._inferred.total()} known failures are expected as in {origins}, not confirmed here"
            idle = f"; {self._idle} of its expectations matched no test" if self._idle else ""
            terminalreporter.line(f"{here} has not been judged yet: {known}{idle}")
        if self._path is not None:
            terminalreporter.line(f"record: {self._path}")
        yield
        if self._own:
            terminalreporter.section("result")
            for line in closing_lines(self._own, self._framework.name):
                terminalreporter.line(line)


def repro(config: pytest.Config, framework: Framework, node_id: str) -> str:
    """Return the command that repeats one test."""
    option = config.option
    if INSTALLED:  # pytest would need the suite's folder
        arguments = ["conformance", "run", option.framework, f"--device={framework.device}", f"--mode={framework.mode}"]
        arguments += [f"--ways={','.join(option.way)}"] if option.way else []
        return shlex.join([*arguments, f"--seed={option.seed}", node_id])
    arguments = [f"--framework={option.framework}", f"--device={framework.device}", f"--mode={framework.mode}"]
    arguments += [f"--way={way}" for way in option.way]
    return shlex.join(["python", "-m", "pytest", *arguments, f"--seed={option.seed}", node_id])


def _selection(config: pytest.Config) -> str:
    """Return the options that selected tests, as on the command line; "" if all tests run."""
    option = config.option
    arguments = [str(a) for a in config.args if not SUITES.is_relative_to(config.invocation_params.dir / str(a))]
    arguments += [f"-k {option.keyword}"] if option.keyword else []
    arguments += [f"-m {option.markexpr}"] if option.markexpr else []
    arguments += [f"--deselect={prefix}" for prefix in option.deselect or ()]
    arguments += [f"--ignore={path}" for path in option.ignore or ()]
    arguments += [f"--ignore-glob={path}" for path in option.ignore_glob or ()]
    arguments += [f"--tests={option.tests}"] if option.tests != ALL else []
    return " ".join(arguments)


def _header(config: pytest.Config, framework: Framework, known: Known, selection: str) -> Header:
    clauses = load_clauses()
    tested = {SETTINGS, *(code.clause for code in inventory().values())}
    adapter = str(config.option.framework)
    return Header(
        suite=suite(adapter, tuple(sorted(tested)), tuple(sorted(clauses.keys() - tested))),
        series=series(adapter, framework, config.option.way),
        variant=variant(framework),
        started=now(),
        seed=config.option.seed,
        selection=selection,
        clauses={name: clause.text for name, clause in clauses.items()},
        findings={finding.id: finding.text for finding in known.findings},
    )
