"""The blocks of the page findings: the findings behind adapters' expectations, and the adapters' workarounds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from conformance.known_failures.entries import Known
from conformance.spec.findings import Finding, Workaround
from results.record.texts import Consequence, FindingKind
from results.show.findings import HEADINGS
from results.show.marks import is_url

ROOT = Path(__file__).parents[2]

_MEANS: Mapping[FindingKind, str] = {
    FindingKind.DEFECT: "They contradict the framework's documentation, or mathematics. Each has a program that "
    "imports the framework alone, prints what is to be expected and what is seen, and ends with 1 while the defect is "
    "there.",
    FindingKind.DOCUMENTED: "The framework says so, or means it so; a clause asks for more.",
    FindingKind.NUMERICS: "The last bits of a compiler or a kernel.",
    FindingKind.LIMITATION: "The framework refuses clearly what a clause asks for.",
}

_NO_CLAUSE = "No clause fails: [generated programs](laws.md#what-is-left-out) with it are left out."


def blocks(known: Known) -> dict[str, str]:
    """The page's generated parts by name."""
    return {
        "finding counts": "\n".join((*_counts(known.findings), "", *_check_counts(known))),
        "findings": "\n".join(_classes(known)).rstrip(),
        "workarounds": "\n".join(_workarounds(known.workarounds)),
    }


def _counts(findings: Sequence[Finding]) -> Iterator[str]:
    frameworks = sorted({finding.framework for finding in findings})
    yield f"| class | consequence | {' | '.join(frameworks)} |"
    yield "|---|---" + "|--:" * len(frameworks) + "|"
    for kind in FindingKind:
        for consequence in Consequence:
            alike = [f for f in findings if (f.text.kind, f.text.consequence) == (kind, consequence)]
            if alike:
                counts = (sum(f.framework == name for f in alike) or "–" for name in frameworks)
                yield f"| {kind} | {consequence} | {' | '.join(map(str, counts))} |"
    yield f"| all | | {' | '.join(str(sum(f.framework == name for f in findings)) for name in frameworks)} |"


def _check_counts(known: Known) -> Iterator[str]:
    """How many findings of each framework make a clause fail, and how many only their programs show."""
    frameworks = sorted({finding.framework for finding in known.findings})
    failing = {(entry.framework, entry.finding.id) for entry in known.expectations}
    counts = Counter((each.framework, (each.framework, each.id) in failing) for each in known.findings)
    yield f"| checked by | {' | '.join(frameworks)} |"
    yield "|---" + "|--:" * len(frameworks) + "|"
    for fails, words in ((True, "runs: a clause fails"), (False, "`python -m tools programs`: its program shows it")):
        yield f"| {words} | {' | '.join(str(counts[name, fails]) for name in frameworks)} |"


def _classes(known: Known) -> Iterator[str]:
    for kind in FindingKind:
        alike = [finding for finding in known.findings if finding.text.kind is kind]
        if alike:
            yield from (f"## {HEADINGS[kind]}", "", _MEANS[kind], "")
            yield from _consequences(alike, known)


def _consequences(findings: Sequence[Finding], known: Known) -> Iterator[str]:
    for consequence in Consequence:
        alike = [finding for finding in findings if finding.text.consequence is consequence]
        if alike:
            yield from (f"### {consequence.replace('-', ' ').capitalize()}", "")
            for finding in sorted(alike, key=lambda each: (each.framework, each.id)):
                yield item(finding, known)
            yield ""


def item(finding: Finding, known: Known) -> str:
    """A finding in one line: framework, program, reason, the clauses that fail, versions, modes and link."""
    failing = [entry for entry in known.expectations if entry.finding == finding]
    left_out = [entry for entry in known.exclusions if entry.finding == finding]
    name = f"`{finding.id}`"
    label = name
    if finding.program is not None:
        label = f"[{name}](../{Path(str(finding.program)).relative_to(ROOT).as_posix()})"
    clauses = ", ".join(f"`{clause}`" for clause in sorted({entry.clause for entry in failing}))
    places = {(entry.versions, entry.mode) for entry in failing or left_out}
    modes = {mode.strip() for _, words in places for mode in words.split(",")}
    where = sorted({versions for versions, _ in places}) + sorted(modes - {"*"})
    text = finding.text
    link = f"[{text.link_shows}]({text.link})" if is_url(text.link) else text.link
    details = "; ".join(filter(None, (", ".join(where), f"link: {link}")))
    return f"- **{finding.framework}** {label}: {text.reason} {clauses or _NO_CLAUSE} ({details})"


def _workarounds(workarounds: Sequence[Workaround]) -> Iterator[str]:
    yield "| adapter | kind | what it does instead | what a user meets otherwise | module |"
    yield "|---|---|---|---|---|"
    for each in sorted(workarounds, key=lambda each: (each.finding.framework, each.kind, each.finding.id)):
        framework, module = (
            each.finding.framework,
            f"[{each.module}](../frameworks/{each.finding.framework}/{each.module})",
        )
        mode = f" ({each.mode})" if each.mode else ""
        yield f"| {framework}{mode} | {each.kind} | {each.does} | {each.finding.text.reason} | {module} |"
