"""Verdicts in pytest's own reports, and the end of a run of a user's own adapter or loop.

The end has the clauses that fail, what they demand and who says so, and counts.
"""

import re
import textwrap
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence

import pytest

from conformance.checks.outcome import Judgement
from conformance.runner import trained_runs
from conformance.runner.isolation import clipped
from conformance.spec.clauses import Clause, load_clauses
from conformance.test_ids.inventory import SUITES
from frameworks.contract import NOT_OFFERED
from results.record.model import RunSetup, TestVerdict
from results.record.outcomes import UNJUDGED, Outcome

_LONGEST = 300
_MOST_RUNS = 3
_WIDTH = 110
_DERIVATION = re.compile(r" \(from \{[^{}]*\}\)")
_NOT_OFFERED = f"{NOT_OFFERED.reason} (techniques that it has no place for)"


def junit_properties(judgement: Judgement, clause: str, command: str) -> list[tuple[str, object]]:
    """Properties of the test in the report of pytest's --junitxml; empty ones are omitted."""
    texts = {"clause": clause, "outcome": judgement.outcome.value, "signature": judgement.signature}
    texts |= {"link": judgement.link, "finding": judgement.finding, "inferred_from": judgement.inferred_from}
    texts |= {"repro": command}
    return [(name, text) for name, text in texts.items() if text]


def described(judgement: Judgement, clause: str, command: str, runs: Sequence[RunSetup]) -> str:
    """A failure in a few lines: clause, message, training runs, and the command that repeats it."""
    which = f"the last of {len(runs)}: " if len(runs) > _MOST_RUNS else ""
    lines = "".join(f"run: {which}{trained_runs.described(run)}\n" for run in (runs[-1:] if which else runs))
    return f"{clause} [{judgement.outcome}] {judgement.message}\n{lines}repeat: {command}"


def show(report: pytest.TestReport, item: pytest.Item, judgement: Judgement, description: str, trace: str) -> None:
    """Sets pytest's report to the judgement, even if the test called `pytest.xfail`.

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
        report.outcome, report.longrepr = "failed", clipped(text)


def closing_lines(verdicts: Iterable[TestVerdict], framework: str) -> list[str]:
    """What failed, by clause, and one paragraph with how many tests passed or do not apply, and why.

    Args:
        framework: the name of a framework whose documentation to quote, where a clause has several sources.
    """
    judged = list(verdicts)
    bad: dict[str, list[TestVerdict]] = defaultdict(list)
    for each in judged:
        if each.outcome.bad:
            bad[each.clause].append(each)
    totals = Counter(each.clause for each in judged if each.outcome not in UNJUDGED)
    groups: dict[tuple[str, str], list[TestVerdict]] = defaultdict(list)
    for failed in sorted(bad.values(), key=len, reverse=True):
        plainest = min(failed, key=lambda each: (each.outcome is not Outcome.FAIL, len(each.message)))
        groups[plainest.signature, re.sub(r"\d+", "N", plainest.message.partition(" got ")[0])].append(plainest)
    lines = [f"clauses that fail: {len(bad) or 'none'}"]
    for plainest, *others in groups.values():
        clause = plainest.clause
        count = f"{len(bad[clause])} of {totals[clause]} tests fail"
        lines += ["", f"{clause}: {count}", *_rule(load_clauses().get(clause), framework)]
        lines += _wrapped(f"{plainest.outcome}: {_shortened(plainest.message)}")
        if others:
            also = ", ".join(f"{each.clause} ({len(bad[each.clause])} of {totals[each.clause]})" for each in others)
            lines += _wrapped(f"in the same way: {also}")
        lines.append(f"  repeat: {plainest.repro.replace('conformance/suites/', f'{SUITES}/')}")
    return [*lines, "", *textwrap.wrap(_counts(judged), _WIDTH)]


def _rule(clause: Clause | None, framework: str) -> Iterator[str]:
    if clause is not None:
        yield from _wrapped(f"rule: {' '.join(clause.requirement.split())}")
        yield f"  source: {source_for(clause, framework)}"


def source_for(clause: Clause, framework: str) -> str:
    """The first source of a clause that names a framework, or else its first one."""
    sources = [" ".join(each.split()) for each in re.split(r";\s", clause.source)]
    return next((each for each in sources if framework in each), sources[0])


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, initial_indent="  ", subsequent_indent="    ", break_long_words=False)


def _shortened(message: str) -> str:
    text = _DERIVATION.sub("", " ".join(message.split()))
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def _counts(judged: list[TestVerdict]) -> str:
    passed = sum(each.outcome is Outcome.PASS for each in judged)
    known = [each for each in judged if each.outcome is Outcome.KNOWN]
    parts = [f"{passed} tests pass"]
    if known:
        parts.append(f"{len(known)} fail as the framework itself is known to")
    reasons = Counter(_reason(each) for each in judged if each.outcome in UNJUDGED)
    if reasons:
        listed = "; ".join(f"{count}: {reason}" for reason, count in reasons.most_common())
        parts.append(f"{reasons.total()} do not apply ({listed})")
    return ", ".join(parts) + "."


def _reason(verdict: TestVerdict) -> str:
    reason = " ".join((verdict.reason or verdict.message).split())
    return _NOT_OFFERED if reason == NOT_OFFERED.reason else reason or str(verdict.outcome)
