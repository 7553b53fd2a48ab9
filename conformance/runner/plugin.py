"""The pytest plugin: options, the fixtures `subject`, `verdict` and `excluded`, parameters, and each test's outcome.

It does nothing unless pytest runs the suites, so that the suite's own tests need no framework.
"""

import gc
import os
import signal
import time
import traceback
from collections.abc import Generator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from _pytest.mark.expression import Expression

from conformance import timing
from conformance.checks.checkpoints import saved_runs
from conformance.checks.combinations import rows
from conformance.checks.evidence import Verdict
from conformance.checks.outcome import Judgement, conclude_safely
from conformance.checks.subject import Profile, Subject
from conformance.fingerprints.cases import judged_kinds
from conformance.known_failures.entries import Exclusion, Expectation, Known
from conformance.known_failures.reading import known_of
from conformance.runner import machine
from conformance.runner.baselines import foreign
from conformance.runner.isolation import (
    CachedPrograms,
    FullWorkers,
    Interrupts,
    LostWorkers,
    clip_text,
    end_despite_threads,
    end_with_parent,
    format_traceback,
    isolate_test,
    restore_settings,
    use_own_temporary_directory,
)
from conformance.runner.recorder import (
    PROPERTY,
    Recorder,
    describe_failure,
    junit_properties,
    recorded_runs,
    repro,
    show,
    to_property,
)
from conformance.runner.selection import (
    ALL,
    NAMES,
    PARAMETERS,
    Completeness,
    SelectedTests,
    Ways,
    WayTests,
    chosen_ways,
)
from conformance.runner.subprocesses import no_commands
from conformance.test_ids import SUITES, code_of, id_of
from frameworks.contract import SHIPPED, Framework, MissingDevice
from frameworks.registry import DEVICE_HELP, UnknownFramework, adapter_file, clashes, load
from results.record.files import RecordError, one_line
from results.record.model import Outcome, RunSetup

_FRAMEWORK = pytest.StashKey[Framework]()
_KNOWN = pytest.StashKey[Known]()
_VERDICT = pytest.StashKey[Verdict]()
_LEAKS = pytest.StashKey[tuple[str, ...]]()
_JUDGEMENT = pytest.StashKey[Judgement]()
_TRACEBACK = pytest.StashKey[str]()
_INTERRUPTS = pytest.StashKey[Interrupts]()
_STATUS = pytest.StashKey[int]()
_WAYS = pytest.StashKey[Ways]()
_RUNS = pytest.StashKey[list[RunSetup]]()
TIMED = frozenset({"cost.adapter-overhead", "cost.mixed-speed", "cost.recompute-time"})
"""Clauses whose tests measure time while no other worker runs (`conformance.timing`)."""
MOST_OBJECTS = 100_000
"""Number of objects in the garbage collector's oldest generation from which on they are frozen."""
_NIGHTLY = Profile(20, time.time_ns() % 2**32, shrinking_s=60.0)
PROFILES = {"ci": Profile(), "quick": Profile(shrinking_s=0.0), "nightly": _NIGHTLY}


def check_expressions(config: pytest.Config) -> None:
    """Parse the expressions of `-k` and `-m` once; otherwise every worker would report the error.

    Raises:
        ValueError: pytest cannot parse an expression.
    """
    for option, name in (("-k", "keyword"), ("-m", "markexpr")):
        expression = getattr(config.option, name, "")
        if expression and (problem := problem_of(expression)):
            raise ValueError(f"{option}: got {expression!r}, want an expression such as 'a and not b': {problem}")


def problem_of(expression: str) -> str:
    """Return why pytest cannot read an expression, "" if it can."""
    try:
        Expression.compile(expression)
    except SyntaxError as error:
        return str(error.args[0])
    return ""


