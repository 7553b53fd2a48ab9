"""The recorder: it collects what belongs to each verdict, writes the journal and the record, and prints failures.

Workers send verdicts to the main process as report properties.
"""

import os
import re
import shlex
import textwrap
import time
from collections import Counter, defaultdict
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, fields, is_dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from conformance.checks.evidence import Check, Violation
from conformance.checks.evidence import Verdict as Collected
from conformance.checks.outcome import Judgement, conclude, find_unmatched
from conformance.known_failures.entries import EXPECTATION, Known
from conformance.known_failures.reading import series_of
from conformance.runner.identity import name_of, series, suite, variant
from conformance.runner.isolation import clip_text
from conformance.runner.selection import CORE, QUICK, Completeness, selecting_options
from conformance.spec.clauses import Clause, load_clauses
from conformance.test_ids import SUITES, code_of, id_of, inventory
from fixtures.arrays import Array
from fixtures.model import Model
from fixtures.recipe import Recipe, collect_fields
from frameworks.contract import NOT_OFFERED, Framework, Trainer
from results.record.files import RecordError
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
    Tensors,
    TestVerdict,
    Trace,
    as_number,
)
from results.record.reading import Journal, decode_judged, encode_judged, now

PROPERTY = "conformance"
LIMIT = 4 * 2**20
"""Largest record of one test, in characters."""

_ENDED = (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED)
SETTINGS, EVERY_TEST = "autocast.settings-restored", "every test"
_FOLDERS = re.compile(r"\S*/pytest-of-\S*/")
FOLDER = "FOLDER"
"""Placeholder for a folder of offloaded files, so that equal runs give equal records."""


@contextmanager
def recorded_runs(framework: Framework) -> Iterator[list[RunSetup]]:
    """Collect the distinct training runs that the framework makes within the context.

    The list stays empty for a framework whose instances accept no attributes.
    """
    runs: list[RunSetup] = []
    make = framework.trainer

    def trainer(model: Model, recipe: Recipe, weights: Mapping[str, Array] | None = None) -> Trainer:
        run = run_of(model, recipe)
        if run not in runs:
            runs.append(run)
        return make(model, recipe, weights)

    with ExitStack() as stack:
        with suppress(AttributeError):
            stack.enter_context(patch.object(framework, "trainer", trainer))
        yield runs


def run_of(model: Model, recipe: Recipe) -> RunSetup:
    """Return the record of a training run of this model; a folder of offloaded files becomes `FOLDER`.

    A recipe field that is itself a dataclass stores the name of its class under "kind", next to its own fields.
    """
    if recipe.offload is not None and recipe.offload.folder is not None:
        recipe = recipe.replace(offload=replace(recipe.offload, folder=FOLDER))
    default = Recipe()
    values = {field.name: getattr(recipe, field.name) for field in fields(Recipe)}
    changed = {name: _plain(value) for name, value in values.items() if value != getattr(default, name)}
    return RunSetup(model.name, changed)


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return {"kind": type(value).__name__} | {name: _plain(part) for name, part in collect_fields(value).items()}
    return [_plain(item) for item in value] if isinstance(value, tuple) else value


def to_property(
    node_id: str,
    judgement: Judgement,
    collected: Collected,
    *,
    duration_s: float,
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
        duration_s=duration_s,
        leaks=leaks,
        runs=tuple(runs),
        **asdict(judgement),
    )
    observations = tuple(Observation(clause, key, case, value) for key, value in collected.observations.items())
    measurements = tuple(
        Measurement(clause, key, case, unit, tuple(samples), tuple(control))
        for key, (unit, samples, control) in collected.measurements.items()
    )
    curves = ((key, {name: tuple(points) for name, points in trace.items()}) for key, trace in collected.traces.items())
    traces = tuple(Trace(key, case, curve) for key, curve in curves)
    tensors = tuple(Tensors(key, case, tuple(prints)) for key, prints in collected.fingerprints.items())
    line = encode_judged(JudgedTest(verdict, observations, measurements, traces, tensors))
    if len(line) > LIMIT:
        raise ValueError(f"{len(line) >> 20} MiB, at most {LIMIT >> 20}")
    return line


def _result(check: Check) -> CheckResult:
    """Return a check in the form of the record: texts of numbers become numbers, and folders of a test are left out."""
    measured, expected = (
        as_number(value) if isinstance(value, str) else value for value in (check.measured, check.expected)
    )
    return CheckResult(_FOLDERS.sub("", check.what), measured, check.bound, expected, check.passed, check.derivation)


