"""Summaries of the committed records: clauses that hold and fail, findings, and changes between releases.

Also README's example: a clause, its test, and what the test prints for a copy of the reference with one bug.
"""

import ast
import os
import re
import subprocess
import sys
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import chain, product, takewhile
from pathlib import Path

from packaging.version import Version

from conformance.cli.start import BROKEN_CLAUSE, TWIN
from conformance.known_failures.reading import Known, load_known
from conformance.runner.baselines import BASELINES
from conformance.spec.clauses import Finding, Workaround, load_clauses
from conformance.test_ids import SUITES
from results.compare.comparison import Comparison, Comparisons, compare
from results.history.changes import LineHistory, by_interval, find_explanations, interval, markdown, statement
from results.history.changes import load as load_history
from results.record.folders import list_records
from results.record.model import REFUSED, Consequence, FindingKind, FindingText, Outcome
from results.record.reading import Record, TestVerdict, load
from results.show.clauses import (
    FAILURE_OUTCOMES,
    GRAVITY,
    HEADINGS,
    by_clause,
    findings,
    is_url,
    number,
    outcome,
    source,
    total,
    words,
)
from results.show.differences import to_text
from tools.docs.blocks import read_committed_records
from tools.docs.generate import table

ROOT = Path(__file__).parents[2]

DEFAULT_MODES: Mapping[str, tuple[str, ...]] = {
    "torch": ("eager",),
    "tf": ("graph",),
    "paddle": ("dygraph", "static"),
    "jax": ("jit",),
}
"""The frameworks, and the modes of the tables: those of a user who sets nothing."""

TECHNIQUES: Mapping[str, str] = {
    "accumulation": "gradient accumulation",
    "autocast": "mixed precision (autocast)",
    "scaling": "loss scaling",
    "master": "float32 master weights",
    "optimizer": "optimizers and schedules",
    "recompute": "recomputation (checkpointing)",
    "resume": "saving and resuming",
    "sharding": "data parallel and sharded training",
    "offload": "offload to host or disk",
    "formats": "8-bit formats, float8 training",
    "quantization": "quantization, 8-bit Adam",
    "adapters": "low-rank adapters (LoRA)",
    "composition": "several techniques at once",
    "laws": "generated programs",
    "cost": "memory and time",
}
"""README's rows: names of the families of clauses for a new reader."""

_WIDTH = 118
"""Width of the example in characters."""
_CODE = "```"
_SILENT = (FindingKind.DEFECT, Consequence.SILENT_CORRUPTION)
_LIBRARY = re.compile(r"([a-z]+)\.(\d+(?:\.\d+)*)")


@cache
def by_framework() -> Mapping[str, Sequence[Record]]:
    """Each framework's records of its default modes on a CPU."""
    return {
        name: [
            record
            for mode in modes
            for record in read_committed_records()
            if (record.series.framework, record.series.mode, record.series.device) == (name, mode, "cpu")
        ]
        for name, modes in DEFAULT_MODES.items()
    }


def blocks() -> Mapping[str, str]:
    """README's table of techniques, and of the page results the outcomes of every record and the clauses that fail."""
    return {"techniques": _techniques(), "outcomes": _outcomes(), "failing clauses": _failing()}


def _techniques() -> str:
    cells = {name: _clauses(name) for name in DEFAULT_MODES}
    header = (
        "technique",
        *(f"{name} {_public(records[0])}" for name, records in by_framework().items()),
        "in all four",
    )
    rows = []
    for family, technique in TECHNIQUES.items():
        of_family = [
            {clause: tests for clause, tests in clauses.items() if clause.startswith(f"{family}.")}
            for clauses in cells.values()
        ]
        everywhere = set.intersection(*(_holding(clauses) for clauses in of_family))
        rows.append((technique, *map(_share, cells, of_family), str(len(everywhere))))
    failing = sorted(set.intersection(*(_find_broken(clauses) for clauses in cells.values())))
    return f"{table(header, rows)}\n\nBroken in all four: {', '.join(f'`{clause}`' for clause in failing) or 'none'}."


