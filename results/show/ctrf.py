"""Records as CTRF, the Common Test Report Format of https://ctrf.io, for tools that read test results of any suite.

The schema next to this module, `ctrf.schema.json`, is the published one: npm package `ctrf` 0.3.0, file
`src/ctrf-schema-0.0.json`, under the licence in `ctrf.LICENSE`.

CTRF knows five statuses, fewer than there are outcomes, so every test keeps its outcome as `rawStatus` and as a tag:

    passed    pass
    failed    fail, misdeclared, fixed, error, timeout, crash: whatever somebody has to act on
    skipped   unsupported, not offered
    other     known, unstable, abstain: the clause failed as expected, or there is no verdict
    pending   none
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime
from functools import cache
from importlib.resources import files
from typing import Any

import jsonschema

from results.record.outcomes import REFUSED, Outcome
from results.record.reading import Record, TestVerdict
from results.record.values import plain, to_text
from results.show.marks import escaped, title
from results.show.table import troubles

SPEC_VERSION = "0.0.0"
_LONGEST_MS = 2.0**53
_OF_A_RUN = ("series", "variant", "started", "finished", "status", "seed", "selection", "notes")
STATUSES = ("passed", "failed", "skipped", "pending", "other")
STATUS = {outcome: "failed" if outcome.bad else "skipped" if outcome in REFUSED else "other" for outcome in Outcome} | {
    Outcome.PASS: "passed"
}


def dumps(records: Sequence[Record]) -> bytes:
    """One CTRF document of all the records: the same bytes for equal records.

    Raises:
        ValueError: there is no record, or the published schema refuses what came of them.
    """
    result = document(records)
    validate(result)
    return escaped(to_text(result)).encode("utf-8")


def document(records: Sequence[Record]) -> dict[str, Any]:
    """The CTRF document; times are in milliseconds, as CTRF has them.

    Raises:
        ValueError: there is no record.
    """
    if not records:
        raise ValueError("no record to export")
    outcomes = Counter(verdict.outcome for record in records for verdict in record.verdicts)
    statuses = Counter(dict.fromkeys(STATUSES, 0))
    for outcome, count in outcomes.items():
        statuses[STATUS[outcome]] += count
    start = min(_epoch(record.started) for record in records)
    stop = max(_epoch(record.finished) for record in records)
    versions = sorted({record.suite.version for record in records})
    return {
        "reportFormat": "CTRF",
        "specVersion": SPEC_VERSION,
        "timestamp": max(records, key=lambda record: _epoch(record.finished)).finished,
        "generatedBy": "conformance export",
        "results": {
            "tool": {"name": "training-conformance", "version": ", ".join(versions)},
            "summary": {
                "tests": outcomes.total(),
                **statuses,
                "suites": len({tuple(_suite(record, v)) for record in records for v in record.verdicts}),
                "start": start,
                "stop": max(start, stop),
                "duration": _milliseconds(sum(record.duration_s for record in records)),
                "extra": {"outcomes": {outcome.value: outcomes[outcome] for outcome in Outcome}},
            },
            "tests": [_test(record, verdict) for record in records for verdict in record.verdicts],
            "environment": _environment(records),
        },
    }


def validate(document: object) -> None:
    """Holds a document against the published schema.

    Raises:
        ValueError: where it breaks it, and how, in one sentence.
    """
    error = next(_validator().iter_errors(document), None)
    if error is not None:
        raise ValueError(f"{error.json_path[:120]}: {error.message[:200]}")


@cache
def _validator() -> jsonschema.Draft7Validator:
    schema = json.loads(files("results.show").joinpath("ctrf.schema.json").read_text("utf-8"))
    return jsonschema.Draft7Validator(schema, format_checker=jsonschema.Draft7Validator.FORMAT_CHECKER)


def _epoch(date: str) -> int:
    return round(1000 * datetime.fromisoformat(date).timestamp())


def _milliseconds(seconds: float) -> int:
    return round(min(1000 * seconds, _LONGEST_MS))


def _environment(records: Sequence[Record]) -> dict[str, Any]:
    """Frameworks and versions in CTRF's own fields, each run by itself in `extra`."""
    names = sorted({record.series.framework for record in records})
    versions = sorted({record.variant.framework_version for record in records})
    runs = [{name: getattr(record, name) for name in _OF_A_RUN} for record in records]
    return {
        "appName": ", ".join(names),
        "appVersion": ", ".join(versions),
        "healthy": not any(map(troubles, records)),
        "extra": {"runs": plain(runs)},
    }


def _suite(record: Record, verdict: TestVerdict) -> list[str]:
    return [" ".join(title(record)), record.clauses[verdict.clause].family, verdict.clause]


def _test(record: Record, verdict: TestVerdict) -> dict[str, Any]:
    series, text = record.series, record.clauses[verdict.clause]
    result: dict[str, Any] = {
        "testId": "/".join((series.framework, series.device_kind, series.mode, verdict.test)),
        "name": verdict.case,
        "status": STATUS[verdict.outcome],
        "rawStatus": verdict.outcome.value,
        "duration": _milliseconds(verdict.duration_s),
        "suite": _suite(record, verdict),
        "type": "conformance",
        "device": series.device_kind or series.device,
        "tags": [verdict.outcome.value, *filter(None, (text.level, text.family))],
        "labels": dict(_labels(record, verdict)),
        "extra": {
            "requirement": text.requirement,
            "source": text.source,
            "reason": verdict.reason,
            "repro": verdict.repro,
            "checks": plain(verdict.checks),
            "leaks": list(verdict.leaks),
            "repeats": list(verdict.repeats),
        },
    }
    if message := verdict.message or verdict.reason:
        result["message"] = message
    return result


def _labels(record: Record, verdict: TestVerdict) -> Iterator[tuple[str, str | int]]:
    """What a reader may want to filter tests by, without what is empty."""
    series, finding = record.series, record.findings.get(verdict.finding)
    yield from (
        (key, value)
        for key, value in (
            ("clause", verdict.clause),
            ("level", record.clauses[verdict.clause].level),
            ("framework", series.framework),
            ("version", record.variant.framework_version),
            ("device", series.device),
            ("mode", series.mode),
            ("signature", verdict.signature),
            ("link", verdict.link),
            ("finding", verdict.finding),
            ("class", finding.kind.value if finding else ""),
            ("consequence", finding.consequence.value if finding else ""),
            ("revision", record.clauses[verdict.clause].revision),
            ("inferred_from", verdict.inferred_from),
        )
        if value
    )
    if verdict.seed is not None:
        yield "seed", verdict.seed
