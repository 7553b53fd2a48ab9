"""Which faults of the reference drawn programs catch without any other test."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from tools.docs import generate
from tools.faults.catalogue import Fault
from tools.faults.engine import FIRST, LAW_TESTS, Engine, first_failure


@dataclass(frozen=True)
class Alone:
    """What the laws say of a fault.

    Attributes:
        breaks: the clause that the first failure names, "" where every law holds.
    """

    fault: Fault
    breaks: str

    @property
    def named(self) -> bool:
        """Whether that is a clause that is about the fault."""
        return self.breaks in self.fault.clauses


def alone(engine: Engine, fault: Fault) -> Alone:
    """What the laws say of a fault, up to the first that fails."""
    failed = first_failure(engine.run(fault.name, fault.mode, [LAW_TESTS], FIRST))
    return Alone(fault, "" if failed is None else failed.signature or failed.clause)


def run(chosen: Sequence[Fault], workers: int) -> list[Alone]:
    """What the laws say of every fault, printed as it ends."""
    engine = Engine()

    def judge_fault(fault: Fault) -> Alone:
        result = alone(engine, fault)
        print(f"{'caught' if result.breaks else 'not':7} {fault.label}: {result.breaks or '-'}", flush=True)
        return result

    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(judge_fault, chosen))


def table(results: Sequence[Alone]) -> str:
    """By family: how many there are, how many drawn programs catch, and how many of these by a clause about them."""
    rows = []
    for family in (*sorted({result.fault.family for result in results}), "all"):
        of = [result for result in results if family in ("all", result.fault.family)]
        caught = [result for result in of if result.breaks]
        share = f"{len(caught)} ({100 * len(caught) // len(of)} %)"
        rows.append((family, str(len(of)), share, str(sum(result.named for result in caught))))
    heading = "caught by drawn programs alone"
    return generate.table(("family", "faults", heading, "by the name of a clause about them"), rows)