def _share(framework: str, clauses: Mapping[str, Sequence[TestVerdict]]) -> str:
    """The number of judged clauses that hold for a framework, and the number of the others that corrupt silently."""
    holding, failing = _holding(clauses), _find_broken(clauses)
    if not holding | failing:
        return "unsupported"
    worst = [_worst(framework, clauses[clause]) for clause in failing]
    silent = sum(text is not None and (text.kind, text.consequence) == _SILENT for text in worst)
    share = f"{len(holding)}/{len(holding | failing)}"
    return f"{share}, **{silent}\u00a0silent**" if silent else share


def _outcomes() -> str:
    default_records = list(chain.from_iterable(by_framework().values()))
    records = [*default_records, *(record for record in read_committed_records() if record not in default_records)]
    counts = [total(record) for record in records]
    columns = [kind for kind in reversed(GRAVITY) if any(count.clauses[kind] for count in counts)]
    rows = (
        (
            f"{record.series.framework} {_describe_version(record)}",
            f"`{record.series.mode}`" if record.series.device == "cpu" else f"`{record.series.mode}`, GPU",
            *(str(count.clauses[kind] or "") for kind in columns),
            str(count.tests.total()),
            record.finished[:10].replace("-", "\u2011"),
        )
        for record, count in zip(records, counts, strict=True)
    )
    return table(("version", "mode", *columns, "tests", "judged on"), rows)


def _failing() -> str:
    """The clauses that fail somewhere, those of the worst consequence and of most frameworks first."""
    cells = {name: _clauses(name) for name in DEFAULT_MODES}
    worst: dict[str, list[int]] = {}
    for name, clauses in cells.items():
        for clause in _find_broken(clauses):
            text = _worst(name, clauses[clause])
            worst.setdefault(clause, []).append(len(Consequence) if text is None else text.consequence.rank)
    order = sorted(worst, key=lambda clause: (min(worst[clause]), -len(worst[clause]), clause))
    rows = (
        (f"`{clause}`", *(_cell(name, clauses.get(clause, ())) for name, clauses in cells.items())) for clause in order
    )
    return table(("clause", *cells), rows)


def _cell(framework: str, verdicts: Sequence[TestVerdict]) -> str:
    if not verdicts:
        return ""
    if (kind := outcome(verdicts)) not in FAILURE_OUTCOMES:
        return "–" if kind in REFUSED else "holds" if kind is Outcome.PASS else str(kind)
    judged = Counter(verdict.outcome in FAILURE_OUTCOMES for verdict in verdicts if verdict.outcome not in REFUSED)
    text = _worst(framework, verdicts)
    documented = "\\*" if text is not None and text.kind is FindingKind.DOCUMENTED else ""
    result = str(kind) if text is None else text.consequence.removeprefix("silent-")
    return f"{result}{documented} {judged[True]}/{judged.total()}"


def _clauses(framework: str) -> dict[str, list[TestVerdict]]:
    """A framework's verdicts by clause, over all of its default modes."""
    result: dict[str, list[TestVerdict]] = {}
    for record in by_framework()[framework]:
        for clause, verdicts in by_clause(record).items():
            result.setdefault(clause, []).extend(verdicts)
    return result


def _holding(clauses: Mapping[str, Sequence[TestVerdict]]) -> set[str]:
    return {clause for clause, verdicts in clauses.items() if outcome(verdicts) is Outcome.PASS}


def _find_broken(clauses: Mapping[str, Sequence[TestVerdict]]) -> set[str]:
    return {clause for clause, verdicts in clauses.items() if outcome(verdicts) in FAILURE_OUTCOMES}


def _worst(framework: str, verdicts: Sequence[TestVerdict]) -> FindingText | None:
    """The worst finding by which a clause fails, a defect before others of its consequence; None if there is none."""
    texts = {name: text for record in by_framework()[framework] for name, text in record.findings.items()}
    findings = (texts[verdict.finding] for verdict in verdicts if verdict.finding in texts)
    return min(findings, key=lambda text: (text.consequence.rank, text.kind is not FindingKind.DEFECT), default=None)