def parametrize(metafunc: pytest.Metafunc, framework: Framework, known: Known, ways: Ways) -> None:
    """Give a test the values of its parameters.

    `variant`: all recomputation variants that the framework offers; `row`: all rows of its covering array;
    `judged_kind`: all kinds of public calls whose results must agree in this mode;
    `saved_run`: all checkpoints of older versions of what this mode trains by;
    `workaround`: all workarounds that its adapter declares; `way`: all ways that the adapter declares for this mode;
    `operation_technique` and others of `SHIPPED`: all techniques with which such parts are judged.
    """
    if "variant" in metafunc.fixturenames:
        variants = framework.recompute_variants() or (None,)
        metafunc.parametrize("variant", variants, ids=[variant or "default" for variant in variants])
    if "function_way" in metafunc.fixturenames:
        function_ways = tuple(framework.function_ways()) or (None,)
        metafunc.parametrize("function_way", function_ways, ids=[way or "default" for way in function_ways])
    for part in SHIPPED:
        if (name := f"{part[:-1]}_technique") in metafunc.fixturenames:
            supported = framework.declares(SHIPPED[part]).supported
            techniques = framework.get_shipped(part).techniques() if supported else (None,)
            metafunc.parametrize(name, techniques, ids=[technique or "default" for technique in techniques])
    if "workaround" in metafunc.fixturenames:
        metafunc.parametrize("workaround", known.workarounds, ids=[w.finding.id for w in known.workarounds])
    if "judged_kind" in metafunc.fixturenames:
        kinds = judged_kinds(framework.name, framework.mode, framework.modes[0])
        metafunc.parametrize("judged_kind", kinds, ids=map(str, kinds))
    if "saved_run" in metafunc.fixturenames:
        saved = saved_runs(framework.name, framework.mode, framework.modes[0])
        metafunc.parametrize("saved_run", saved, ids=map(str, saved))
    for name in PARAMETERS.keys() & {*metafunc.fixturenames}:
        chosen_ways = [way for way in ways.offered if PARAMETERS[name](way)]
        metafunc.parametrize(name, chosen_ways, ids=map(str, chosen_ways))
    for name in {"row", "dropping_row"} & {*metafunc.fixturenames}:
        chosen = [row for row in rows(framework) if name == "row" or row.dropout]
        metafunc.parametrize(name, chosen, ids=[row.label for row in chosen])


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of the suites."""
    group = parser.getgroup("conformance", "training conformance")
    group.addoption("--framework", default="reference", metavar="NAME", help="adapter name, or package.module:Class")
    group.addoption("--device", default="auto", metavar="NAME", help=DEVICE_HELP)
    group.addoption("--mode", default=None, metavar="NAME", help="mode of the adapter (default: its first)")
    group.addoption(
        "--way",
        action="append",
        default=[],
        metavar="TECHNIQUE.NAME",
        help="public call by which techniques are run, where it is not the adapter's default (`conformance ways`); "
        "only tests that may use the technique run",
    )
    group.addoption("--seed", default=0, type=int, metavar="N", help="seed of weights, data and schedules")
    group.addoption(
        "--profile",
        default="ci",
        choices=tuple(PROFILES),
        help="cases of property tests: ci repeats the same ones, quick does not shrink failures, "
        "nightly generates 20 times as many new ones",
    )
    group.addoption(
        "--tests",
        default=ALL,
        choices=NAMES,
        help="quick: about a minute of work; core: what `conformance run` does by default; all",
    )
    group.addoption(
        "--record",
        default=None,
        type=Path,
        metavar="FILE",
        help="file for the record; by default a run of all tests writes "
        "results/records/FRAMEWORK-VERSION-DEVICE-MODE.json, a run of selected tests writes none",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Load the framework under test and open the record."""
    config.addinivalue_line("markers", "clause(id): the clause of the specification that a test judges")
    config.addinivalue_line("markers", "gpu: the test needs a GPU")
    config.addinivalue_line("markers", "timeout(seconds): longest time of the test, where pytest-timeout is installed")
    if not _runs_suites(config):
        return
    option = config.option
    option.disable_warnings = "w" not in option.reportchars  # hundreds of lines; -rw lists them
    if worker := hasattr(config, "workerinput"):
        end_with_parent()
    else:
        around = ExitStack()
        around.enter_context(no_commands())
        around.enter_context(use_own_temporary_directory())
        config.add_cleanup(around.close)
    try:
        check_expressions(config)
        if not 0 <= option.seed < 2**63:
            raise ValueError(f"--seed: got {option.seed}, want 0 to {2**63 - 1}")
        framework = load(option.framework, option.device, option.mode)
        config.stash[_WAYS] = chosen_ways(option.framework, framework, option.way)
        known = known_of(
            framework, option.seed, machine.instruction_sets(), [str(way) for way in config.stash[_WAYS].chosen]
        )
        config.stash[_FRAMEWORK], config.stash[_KNOWN] = framework, known
        config.stash[_INTERRUPTS] = Interrupts(signal.SIGINT, *(() if worker else (signal.SIGTERM, signal.SIGHUP)))
        if option.tests != ALL:
            config.pluginmanager.register(SelectedTests(config, framework, option.tests), "conformance-selection")
        if config.stash[_WAYS].chosen:
            config.pluginmanager.register(WayTests(framework, config.stash[_WAYS]), "conformance-ways")
        completeness = Completeness(config, adapter_file(option.framework).lacks.get(framework.mode, ()))
        config.pluginmanager.register(completeness, "conformance-completeness")
        config.pluginmanager.register(CachedPrograms(), "conformance-programs")
        config.pluginmanager.register(FullWorkers(config, serial=_serial(config)), "conformance-full-workers")
        if not worker and not config.option.collectonly:
            config.pluginmanager.register(LostWorkers(), "conformance-workers")
            config.pluginmanager.register(Recorder(config, framework, known, completeness), "conformance-recorder")
    except (UnknownFramework, MissingDevice, RecordError, ValueError) as error:
        pytest.exit(" ".join(str(error).split()), returncode=2)
    except Exception as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        problem = f"cannot initialise adapter {option.framework!r}: {type(error).__name__}: {error}"
        problem += f" ({frame.filename}, line {frame.lineno})"
        pytest.exit(one_line(problem), returncode=2)


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Return a warning if another adapter has the same name."""
    return [line for line in clashes(config.option.framework) if _FRAMEWORK in config.stash]


def _runs_suites(config: pytest.Config) -> bool:
    for argument in config.args:
        path = Path(os.path.abspath(config.invocation_params.dir / str(argument).split("::", 1)[0]))
        if path == SUITES or SUITES in path.parents or path in SUITES.parents:
            return True
    return False


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give tests the parameters whose values depend on the framework."""
    stash = metafunc.config.stash
    if _FRAMEWORK in stash:
        parametrize(metafunc, stash[_FRAMEWORK], stash[_KNOWN], stash[_WAYS])


