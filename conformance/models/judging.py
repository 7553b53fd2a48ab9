"""Judges models without an adapter, by a test for each of them in pytest's workers, and shows the record of it."""

import json
import os
import re
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import pytest

from conformance.known_failures.reading import load_known
from conformance.models.suite import LATE, REQUEST
from conformance.runner import machine
from conformance.runner.identity import ROOT, suite
from conformance.spec.clauses import Clause, Finding, load_clauses, read_clauses
from results.record.model import Outcome, Record, Series, TestVerdict, Variant
from results.record.reading import now

LIBRARY = "transformers"
PACKAGES = ["torch", LIBRARY, "accelerate"]
JUDGE = "frameworks.torch.stacks.heads.building"
"""Module with the names of a library's models, and with the checks of one model."""
LAST = "resume.bit-identical"
"""Clause of the last check; of a model that was not trained to the end, its verdict has the reason."""
MOST_NAMES = 6
_OWN = Path(__file__).parent / "clauses"
_SETTINGS = {"OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0", "HF_HUB_OFFLINE": "1"}
_OUTCOMES = {"pass": Outcome.PASS, "fail": Outcome.FAIL, "not judged": Outcome.ABSTAIN}
_TEXTS = {Outcome.FAIL: "failed", Outcome.KNOWN: "known", Outcome.PASS: "passed", Outcome.ABSTAIN: "not judged"}


class CannotJudge(Exception):
    """No model can be judged; the message is one line that says what to do."""


@dataclass(frozen=True)
class ModelRequest:
    """The models to judge.

    Attributes:
        model: "transformers:CLASS" or "PACKAGE.MODULE:FACTORY"; "" for classes of the library.
        only: parts of names, one of which a class has.
        formats: of mixed precision.
        limit_s: limit for one model.
    """

    model: str = ""
    only: tuple[str, ...] = ()
    formats: tuple[str, ...] = ("bfloat16",)
    limit_s: int = 60
    judge: str = field(default_factory=lambda: JUDGE)


@cache
def clauses() -> Mapping[str, Clause]:
    """The suite's clauses, and those that only models are judged by."""
    return {**read_clauses(_OWN), **load_clauses()}


@cache
def _findings() -> Mapping[str, Finding]:
    """Patterns of causes, and the findings that name them."""
    return {cause: finding for finding in load_known().findings for cause in finding.causes}


def verdict_of(model: str, check: Mapping[str, str], seconds: float = 0.0) -> TestVerdict:
    """The verdict of one check; a failure is known if a finding names its cause, or the model where it has none."""
    outcome, cause, known = _OUTCOMES[check["outcome"]], check["cause"], None
    if outcome is Outcome.FAIL:
        named = (finding for pattern, finding in _findings().items() if fnmatchcase(cause or model, pattern))
        known = next(named, None)
        outcome = Outcome.KNOWN if known else outcome
    text = f"got {check['got']}, want {check['want']}" if check["want"] else check["got"]
    case = f"[{check['case']}]" if check["case"] else ""
    return TestVerdict(
        test=f"{check['clause']}/{model}{case}",
        clause=check["clause"],
        outcome=outcome,
        signature=(cause or "the model alone") if check["outcome"] == "fail" else "",
        message="" if outcome is Outcome.ABSTAIN else text,
        reason=text if outcome is Outcome.ABSTAIN else "",
        finding=known.id if known else "",
        repro=f"conformance judge-model {model}" if check["outcome"] == "fail" else "",
        duration_s=seconds,
    )


