"""Which mutants of the reference drawn programs catch without any other test."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from tests.mutants.catalogue import Mutant
from tests.mutants.engine import FIRST, LAW_TESTS, Engine, first_failure


@dataclass(frozen=True)
class Alone:
    """What the laws say of a mutant.

    Attributes:
        breaks: the clause that the first failure names, "" where every law holds.
    """

    mutant: Mutant
    breaks: str

    @property
    def named(self) -> bool:
        """Whether that is a clause that is about the fault."""
        return self.breaks in self.mutant.clauses


def alone(engine: Engine, mutant: Mutant) -> Alone:
    """What the laws say of a mutant, up to the first that fails."""
    failed = first_failure(engine.run(mutant.name, mutant.mode, [LAW_TESTS], mutant.id, more=FIRST))
    return Alone(mutant, "" if failed is None else failed.signature or failed.clause)


def run(chosen: Sequence[Mutant], workers: int) -> list[Alone]:
    """What the laws say of every mutant, printed as it ends."""
    engine = Engine()

    def judged(mutant: Mutant) -> Alone:
        result = alone(engine, mutant)
        print(f"{'caught' if result.breaks else 'not':7} {mutant.label}: {result.breaks or '-'}", flush=True)
        return result

    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(judged, chosen))


def table(results: Sequence[Alone]) -> str:
    """By family: how many there are, how many drawn programs catch, and how many of these by a clause about them."""
    lines = ["| family | mutants | caught by drawn programs alone | by the name of a clause about them |"]
    lines.append("|---|---|---|---|")
    for family in (*sorted({each.mutant.family for each in results}), "all"):
        of = [each for each in results if family in ("all", each.mutant.family)]
        caught = [each for each in of if each.breaks]
        share = f"{len(caught)} ({100 * len(caught) // len(of)} %)"
        lines.append(f"| {family} | {len(of)} | {share} | {sum(each.named for each in caught)} |")
    return "\n".join(lines)