def pytest_itemcollected(item: pytest.Item) -> None:
    """Lets `-k` select tests by their clause as well."""
    if code := code_of(item.nodeid):
        item.extra_keyword_matches.add(code.clause)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Move cases whose failure affects later tests to the end, and order the others for the workers.

    Without workers, timed cases come right before the cases at the end.
    """
    if _FRAMEWORK not in config.stash:
        return
    framework = config.stash[_FRAMEWORK]
    spoiling = [entry for entry in config.stash[_KNOWN].expectations if entry.finding.spoils_process]
    harmful = [item for item in items if any(entry.covers(*_split_node_id(item)) for entry in spoiling)]
    timed = [item for item in items if _split_node_id(item)[0] in TIMED]
    workers = int(getattr(config, "workerinput", {}).get("workercount", 1))
    if workers == 1 or _serial(config):
        items.sort(key=lambda item: (item in harmful, item in timed))
        return
    from conformance.runner.ordering import expected_seconds, split_by_worker  # needs pytest-xdist

    items[:] = split_by_worker(items, workers, frozenset(timed), frozenset(harmful), expected_seconds(framework, items))


def _serial(config: pytest.Config) -> bool:
    """Return whether the adapter says that the mode keeps state between tests."""
    return config.stash[_FRAMEWORK].mode in adapter_file(config.option.framework).serial


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Return the scheduler with fixed shares if the adapter declares the mode as serial; else the command line's."""
    if _FRAMEWORK not in config.stash or not _serial(config):
        return None
    from conformance.runner.ordering import FixedShares  # pytest-xdist need not be installed

    return FixedShares(config, log)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Freeze the imported objects, which would otherwise take most of the garbage collector's time."""
    if _FRAMEWORK in session.config.stash:
        gc.collect()
        gc.freeze()


def pytest_runtest_logfinish() -> None:
    """Freeze objects that frameworks never release, such as graphs: some frameworks call the collector themselves."""
    if len(gc.get_objects(generation=2)) > MOST_OBJECTS:
        gc.collect()
        gc.freeze()


def _split_node_id(item: pytest.Item) -> tuple[str, str]:
    clause, _, case = id_of(item.nodeid).partition("/") if code_of(item.nodeid) else ("", "", "")
    return clause, case


