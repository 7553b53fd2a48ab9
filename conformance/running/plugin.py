"""The pytest plugin: options, the fixtures `subject`, `verdict` and `variant`, and the outcome of every test.

It is inert unless the suites are among what pytest was asked to run, so that the suite's own tests need no framework.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import pytest

from conformance.doubts.vacuity import Vacuity
from conformance.expectations.entries import Known, known_of
from conformance.inventory.tests import SUITES, code_of, split
from conformance.judging.covering_array import rows
from conformance.judging.outcome import Judgement, conclude
from conformance.judging.subject import Profile, Subject
from conformance.judging.verdict import Verdict
from conformance.measuring import exclusive
from conformance.running.completeness import Completeness
from conformance.running.recorder import PROPERTY, Recorder, repro, to_property
from conformance.running.runs import TrainedRun, recorded_runs
from frameworks.contract import Framework, MissingDevice
from frameworks.registry import UnknownFramework, clashes, load
from results.record.files import RecordError
from results.record.outcomes import Outcome

_FRAMEWORK = pytest.StashKey[Framework]()
_KNOWN = pytest.StashKey[Known]()
_VERDICT = pytest.StashKey[Verdict]()
_LEAKS = pytest.StashKey[tuple[str, ...]]()
_RUNS = pytest.StashKey[list[TrainedRun]]()
PROFILES = {"ci": Profile(), "nightly": Profile(20, time.time_ns() % 2**32, shrinking_s=60.0)}
_SILENT = {Outcome.UNSUPPORTED, Outcome.ABSTAIN}


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options of the suites."""
    group = parser.getgroup("conformance", "training conformance")
    group.addoption("--framework", default="reference", metavar="NAME", help="adapter, or package.module:Class")
    group.addoption("--device", default="auto", metavar="NAME", help="auto (a GPU where there is one), cpu or cuda")
    group.addoption("--mode", default=None, metavar="NAME", help="the adapter's mode; its first by default")
    group.addoption("--seed", default=0, type=int, metavar="N", help="seed of weights, data and schedules")
    group.addoption(
        "--profile",
        default="ci",
        choices=("ci", "nightly"),
        help="how far properties are explored: ci repeats the same cases, nightly draws 20 times as many new ones",
    )
    group.addoption(
        "--vacuity",
        action="store_true",
        help="run every passing test again on blinded frameworks, and fail if one of them changes no verdict",
    )
    group.addoption(
        "--record",
        default=None,
        type=Path,
        metavar="FILE",
        help="where the record goes; by default a run of all tests writes "
        "results/records/FRAMEWORK-VERSION-DEVICE-MODE.json, and a run of some tests writes none",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Loads the framework that is judged, and opens the record."""
    config.addinivalue_line("markers", "clause(id): the clause of the specification that a test judges")
    config.addinivalue_line("markers", "gpu: only a device of its own can show what the test judges")
    if not _runs_suites(config):
        return
    option = config.option
    try:
        if option.seed < 0:
            raise ValueError(f"a seed is 0 or more, not {option.seed}")
        framework = load(option.framework, option.device, option.mode)
        known = known_of(framework, option.seed)
        config.stash[_FRAMEWORK], config.stash[_KNOWN] = framework, known
        if option.vacuity:
            config.pluginmanager.register(Vacuity(), "conformance-vacuity")
        completeness = Completeness(config)
        config.pluginmanager.register(completeness, "conformance-completeness")
        if not hasattr(config, "workerinput") and not config.option.collectonly:
            config.pluginmanager.register(Recorder(config, framework, known, completeness), "conformance-recorder")
    except (UnknownFramework, MissingDevice, RecordError, ValueError) as error:
        pytest.exit(" ".join(str(error).split()), returncode=2)


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Says so if another adapter lays claim to the name of the one that is judged."""
    return [line for line in clashes(config.option.framework) if _FRAMEWORK in config.stash]


def _runs_suites(config: pytest.Config) -> bool:
    for argument in config.args:
        path = Path(os.path.abspath(config.invocation_params.dir / str(argument).split("::", 1)[0]))
        if path == SUITES or SUITES in path.parents or path in SUITES.parents:
            return True
    return False


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """`variant`: every recomputation variant that the framework offers; `row`: every row of its covering array;
    `workaround`: every workaround that its adapter declares."""
    if _FRAMEWORK not in metafunc.config.stash:
        return
    framework = metafunc.config.stash[_FRAMEWORK]
    if "variant" in metafunc.fixturenames:
        variants = framework.recompute_variants() or (None,)
        metafunc.parametrize("variant", variants, ids=[variant or "default" for variant in variants])
    if "workaround" in metafunc.fixturenames:
        declared = metafunc.config.stash[_KNOWN].workarounds
        metafunc.parametrize("workaround", declared, ids=[each.finding.id for each in declared])
    for name in {"row", "dropping_row"} & {*metafunc.fixturenames}:
        chosen = [row for row in rows(framework) if name == "row" or row.dropout]
        metafunc.parametrize(name, chosen, ids=[row.label for row in chosen])


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Puts the cases last whose known failure spoils the process."""
    spoiling = [entry for entry in config.stash.get(_KNOWN, Known()).expectations if entry.spoils_process]
    if spoiling:
        items.sort(key=lambda item: any(entry.covers(*_named(item)) for entry in spoiling))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Takes what importing has made out of the garbage collector's rounds; most of their time would go there."""
    if _FRAMEWORK in session.config.stash:
        gc.collect()
        gc.freeze()


def _named(item: pytest.Item) -> tuple[str, str]:
    code = code_of(item.nodeid)
    return (code.clause, split(item.nodeid)[2]) if code else ("", "")


@pytest.fixture(scope="session")
def subject(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Subject:
    """The framework under judgement."""
    if hasattr(pytestconfig, "workerinput"):
        exclusive.join(tmp_path_factory.getbasetemp().parent)
    option = pytestconfig.option
    return Subject(pytestconfig.stash[_FRAMEWORK], option.seed, PROFILES[option.profile])


@pytest.fixture
def verdict(request: pytest.FixtureRequest) -> Verdict:
    """Collects what the test finds."""
    made = Verdict()
    request.node.stash[_VERDICT] = made
    return made


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """Compares process-wide settings before and after the test, and puts them back."""
    if code_of(item.nodeid) is None or _FRAMEWORK not in item.config.stash:
        return (yield)
    framework = item.config.stash[_FRAMEWORK]
    before = framework.global_state()
    try:
        with exclusive.entered(), recorded_runs(framework) as item.stash[_RUNS]:
            return (yield)
    finally:
        after = framework.global_state()
        if after != before:
            changed = sorted(k for k in before.keys() | after.keys() if before.get(k) != after.get(k))
            item.stash[_LEAKS] = tuple(f"{k}: {before.get(k)} → {after.get(k)}" for k in changed)
            framework.restore_global_state(before)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
    """Gives the test its outcome and hands it to the recorder."""
    report = yield
    code = code_of(item.nodeid)
    if code is None or _FRAMEWORK not in item.config.stash or call.when == "teardown":
        return report
    if call.when == "setup" and call.excinfo is None:
        return report
    framework = item.config.stash[_FRAMEWORK]
    case = split(item.nodeid)[2]
    matching = [e for e in item.config.stash[_KNOWN].expectations if e.covers(code.clause, case)]
    judgement = conclude(framework, call.excinfo.value if call.excinfo else None, matching)
    leaks = item.stash.get(_LEAKS, ())
    collected = item.stash.get(_VERDICT, Verdict())
    command = repro(item.config, framework, item.nodeid)
    runs: list[TrainedRun] = item.stash.get(_RUNS, [])
    _show(report, item, judgement, code.clause, command, runs)
    item.user_properties += _junit(judgement, code.clause, command)
    seed = item.config.option.seed
    line = to_property(item.nodeid, judgement, collected, call.duration, leaks, seed, command, runs)
    report.user_properties.append((PROPERTY, line))
    return report


def _junit(judgement: Judgement, clause: str, command: str) -> list[tuple[str, object]]:
    """What the report of pytest's --junitxml says of the test besides, without what is empty."""
    told = {"clause": clause, "outcome": judgement.outcome.value, "signature": judgement.signature}
    told |= {"link": judgement.link, "finding": judgement.finding, "inferred_from": judgement.inferred_from}
    told |= {"repro": command}
    return [(name, text) for name, text in told.items() if text]


def _show(
    report: pytest.TestReport,
    item: pytest.Item,
    judgement: Judgement,
    clause: str,
    command: str,
    runs: Sequence[TrainedRun],
) -> None:
    """Makes pytest's own report say what the judgement says, whatever `pytest.xfail` inside the test made of it."""
    vars(report).pop("wasxfail", None)
    if judgement.outcome is Outcome.PASS:
        report.outcome = "passed"
    elif judgement.outcome is Outcome.KNOWN:
        reason = f"{judgement.reason} ({judgement.mark})" if judgement.mark else judgement.reason
        report.outcome, report.wasxfail = "skipped", f"{judgement.signature}: {reason}"
    elif judgement.outcome in _SILENT:
        report.outcome = "skipped"
        path, line, _ = item.location
        report.longrepr = (path, (line or 0) + 1, f"{judgement.outcome}: {judgement.message}")
    else:
        which = f" (the last of {len(runs)})" if len(runs) > 1 else ""
        run = f"run: {runs[-1]}{which}\n" if runs else ""
        described = f"{clause} [{judgement.outcome}] {judgement.message}\n{run}repeat: {command}"
        trace = str(report.longrepr) if judgement.outcome is Outcome.ERROR and report.longrepr else ""
        report.outcome, report.longrepr = "failed", f"{trace}\n{described}" if trace else described
