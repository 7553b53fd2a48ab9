"""A demonstration without any framework: a correct implementation passes, a broken one fails.

The reference runs the scaling family, and so does a copy with a fault: it applies updates that overflowed instead of
skipping them. The exit status is 0 only if the reference passes all tests and the copy fails the clause of the fault.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from conformance.test_ids.inventory import SUITES
from results.record.files import RecordError
from results.record.model import Outcome, Record, TestVerdict
from results.record.reading import load

ROOT = Path(__file__).parents[2]
TWIN = "frameworks.broken:AppliesOverflow"
BROKEN_CLAUSE = "scaling.skip-is-atomic"


def start_suite(framework: str, record: Path) -> subprocess.Popen[bytes]:
    """Start the scaling family on one framework in a new process."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:benchmark", str(SUITES / "scaling")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    return subprocess.Popen(
        [*command, f"--framework={framework}", "--device=cpu", f"--record={record}"],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def print_outcomes(name: str, record: Record) -> None:
    """Print one line with the number of verdicts of a record by outcome."""
    counts = {outcome: sum(v.outcome is outcome for v in record.verdicts) for outcome in Outcome}
    parts = [f"{count} {outcome}" for outcome, count in counts.items() if count]
    print(f"{name}: {' · '.join(parts)} (of {len(record.verdicts)} verdicts, {record.duration_s:.0f} s)")


def main() -> int:
    """Run the reference and its broken twin, explain the results, and return the exit status."""
    with tempfile.TemporaryDirectory() as folder:
        records = {name: Path(folder) / f"{name}.json" for name in ("reference", "twin")}
        running = [start_suite("reference", records["reference"]), start_suite(TWIN, records["twin"])]
        outputs = [process.communicate()[0].decode("utf-8", "replace") for process in running]
        try:
            reference, twin = (load(path) for path in records.values())
        except RecordError as error:
            print(*outputs, error, sep="\n", file=sys.stderr)
            return 1
    print_outcomes("reference", reference)
    print_outcomes("broken twin", twin)
    caught = [v for v in twin.verdicts if v.clause == BROKEN_CLAUSE and v.outcome is Outcome.FAIL]
    explain(reference, caught)
    is_clean = bool(reference.verdicts) and all(v.outcome is Outcome.PASS for v in reference.verdicts)
    return 0 if is_clean and caught else 1


def explain(reference: Record, caught: list[TestVerdict]) -> None:
    """Print unexpected outcomes and, if tests caught the fault, the requirement that it broke and the first message."""
    for verdict in [v for v in reference.verdicts if v.outcome.bad][:5]:
        print(f"  UNEXPECTED {verdict.clause}: {verdict.message}")
    if not caught:
        print(f"  UNEXPECTED: no test of {BROKEN_CLAUSE} failed on the broken twin")
        return
    clause = reference.clauses[BROKEN_CLAUSE]
    print(
        "\nThe reference passes the scaling clauses; its copy, changed in one line, applies overflowed updates.\n"
        f"{len(caught)} tests of {BROKEN_CLAUSE} ({clause.level}) caught it:\n"
        f"  requirement  {' '.join(clause.requirement.split())}\n"
        f"  seen         {caught[0].message}\n"
        f"Repeat one: {caught[0].repro}"
    )