class Recorder:
    """Plugin of the session's main process: writes the journal, and converts it to the record at the end."""

    def __init__(self, config: pytest.Config, framework: Framework, known: Known, completeness: Completeness) -> None:
        self._framework = framework
        self._completeness = completeness
        self._expectations = known.expectations
        self._position = known.position(framework.name, series_of(framework), framework.modes)
        self._selection = selecting_options(config)
        self._seed: int = config.option.seed
        self._timeout_s = float(config.getoption("timeout", None) or 0.0)
        self._repro = partial(repro, config, framework)
        self._started: dict[str, float] = {}
        self._cases: list[tuple[str, str]] = []
        self._outcomes: dict[str, Outcome] = {}
        self._own: list[TestVerdict] | None = [] if ":" in config.option.framework else None
        self._leaks: dict[str, list[str]] = {}
        self._inferred: Counter[str] = Counter()
        self._unmatched = 0
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
        return Outcome.TIMEOUT if self._timeout_s and duration > self._timeout_s else Outcome.CRASH

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
        """Write a verdict as the worker has sent it."""
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
        status, notes = self._completeness.status(
            self._outcomes, completed=exitstatus in _ENDED, selection=self._selection
        )
        if status == "complete" or (status == "partial" and self._selection == f"--tests={CORE}"):
            self._judge_leaks()
        if status == "complete":
            self._judge_unmatched()
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

    def _judge_unmatched(self) -> None:
        """Write a verdict for each expectation that matched no test; those of another series are only counted."""
        for entry in find_unmatched(self._expectations, self._cases):
            if entry.inferred_from:
                self._unmatched += 1
                continue
            cases = f", cases {', '.join(entry.cases)}" if entry.cases else ""
            remedy = f"remove the entry from {entry.file} or correct it"
            message = f"the expectation for {entry.clause}{cases} matched no test of this run; {remedy}"
            test = f"{entry.clause}/{EXPECTATION}{entry.signature}{cases}"
            self._write(TestVerdict(test, entry.clause, Outcome.ERROR, message=message))

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
        if not self._position.confirmed:
            terminalreporter.line(self._describe_position())
        if self._path is not None:
            terminalreporter.line(f"record: {self._path}")
        yield
        if self._own:
            terminalreporter.section("result")
            for line in closing_lines(self._own, self._framework.name):
                terminalreporter.line(line)

    def _describe_position(self) -> str:
        """Return one line about a series that has not been judged, and where its expectations are from."""
        position = self._position
        subject = f"{self._framework.name} {position.version} on {position.device} in mode {position.mode}"
        origins = ", ".join(sorted(self._inferred)) or position.label(position.sources[0])
        known = f"{self._inferred.total()} known failures are expected as in {origins}, not confirmed here"
        unmatched = f"; {self._unmatched} of its expectations matched no test" if self._unmatched else ""
        return f"{subject} has not been judged yet: {known}{unmatched}"


@contextmanager
def _writing() -> Generator[None]:
    """End the session with one line if the record cannot be written within the context."""
    try:
        yield
    except RecordError as error:
        pytest.exit(str(error), returncode=2)


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


_LONGEST = 300
_MOST_RUNS = 3
_WIDTH = 110
_DERIVATION = re.compile(r" \(from \{[^{}]*\}\)")
_NOT_OFFERED = f"{NOT_OFFERED.reason} (techniques that it has no place for)"


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


def junit_properties(judgement: Judgement, clause: str, command: str) -> list[tuple[str, object]]:
    """Return the test's properties for the report of pytest's --junitxml, without empty ones."""
    texts = {"clause": clause, "outcome": judgement.outcome.value, "signature": judgement.signature}
    texts |= {"link": judgement.link, "finding": judgement.finding, "inferred_from": judgement.inferred_from}
    texts |= {"repro": command}
    return [(name, text) for name, text in texts.items() if text]


def describe_failure(judgement: Judgement, clause: str, command: str, runs: Sequence[RunSetup]) -> str:
    """Return a failure in a few lines: clause, message, training runs, and the command that repeats it."""
    which = f"the last of {len(runs)}: " if len(runs) > _MOST_RUNS else ""
    lines = "".join(f"run: {which}{describe_run(run)}\n" for run in (runs[-1:] if which else runs))
    return f"{clause} [{judgement.outcome}] {judgement.message}\n{lines}repeat: {command}"


def describe_run(run: RunSetup) -> str:
    """Return the run in one line, for a failure's message."""
    parts = ", ".join(f"{name}={_text(value)}" for name, value in run.recipe.items())
    return f"{run.fixture} under {parts or 'the default recipe'}"


def _text(value: Any) -> str:
    if not isinstance(value, Mapping):
        return f"{value:g}" if isinstance(value, float) else str(value)
    parts = [f"{name}={_text(part)}" for name, part in value.items() if name != "kind" and part is not None]
    return f"{value['kind']}({', '.join(parts)})"


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


def closing_lines(results: Iterable[TestVerdict], framework: str) -> list[str]:
    """Return the failures by clause, and a paragraph with the numbers of tests that passed or do not apply, and why.

    Args:
        framework: the name of a framework whose documentation to quote, where a clause has several sources.
    """
    judged = list(results)
    failed: dict[str, list[TestVerdict]] = defaultdict(list)
    for verdict in judged:
        if verdict.outcome.bad:
            failed[verdict.clause].append(verdict)
    totals = Counter(verdict.clause for verdict in judged if verdict.outcome not in UNJUDGED)
    counts = {clause: f"{len(verdicts)} of {totals[clause]}" for clause, verdicts in failed.items()}
    groups: dict[tuple[str, str], list[TestVerdict]] = defaultdict(list)
    for verdicts in sorted(failed.values(), key=len, reverse=True):
        plainest = min(verdicts, key=lambda verdict: (verdict.outcome is not Outcome.FAIL, len(verdict.message)))
        groups[plainest.signature, re.sub(r"\d+", "N", plainest.message.partition(" got ")[0])].append(plainest)
    lines = [f"clauses that fail: {len(failed) or 'none'}"]
    for alike in groups.values():
        lines += ["", *_describe_group(alike, counts, framework)]
    return [*lines, "", *textwrap.wrap(_counts(judged), _WIDTH)]


def _describe_group(verdicts: Sequence[TestVerdict], counts: Mapping[str, str], framework: str) -> Iterator[str]:
    """Yield the lines about clauses that fail in the same way, of which each has its plainest verdict here."""
    verdict, *others = verdicts
    yield f"{verdict.clause}: {counts[verdict.clause]} tests fail"
    yield from _rule(load_clauses().get(verdict.clause), framework)
    yield from _wrap_lines(f"{verdict.outcome}: {_shorten(verdict.message)}")
    if others:
        also = ", ".join(f"{other.clause} ({counts[other.clause]})" for other in others)
        yield from _wrap_lines(f"in the same way: {also}")
    yield f"  repeat: {verdict.repro.replace('conformance/suites/', f'{SUITES}/')}"


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