def _public(record: Record) -> str:
    return Version(record.variant.framework_version).public


def _describe_version(record: Record) -> str:
    """The version with that of the first library in its local label."""
    library = _LIBRARY.search(Version(record.variant.framework_version).local or "")
    return f"{_public(record)}, {library[1]} {library[2]}" if library else _public(record)


def failure() -> Mapping[str, str]:
    """The block "failure": the requirement, the first test of the clause, a command, and the failure that it prints.

    Raises:
        ValueError: no test of the clause fails.
    """
    path, name, source = _first_test()
    case = f"{path.relative_to(ROOT)}::{name}"
    command = ["pytest", f"--framework={TWIN}", case]
    requirement = " ".join(load_clauses()[BROKEN_CLAUSE].requirement.split())
    parts = (
        f"`{BROKEN_CLAUSE}`: {requirement}",
        f"{_CODE}python\n{source}\n{_CODE}",
        "`apply_gradients` back-propagates given gradients through the framework's own loss scaler; `spike_gradients`\n"
        "makes one of them infinite or NaN. On a copy of the reference that applies the update instead:",
        f"{_CODE}text\n$ python -m {' '.join(command)}\n{_failure(command)}\n{_CODE}",
    )
    return {"failure": "\n\n".join(parts)}


def _first_test() -> tuple[Path, str, str]:
    for path in sorted(SUITES.rglob("test_scaling_skip*.py")):
        text = path.read_text("utf-8")
        for node in ast.parse(text).body:
            if isinstance(node, ast.FunctionDef) and any(
                ast.unparse(mark) == f"clause({BROKEN_CLAUSE!r})" for mark in node.decorator_list
            ):
                first = node.decorator_list[0].lineno
                return path, node.name, "\n".join(text.splitlines()[first - 1 : node.end_lineno])
    raise ValueError(f"{BROKEN_CLAUSE} has no test")


