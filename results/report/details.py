"""The tests behind the cells as compact JSON; equal verdicts, checks and long texts are stored once and numbered."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from results.record.reading import CheckResult, Record, RunSetup, TestVerdict
from results.record.values import ClauseText, FindingText
from results.report.matrix import ClauseRow, Matrix
from results.report.text import MESSAGE, NAME, VALUE, clean, format_value, href, link_addresses, number
from results.show.clauses import is_inferred

_CHECKS, _LEAKS, _PAIRS, _REPEATS, _RUNS = 200, 20, 40, 20, 50
_REPRO = 2000


class _Numbers(dict[str, int]):
    """Numbers of distinct JSON texts, by the text."""

    def __missing__(self, text: str) -> int:
        self[text] = len(self)
        return self[text]


def _json(document: object) -> str:
    return json.dumps(document, separators=(",", ":"), allow_nan=False)


def _drop_empty(**fields: Any) -> dict[str, Any]:
    """The fields that say anything."""
    return {name: value for name, value in fields.items() if value not in ("", [], 0)}


def _parts(text: str, limit: int = VALUE) -> list[dict[str, str]]:
    return [_drop_empty(text=part.text, href=part.href) for part in link_addresses(text, limit)]


class Details:
    """Numbered verdicts, checks and derivations, from which the page's script shows a cell.

    The document has `runs`, their names; `rows`, one for each clause, with its texts and, by the index of
    the run, its tests; `verdicts`, `checks` and `derivations`, to which these refer by number. Empty fields are left
    out.
    """

    def __init__(self) -> None:
        self._verdicts, self._checks, self._derivations = _Numbers(), _Numbers(), _Numbers()
        self._known: dict[int, int] = {}

    def pieces(self, matrix: Matrix, records: Sequence[Record]) -> Iterator[str]:
        """The document in pieces of its JSON text."""
        runs = [{"label": run.label, "slug": run.slug, "framework": run.framework} for run in matrix.runs]
        yield f'{{"runs":{_json(runs)},"rows":['
        for row in matrix.rows:
            yield f"{',' if row.number else ''}{_json(self._row(row, records))}"
        numbered = (("verdicts", self._verdicts), ("checks", self._checks), ("derivations", self._derivations))
        yield "]"
        for name, texts in numbered:
            yield f',"{name}":[{",".join(texts)}]'
        yield "}"

    def _row(self, row: ClauseRow, records: Sequence[Record]) -> dict[str, Any]:
        tests, wordings = {}, {}
        for run, (record, verdicts) in enumerate(zip(records, row.verdicts, strict=True)):
            if verdicts:
                tests[run] = [
                    {"verdict": self._verdict(v, record.findings), "seconds": number(round(v.duration_s, 3))}
                    for v in verdicts
                ]
                own = record.clauses[verdicts[0].clause].requirement
                if own != row.text.requirement:
                    wordings[run] = clean(own, VALUE)
        return {"name": row.name, "tests": tests, "wordings": wordings, **_about(row.text)}

    def _verdict(self, verdict: TestVerdict, findings: Mapping[str, FindingText]) -> int:
        said = (verdict.reason, f"{verdict.signature}: {verdict.reason}")
        link = href(verdict.link)
        fields = _drop_empty(
            outcome=verdict.outcome.value,
            test=clean(verdict.case, 2 * NAME),
            signature=clean(verdict.signature),
            reason=_parts(verdict.reason, MESSAGE),
            link=link,
            address="" if link else clean(verdict.link),
            message="" if verdict.message in said else clean(verdict.message, MESSAGE, lines=True),
            repro=clean(verdict.repro, _REPRO),
            seed="" if verdict.seed is None else clean(str(verdict.seed), 40),
            leaks=[clean(leak) for leak in verdict.leaks[:_LEAKS]],
            checks=[self._check(check) for check in verdict.checks[:_CHECKS]],
            left=max(len(verdict.checks) - _CHECKS, 0),
            finding=_finding(verdict.finding, findings),
            elsewhere=clean(verdict.inferred_from) if is_inferred(verdict) else "",
            repeats=[clean(repeat) for repeat in verdict.repeats[:_REPEATS]],
            runs=[_run(run) for run in verdict.runs[:_RUNS]],
        )
        return self._verdicts[_json(fields)]

    def _check(self, check: CheckResult) -> int:
        """The number of a check. Records share equal ones, and live longer than this: an address is of one check."""
        if id(check) not in self._known:
            pairs = list(check.derivation.items())[:_PAIRS]
            derivation = "; ".join(f"{key[:NAME]}: {format_value(value, NAME)}" for key, value in pairs)
            fields = {
                "passed": check.passed,
                "what": clean(check.what, 2 * NAME),
                "got": format_value(check.measured),
                "want": "" if check.expected is None else format_value(check.expected),
                "bound": "" if check.bound is None else format_value(check.bound),
                "derivation": self._derivations[_json(clean(derivation, MESSAGE))],
            }
            self._known[id(check)] = self._checks[_json(fields)]
        return self._known[id(check)]


def _about(text: ClauseText) -> dict[str, Any]:
    return {
        "level": clean(text.level, 40),
        "requirement": clean(text.requirement, VALUE),
        "source": _parts(text.source),
        "history": [_parts(entry) for entry in text.history[:20]],
    }


def _finding(name: str, findings: Mapping[str, FindingText]) -> str:
    """A finding with its class and consequence, or "" without one."""
    text = findings.get(name)
    return clean(f"{name}: {text.kind}, {text.consequence.replace('-', ' ')}", VALUE) if text else ""


def _run(run: RunSetup) -> str:
    """Fixture and recipe of a run in one line."""
    return f"{clean(run.fixture)} {format_value(run.recipe, VALUE)}" if run.recipe else clean(run.fixture)
