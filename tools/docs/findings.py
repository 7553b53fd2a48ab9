"""The findings behind adapters' expectations, and the adapters' workarounds."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, product
from pathlib import Path

from conformance.known_failures.reading import Known, load_known
from conformance.spec.findings import Finding, Workaround
from results.record.values import Consequence, FindingKind
from results.show.clauses import HEADINGS, findings, is_url
from tools.docs.generate import table
from tools.docs.summaries import by_framework

ROOT = Path(__file__).parents[2]

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


def blocks() -> dict[str, str]:
    """The generated parts of the page findings by name."""
    known = load_known()
    return {
        "finding counts": f"{_counts(known.findings)}\n\n{_check_counts(known)}",
        "silent defects": "\n".join(_silent(known)).rstrip(),
    }


def page() -> str:
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