def _failure(command: list[str]) -> str:
    """The wrapped output of pytest for the first failing case, reproducible by float64 arithmetic on exact fixtures."""
    variables = {name: text for name, text in os.environ.items() if not name.startswith(("PYTEST_", "CONFORMANCE_"))}
    argv = [sys.executable, "-m", *command, "-q", "-x", "--device=cpu", "--seed=0", "-p", "no:randomly"]
    variables["COLUMNS"] = "80"
    completed = subprocess.run(argv, cwd=ROOT, env=variables, capture_output=True, text=True, check=False)
    lines = completed.stdout.splitlines()
    start = next((i for i, line in enumerate(lines) if line.startswith(f"{BROKEN_CLAUSE} [fail]")), None)
    if completed.returncode != 1 or start is None:
        raise ValueError(f"{' '.join(command)} did not fail: {lines[-1:] or completed.stderr[-200:]}")
    wrapper = textwrap.TextWrapper(_WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
    section = takewhile(lambda line: not line.startswith("=="), lines[start:])
    return "\n".join(chain.from_iterable(map(wrapper.wrap, section)))


_MEANS: Mapping[FindingKind, str] = {
    FindingKind.DEFECT: "They contradict the framework's documentation, or mathematics. Each has a program that "
    "imports the framework alone, prints what is to be expected and what is seen, and ends with 1 while the defect is "
    "there.",
    FindingKind.DOCUMENTED: "The framework says so, or means it so; a clause asks for more.",
    FindingKind.NUMERICS: "The last bits of a compiler or a kernel.",
    FindingKind.LIMITATION: "The framework refuses clearly what a clause asks for.",
}

_NO_CLAUSE = "No clause fails: generated programs with it are left out."

_WORKAROUNDS = (
    "Where an adapter does something else than the documentation asks a user to do: because the documented call fails "
    '("call"), because the framework is silent ("check"), or because its own call forgets state ("state"). The '
    "documented call is judged next to each, by the clause `composition.plain-way`."
)


def finding_blocks() -> dict[str, str]:
    """The generated parts of the page findings by name."""
    known = load_known()
    return {
        "finding counts": f"{_counts(known.findings)}\n\n{_check_counts(known)}",
        "silent defects": "\n".join(_silent(known)).rstrip(),
    }


def causes() -> str:
    """Every finding with its cause, and every workaround, as one Markdown page."""
    known = load_known()
    workarounds = ("## Workarounds", "", _WORKAROUNDS, "", _workarounds(known.workarounds), "")
    return "\n".join(("# Causes", "", *_classes(known), *workarounds))


def _silent(known: Known) -> Iterator[str]:
    """The silent defects that make a clause fail in default modes, the worst consequence first."""
    clauses: dict[tuple[str, str], set[str]] = {}
    for framework, records in by_framework().items():
        for listed in chain.from_iterable(map(findings, records)):
            clauses.setdefault((framework, listed.id), set()).update(listed.cases)
    defects = [finding for finding in known.findings if finding.text.kind is FindingKind.DEFECT]
    for consequence in (Consequence.SILENT_CORRUPTION, Consequence.SILENT_LOSS, Consequence.LEAKED_SETTING):
        of_consequence = [finding for finding in defects if finding.text.consequence is consequence]
        failing = [finding for finding in of_consequence if (finding.framework, finding.id) in clauses]
        yield f"### {consequence.replace('-', ' ').capitalize()}: {len(failing)} of {len(of_consequence)}"
        yield ""
        for finding in sorted(failing, key=lambda f: (f.framework, f.id)):
            first, *others = sorted(clauses[finding.framework, finding.id])
            more = f" and {len(others)} more" if others else ""
            yield f"- {finding.framework} {_label(finding)}: `{first}`{more}"
        yield ""


def _label(finding: Finding) -> str:
    """The id, with a link to the program that shows the finding."""
    if finding.program is None:
        return f"`{finding.id}`"
    return f"[{finding.id}](../{Path(str(finding.program)).relative_to(ROOT).as_posix()})"


def _counts(findings: Sequence[Finding]) -> str:
    frameworks = sorted({finding.framework for finding in findings})
    counts = Counter((f.text.kind, f.text.consequence, f.framework) for f in findings)
    rows = [
        (kind, consequence, *(str(counts[kind, consequence, name] or "–") for name in frameworks))
        for kind, consequence in product(FindingKind, Consequence)
        if any(counts[kind, consequence, name] for name in frameworks)
    ]
    sums = Counter(f.framework for f in findings)
    total_row = f"| all | | {' | '.join(str(sums[name]) for name in frameworks)} |"
    return f"{table(('class', 'consequence', *frameworks), rows, right=len(frameworks))}\n{total_row}"


def _check_counts(known: Known) -> str:
    """For each framework: the number of findings that make a clause fail, and of those only their programs show."""
    frameworks = sorted({finding.framework for finding in known.findings})
    failing = {(entry.framework, entry.finding.id) for entry in known.expectations}
    counts = Counter((finding.framework, (finding.framework, finding.id) in failing) for finding in known.findings)
    ways = ((True, "runs: a clause fails"), (False, "`python -m tools programs`: its program shows it"))
    rows = [(label, *(str(counts[name, fails]) for name in frameworks)) for fails, label in ways]
    return table(("checked by", *frameworks), rows, right=len(frameworks))


def _classes(known: Known) -> Iterator[str]:
    for kind in FindingKind:
        of_kind = sorted((f for f in known.findings if f.text.kind is kind), key=lambda f: (f.framework, f.id))
        if of_kind:
            yield from (f"## {HEADINGS[kind]}", "", _MEANS[kind], "")
        for consequence in Consequence:
            if items := [_item(finding, known) for finding in of_kind if finding.text.consequence is consequence]:
                yield from (f"### {consequence.replace('-', ' ').capitalize()}", "", *items, "")


def _item(finding: Finding, known: Known) -> str:
    """A finding in one line: framework, program, reason, the clauses that fail, versions, modes and link."""
    failing = [entry for entry in known.expectations if entry.finding == finding]
    excluded = [entry for entry in known.exclusions if entry.finding == finding]
    clauses = ", ".join(f"`{clause}`" for clause in sorted({entry.clause for entry in failing}))
    versions = {entry.versions for entry in failing or excluded if entry.versions}
    modes = {entry.series.mode for entry in failing} or {mode for entry in excluded for mode in entry.mode.split(", ")}
    every = {series.mode for series in known.judged[finding.framework]}
    where = sorted(versions) + sorted(modes - {"*"} if modes != every else ())
    link = f"[{finding.text.link_shows}]({finding.text.link})" if is_url(finding.text.link) else finding.text.link
    details = "; ".join(filter(None, (", ".join(where), f"link: {link}")))
    return f"- **{finding.framework}** {_label(finding)}: {finding.text.reason} {clauses or _NO_CLAUSE} ({details})"


def _workarounds(workarounds: Sequence[Workaround]) -> str:
    rows = []
    for workaround in sorted(workarounds, key=lambda w: (w.finding.framework, w.kind, w.finding.id)):
        framework = workaround.finding.framework
        module = f"[{workaround.module}](../frameworks/{framework}/{workaround.module})"
        adapter = f"{framework} ({workaround.mode})" if workaround.mode else framework
        rows.append((adapter, workaround.kind, workaround.does, workaround.finding.text.reason, module))
    return table(("adapter", "kind", "what it does instead", "what a user meets otherwise", "module"), rows)


SWEEPS = BASELINES.parent / "sweeps"
OLD = BASELINES.parent / "upgrades"
"""A record of an older version, which the example compares with the baseline of its series."""

LISTED = 4
"""Number of clauses, and of a framework's changes, that a row names."""


def upgrade_blocks() -> Mapping[str, str]:
    """A row for each two versions with a change between them, and for each history that clauses have."""
    return {
        "upgrades": table(("package", "versions", "clauses", "for the worse", "what changed"), _upgrades()),
        "change points": "\n".join(_change_points()).strip(),
    }


def changes() -> str:
    """Every change point, and what `conformance compare` prints, as one Markdown page."""
    printed = to_text(Comparisons((example(),))).strip()
    return f"# Changes\n\n{markdown(histories())}\n## A comparison of two records\n\n```text\n{printed}\n```\n"


def histories() -> tuple[LineHistory, ...]:
    """The lines of every committed history."""
    return tuple(history for path in sorted(SWEEPS.glob("*.json")) for history in load_history(path))


def example() -> Comparison:
    """The older record and its baseline."""
    old = load(list_records(OLD)[0])
    return compare(old, next(new for new in map(load, list_records(BASELINES)) if new.series.key == old.series.key))


def _upgrades() -> Iterator[tuple[str, ...]]:
    for history in histories():
        for points in by_interval(history.points):
            worse = [point.clause for point in points if point.worse]
            why = dict.fromkeys(reason for point in points for reason in find_explanations(history.line, point))
            yield (
                _title(history),
                interval(history.line, points[0]),
                str(len(points)),
                _join_texts([f"`{clause}`" for clause in worse]) or "–",
                _join_texts([f"{words(text)}{source(link)}" for text, link in why], "; ") or "*unexplained*",
            )


def _change_points() -> Iterator[str]:
    """A table for each line of versions, with a row for the clauses of one history."""
    for history in histories():
        rows: dict[str, list[str]] = {}
        for name, clause in history.clauses.items():
            if clause.points:
                rows.setdefault(statement(history.line, clause), []).append(f"`{name}`")
        judged = [column.version for column in history.line.columns if column.judged]
        none = "" if rows else " No clause changed."
        yield f"### {_title(history)}\n\n{number(len(judged), 'judged version')}: {', '.join(judged)}.{none}\n"
        if rows:
            yield table(("history", "clauses"), ((words(text), ", ".join(names)) for text, names in rows.items()))
            yield ""


def _title(history: LineHistory) -> str:
    """The name of the package, and the mode."""
    name, mode = words(history.line.name).split(", ")[:2]
    return f"{name}, `{mode}`"


def _join_texts(texts: Sequence[str], separator: str = ", ") -> str:
    more = [f"and {len(texts) - LISTED} more"] if len(texts) > LISTED else []
    return separator.join((*texts[:LISTED], *more))
