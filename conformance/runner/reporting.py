"""What a run prints: a failed test with the command that repeats it, and at the end the clauses that fail.

Each of these clauses stands with its requirement and a source. Counts of the tests that passed or do not apply follow.
"""

import re
import shlex
import textwrap
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pytest

from conformance.checks.outcome import Judgement
from conformance.runner.isolation import clip_text
from conformance.spec.clauses import Clause, load_clauses
from conformance.test_ids.inventory import SUITES
from frameworks.contract import NOT_OFFERED, Framework
from results.record.folders import INSTALLED
from results.record.model import UNJUDGED, Outcome, RunSetup, TestVerdict

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
