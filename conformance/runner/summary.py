"""The end of a run of a user's own adapter or loop: clauses that fail, what they demand and who says so, and counts."""

from __future__ import annotations

import re
import textwrap
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator

from conformance.spec.clauses import Clause, load_clauses
from conformance.test_ids.inventory import SUITES
from frameworks.contract import NOT_OFFERED
from results.record.model import TestVerdict
from results.record.outcomes import UNJUDGED, Outcome

_LONGEST = 300
_WIDTH = 110
_DERIVATION = re.compile(r" \(from \{[^{}]*\}\)")
_NOT_OFFERED = f"{NOT_OFFERED.reason} (techniques that it has no place for)"


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
    lines = [f"clauses that fail: {len(bad) or 'none'}"]
    for clause, failed in sorted(bad.items(), key=lambda item: -len(item[1])):
        total = sum(each.clause == clause and each.outcome not in UNJUDGED for each in judged)
        lines += ["", f"{clause}: {len(failed)} of {total} tests fail", *_rule(load_clauses().get(clause), framework)]
        plainest = min(failed, key=lambda each: (each.outcome is not Outcome.FAIL, len(each.message)))
        lines += _wrapped(f"{plainest.outcome}: {_shortened(plainest.message)}")
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