@pytest.fixture(scope="session")
def subject(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Subject:
    """The framework under test."""
    if hasattr(pytestconfig, "workerinput"):
        timing.join(tmp_path_factory.getbasetemp().parent)
    option, ways = pytestconfig.option, pytestconfig.stash[_WAYS].chosen
    return Subject(pytestconfig.stash[_FRAMEWORK], option.seed, PROFILES[option.profile], ways)


@pytest.fixture(scope="session")
def excluded(pytestconfig: pytest.Config) -> tuple[Exclusion, ...]:
    """Conditions that generated programs avoid."""
    return pytestconfig.stash[_KNOWN].exclusions


@pytest.fixture
def verdict(request: pytest.FixtureRequest) -> Verdict:
    """Collects the test's results."""
    result = Verdict()
    request.node.stash[_VERDICT] = result
    return result


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """Run the test, classify its end, and restore the process state."""
    if code_of(item.nodeid) is None or _FRAMEWORK not in item.config.stash:
        return (yield)
    framework, interrupts = item.config.stash[_FRAMEWORK], item.config.stash[_INTERRUPTS]
    timeout = float(item.config.getoption("timeout", None) or 0.0)
    errors: list[BaseException] = []
    try:
        before = framework.global_state()
        try:
            with (
                timing.share_machine(),
                recorded_runs(framework) as item.stash[_RUNS],
                isolate_test(interrupts, timeout) as errors,
            ):
                yield
        finally:
            item.stash[_LEAKS] = restore_settings(framework, before)
    except BaseException as error:
        errors.append(error)
    with isolate_test(interrupts, timeout):
        failure = errors[0] if errors else None
        item.stash[_JUDGEMENT] = conclude_safely(framework, failure, _matching(item))
        if failure is not None and item.stash[_JUDGEMENT].outcome is Outcome.ERROR:
            item.stash[_TRACEBACK] = format_traceback(item, failure)
    if errors and item.config.getoption("usepdb"):
        raise errors[0]
    if errors:
        pytest.fail("the test did not pass", pytrace=False)


def _matching(item: pytest.Item) -> list[Expectation]:
    return [entry for entry in item.config.stash[_KNOWN].expectations if entry.covers(*_split_node_id(item))]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
    """Give the test its outcome and pass it to the recorder."""
    report = yield
    code = code_of(item.nodeid)
    if code is None or _FRAMEWORK not in item.config.stash:
        return report
    report.sections = [(name, clip_text(text)) for name, text in report.sections]
    if call.when == "teardown" or (call.when == "setup" and call.excinfo is None):
        return report
    framework = item.config.stash[_FRAMEWORK]
    command = repro(item.config, framework, item.nodeid)
    judgement = item.stash.get(_JUDGEMENT, None) if call.when == "call" else None
    if judgement is None:
        judgement = conclude_safely(framework, call.excinfo.value if call.excinfo else None, _matching(item))
    if judgement.outcome.bad and (elsewhere := foreign(framework.name, framework.mode, framework.device)):
        judgement = replace(judgement, message=f"{elsewhere}{judgement.message}")
    runs: list[RunSetup] = item.stash.get(_RUNS, [])

    store = partial(
        to_property,
        item.nodeid,
        duration_s=call.duration,
        leaks=item.stash.get(_LEAKS, ()),
        seed=item.config.option.seed,
        repro=command,
        runs=runs,
    )
    try:
        text = store(judgement, item.stash.get(_VERDICT, Verdict()))
    except Exception as problem:  # a test may observe any object, and its conversion may raise anything
        message = f"the test's record cannot be stored ({clip_text(str(problem))})"
        judgement = Judgement(Outcome.ERROR, "cannot-be-stored", message)
        text = store(judgement, Verdict())
    trace = item.stash.get(_TRACEBACK, "") if call.when == "call" else str(report.longrepr or "")
    show(report, item, judgement, describe_failure(judgement, code.clause, command, runs), trace)
    item.user_properties += junit_properties(judgement, code.clause, command)
    report.user_properties.append((PROPERTY, text))
    return report


def pytest_unconfigure(config: pytest.Config) -> None:
    """End the process even if a framework's threads are still running."""
    if _STATUS in config.stash:
        end_despite_threads(config.stash[_STATUS])


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Store the final exit status, after all plugins have set it."""
    if _FRAMEWORK in session.config.stash:
        session.config.stash[_STATUS] = int(session.exitstatus)
