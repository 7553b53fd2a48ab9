"""The vacuity probe, `-p tools.sabotage.vacuity`: runs passing tests again on sabotaged frameworks until one fails."""

from __future__ import annotations

import inspect
import tempfile
from collections import Counter
from collections.abc import Generator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from conformance.checks.evidence import Abstention, Verdict, Violation
from conformance.checks.subject import Subject
from conformance.spec.clauses import Level, load_clauses
from conformance.test_ids.inventory import code_of
from frameworks.contract import Unsupported
from tools.sabotage import SABOTAGES

PROPERTY = "vacuity"
BINDING = (Level.MUST, Level.SHOULD)


@dataclass
class Vacuity:
    """The plugin: workers probe tests; the main process lists the vacuous ones."""

    survivors: list[tuple[str, str, str]] = field(default_factory=list)
    flips: Counter[str] = field(default_factory=Counter)
    by_error: list[tuple[str, str]] = field(default_factory=list)
    unjudged: int = 0

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
        """Probes a passing test while its fixtures exist."""
        report = yield
        code = code_of(item.nodeid)
        passed = call.when == "call" and report.outcome == "passed"
        if passed and code is not None and isinstance(item, pytest.Function):
            judged = load_clauses()[code.clause].level.judged
            report.user_properties.append((PROPERTY, list(_probed(item)) if judged else ["", "unjudged"]))
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Stores the result of a test's probe."""
        code = code_of(report.nodeid)
        for name, value in report.user_properties:
            if name == PROPERTY and code is not None and isinstance(value, list):
                self._keep(report.nodeid, code.clause, *value)

    def _keep(self, test: str, clause: str, sabotage: str, how: str) -> None:
        if how == "unjudged":
            self.unjudged += 1
        elif how == "survived":
            self.survivors.append((clause, test, sabotage))
        else:
            self.flips[sabotage] += 1
            if how == "error":
                self.by_error.append((clause, test))

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """A vacuous test of a binding clause makes the run fail."""
        vacuous = [clause for clause, _, _ in self.survivors if load_clauses()[clause].level in BINDING]
        if vacuous and exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """One line for each vacuous test, and the counts."""
        terminalreporter.section("vacuity")
        for clause, test, tried in sorted(self.survivors):
            terminalreporter.line(f"{clause}  {test}  not changed by {tried}")
        probed = self.flips.total() + len(self.survivors)
        shares = ", ".join(f"{name} {count}" for name, count in self.flips.most_common())
        terminalreporter.line(
            f"{len(self.survivors)} vacuous of {probed} passing tests; {self.unjudged} observations and measurements "
            f"left out; {len(self.by_error)} changed only to an error"
        )
        terminalreporter.line(f"verdicts changed first by: {shares or 'nothing'}")


def pytest_configure(config: pytest.Config) -> None:
    """Registers the plugin."""
    config.pluginmanager.register(Vacuity(), "conformance-vacuity")


def _probed(item: pytest.Function) -> tuple[str, str]:
    """The first sabotage under which the test fails, and its outcome; if there is none, all sabotages and "survived".

    An error counts only if no sabotage causes a failure: it may be the sabotage's own.
    """
    erring = ""
    for name in SABOTAGES:
        match _rerun(item, name):
            case "fail":
                return name, "fail"
            case "error":
                erring = erring or name
    return (erring, "error") if erring else (", ".join(SABOTAGES), "survived")


def _rerun(item: pytest.Function, sabotage: str) -> str:
    """Runs the test on a sabotaged framework, with a new verdict and folder."""
    given = {name: item.funcargs[name] for name in inspect.signature(item.obj).parameters}
    subject = given.get("subject")
    if not isinstance(subject, Subject):
        return "pass"
    framework = subject.framework
    settings = framework.global_state()
    sabotaged: Any = SABOTAGES[sabotage](framework)
    profile = replace(subject.profile, shrinking_s=0.0)
    given["subject"] = replace(subject, framework=sabotaged, profile=profile)
    given["verdict"] = Verdict()
    with tempfile.TemporaryDirectory() as folder:
        if "tmp_path" in given:
            given["tmp_path"] = Path(folder)
        try:
            item.obj(**given)
        except (Unsupported, Abstention):
            return "pass"
        except Violation:
            return "fail"
        except Exception:
            return "error"
        finally:
            framework.restore_global_state(settings)
    return "pass"
