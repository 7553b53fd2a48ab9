"""The mutation score: how many faults their clauses catch, and which clauses no fault breaks."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from conformance.spec.clauses import Clause, Level
from tools.faults.engine import Fate


@dataclass(frozen=True)
class Score:
    """The fates of some faults, and the MUST clauses that they are to break."""

    fates: tuple[Fate, ...]
    must: tuple[str, ...]

    @property
    def caught(self) -> tuple[Fate, ...]:
        """The faults that every clause about them caught."""
        return tuple(fate for fate in self.fates if fate.status == "caught")

    @property
    def unproven(self) -> tuple[str, ...]:
        """MUST clauses that no fault broke."""
        broken = {clause for fate in self.fates for clause in fate.broken}
        return tuple(clause for clause in self.must if clause not in broken)

    def problems(self, complete: bool = True) -> list[str]:
        """A line for each reason why the score is not perfect; unproven clauses only if all faults ran."""
        lines = [_fate_line(fate) for fate in self.fates if fate.status != "caught"]
        return lines + ([f"unproven: no fault breaks {clause}" for clause in self.unproven] if complete else [])

    def table(self, seconds: float, complete: bool = True) -> str:
        """The score by framework and family, with its totals."""
        rows: list[tuple[str, ...]] = [
            ("faults of", "family", "faults", "caught", "by accident", "survived", "MUST clauses broken")
        ]
        for framework in sorted({f.fault.framework for f in self.fates}, key=lambda n: (n != "reference", n)):
            fates = [f for f in self.fates if f.fault.framework == framework]
            for family in sorted({f.fault.family for f in fates}):
                rows.append((framework, family, *self._counts([f for f in fates if f.fault.family == family], family)))
        total = self._counts(self.fates, "")
        rows.append(("all", "", *total))
        share = 100 * len(self.caught) // max(1, len(self.fates))
        summary = f"score {share} %: {len(self.caught)} of {len(self.fates)} faults caught by every clause about them"
        if complete:
            summary += f"; {len(self.must) - len(self.unproven)} of {len(self.must)} MUST clauses proven"
        return f"{_align_rows(rows)}\n\n{summary}; {seconds:.0f} s"

    def _counts(self, fates: Sequence[Fate], family: str) -> tuple[str, ...]:
        outcomes = [fate.status for fate in fates]
        must = {c for c in self.must if c.startswith(f"{family}." if family else "")}
        broken = must & {clause for fate in fates for clause in fate.broken}
        counts = (len(outcomes), outcomes.count("caught"), outcomes.count("by accident"), outcomes.count("survived"))
        return (*map(str, counts), f"{len(broken)} of {len(must)}")


def must_clauses(clauses: Iterable[Clause]) -> tuple[str, ...]:
    """The ids of the MUST clauses."""
    return tuple(sorted(c.id for c in clauses if c.level is Level.MUST))


def _fate_line(fate: Fate) -> str:
    if fate.status == "not named":
        return f"not named: {fate.fault.name}: {', '.join(fate.unnamed)} failed without saying {fate.fault.names!r}"
    accident = f"; {', '.join(fate.elsewhere[:4])} failed" if fate.elsewhere else ""
    return f"{fate.status}: {fate.fault.name} was not caught by {', '.join(fate.missed)}{accident}"


def _align_rows(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]

    def line(row: Sequence[str]) -> str:
        cells = zip(row, widths, strict=True)
        return "  ".join(c.ljust(w) if i < 2 else c.rjust(w) for i, (c, w) in enumerate(cells)).rstrip()

    rule = "─" * sum(widths, 2 * len(widths) - 2)
    return "\n".join([line(rows[0]), rule, *map(line, rows[1:-1]), rule, line(rows[-1])])