class _Collector:
    """A plugin of pytest that makes verdicts from the reports of workers."""

    def __init__(self, limit_s: int, late: Path) -> None:
        self.verdicts: list[TestVerdict] = []
        self.problem = ""
        self._limit_s, self._late = limit_s, late
        self._begun: dict[str, float] = {}

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Notes when a model begins."""
        self._begun[nodeid] = time.monotonic()

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Notes why there are no tests."""
        if report.failed:
            self.problem = str(report.longrepr).strip().splitlines()[-1].removeprefix("E").strip()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Adds the verdicts of a model; a worker that ended has a report without properties."""
        if report.when in ("setup", "teardown"):
            return
        model = report.nodeid.partition("[")[2].removesuffix("]")
        lasted = time.monotonic() - self._begun[report.nodeid]
        properties: list[tuple[str, Any]] = report.user_properties
        checks = [value for name, value in properties if name == "check"]
        problem = "".join(value for name, value in properties if name == "problem")
        if report.failed:
            late = self._late / model
            problem = (
                f"took more than {self._limit_s} s" if late.exists() and late.stat().st_size else "its process ended"
            )
        if problem:
            untrained = {"clause": LAST, "outcome": "not judged", "got": problem}
            checks.append({**untrained, "want": "", "case": "", "cause": ""})
        seconds = round(lasted / max(len(checks), 1), 3)
        self.verdicts += [verdict_of(model, check, seconds) for check in checks]


def judge(request: ModelRequest, jobs: int) -> Record:
    """The record of models, in which the verdict on `LAST` says why one was not trained to the end.

    Args:
        jobs: number of processes.

    Raises:
        CannotJudge: a library is missing, or no class has such a name.
    """
    started, start, packages = now(), time.monotonic(), machine.packages()
    needed = ["torch"] if request.model and not request.model.startswith(f"{LIBRARY}:") else PACKAGES
    if missing := [name for name in needed if name not in packages]:
        raise CannotJudge(f"{' and '.join(missing)} not installed: pip install {' '.join(missing)}")
    options = ["-c", os.devnull, f"--rootdir={ROOT}", "--noconftest", "--assert=plain"]
    options += [f"-pno:{name}" for name in ("cacheprovider", "warnings", "benchmark", "timeout", "faulthandler")]
    options += ["-p", "xdist", "--max-worker-restart=100000", f"--numprocesses={jobs}"]
    options += ["-qq", "--tb=no"] if sys.stderr.isatty() else ["-pno:terminal"]
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    variables = {**_SETTINGS, "PYTHONPATH": path, REQUEST: json.dumps(asdict(request))}
    with TemporaryDirectory(prefix="conformance-") as late, patch.dict(os.environ, {**variables, LATE: late}):
        collector = _Collector(request.limit_s, Path(late))
        with redirect_stdout(sys.stderr):
            status = pytest.main([*options, str(Path(__file__).with_name("suite.py"))], [collector])
    if not collector.verdicts:
        name = f"no class of {LIBRARY} {packages.get(LIBRARY)} has {','.join(request.only)} in its name"
        raise CannotJudge(collector.problem or name)
    judged = tuple(name for name in clauses() if any(verdict.clause == name for verdict in collector.verdicts))
    interrupted = status == pytest.ExitCode.INTERRUPTED
    return Record(
        suite=suite("torch", judged, ()),
        series=Series("torch", "cpu", "cpu", "heads"),
        variant=Variant(packages["torch"], machine.basics(), packages, machine.variables(), machine.instruction_sets()),
        started=started,
        seed=0,
        selection=request.model or " ".join(filter(None, request.only)),
        clauses={name: clauses()[name].text for name in judged},
        findings={finding.id: finding.text for finding in _findings().values()},
        finished=now(),
        duration_s=round(time.monotonic() - start, 1),
        status="interrupted" if interrupted else "complete",
        verdicts=tuple(collector.verdicts),
    ).sort_parts()


def problem_of(record: Record) -> str:
    """Why the first model was not trained to the end, "" if it was."""
    return next((verdict.reason for verdict in record.verdicts if _is_untrained(verdict)), "")


def _is_untrained(verdict: TestVerdict) -> bool:
    return verdict.clause == LAST and verdict.outcome is Outcome.ABSTAIN


def show_model(record: Record) -> Iterator[str]:
    """Lines for one model: every check, each failure's requirement, source and cause, and the number of each result."""
    yield f"{record.selection} ({_versions(record)}), {record.duration_s:.1f} s"
    for verdict in record.verdicts:
        outcome = "FAIL" if verdict.outcome is Outcome.FAIL else verdict.outcome.value
        case = verdict.case.removeprefix(record.selection)
        yield f"  {outcome:<10} {verdict.clause}{case}: {verdict.message or verdict.reason}"
    failed = [verdict for verdict in record.verdicts if verdict.signature]
    for name in dict.fromkeys(verdict.clause for verdict in failed):
        clause = record.clauses[name]
        yield from ("", f"{name} ({clause.level}): {clause.requirement}", f"  source: {clause.source}")
        for cause, finding in dict.fromkeys((one.signature, one.finding) for one in failed if one.clause == name):
            yield f"  cause: {cause}"
            if finding:
                yield f"  finding: {finding}, in `conformance findings torch`"
    yield from ("", count_outcomes(record))


def count_outcomes(record: Record) -> str:
    """The number of each outcome, in one line."""
    counts = Counter(verdict.outcome for verdict in record.verdicts)
    return ", ".join(f"{counts[outcome]} {text}" for outcome, text in _TEXTS.items() if counts[outcome]) or "no results"


def _versions(record: Record) -> str:
    packages = record.variant.packages
    return ", ".join(f"{name} {packages[name]}" for name in PACKAGES if name in packages)


def table(record: Record) -> Iterator[str]:
    """Markdown of a library's classes: results by clause, failures by cause, and what was not trained."""
    models: dict[str, list[TestVerdict]] = {}
    for verdict in record.verdicts:
        models.setdefault(verdict.case.partition("[")[0].partition(":")[2], []).append(verdict)
    reasons: dict[str, list[str]] = {}
    for name, verdicts in [*models.items()]:
        for verdict in filter(_is_untrained, verdicts):
            reasons.setdefault(re.sub(r"\d[\d,.]*", "N", verdict.reason)[:110], []).append(name)
            del models[name]
    late = sum(map(len, reasons.values()))
    yield from (f"# Heads of {LIBRARY} {record.variant.packages.get(LIBRARY, '')}", "")
    trained = f"{len(models)} of {len(models) + late} classes were trained, {late} were not ({_versions(record)})"
    end = "; the run was interrupted" if record.status == "interrupted" else ""
    yield f"{trained}, in {record.duration_s:.0f} s{end}."
    yield from ("", "| clause | pass | fail | not judged |", "|---|---|---|---|")
    causes: dict[tuple[str, str, str], list[str]] = {}
    for clause in record.clauses:
        worst = Counter[str]()
        for name, verdicts in models.items():
            own = [verdict for verdict in verdicts if verdict.clause == clause]
            outcomes = {"fail" if verdict.signature else verdict.outcome.value for verdict in own}
            worst[next((outcome for outcome in ("fail", "pass") if outcome in outcomes), "not judged")] += 1
            for verdict in {one.signature: one for one in own if one.signature}.values():
                causes.setdefault((clause, verdict.signature, verdict.finding), []).append(name)
        yield f"| `{clause}` | {worst['pass']} | {worst['fail']} | {worst['not judged']} |"
    yield from ("", "## Causes", "")
    for (clause, cause, finding), names in sorted(causes.items(), key=lambda group: (group[0][0], -len(group[1]))):
        yield f"- `{clause}`: {cause} ({_classes(names)}{f', {finding}' if finding else ''}): {_some(names)}"
    yield from ("", "## Not trained", "")
    for reason, names in sorted(reasons.items(), key=lambda group: -len(group[1])):
        yield f"- {reason} ({_classes(names)}): {_some(names)}"
    yield from ("", count_outcomes(record))


def _classes(names: Sequence[str]) -> str:
    return "1 class" if len(names) == 1 else f"{len(names)} classes"


def _some(names: Sequence[str]) -> str:
    text = ", ".join(names[:MOST_NAMES])
    return text if len(names) <= MOST_NAMES else f"{text} and {len(names) - MOST_NAMES} more"
