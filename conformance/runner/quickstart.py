"""A demonstration without any framework: a correct implementation passes, a broken one fails.

The reference runs the scaling family, and so does a copy that applies updates which an overflow should have skipped.
The exit status is 0 only if the reference passes all tests and the copy fails the clause that the fault breaks.
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


def start(framework: str, record: Path) -> subprocess.Popen[bytes]:
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


def tell(name: str, record: Record) -> None:
    """Print one line with the outcomes of a record."""
    counts = {outcome: sum(v.outcome is outcome for v in record.verdicts) for outcome in Outcome}
    parts = [f"{count} {outcome}" for outcome, count in counts.items() if count]
    print(f"{name}: {' · '.join(parts)} (of {len(record.verdicts)} verdicts, {record.duration_s:.0f} s)")


def main() -> int:
    """Run both, explain the result, and return the exit status."""
    with tempfile.TemporaryDirectory() as folder:
        records = {name: Path(folder) / f"{name}.json" for name in ("reference", "twin")}
        running = [start("reference", records["reference"]), start(TWIN, records["twin"])]
        outputs = [process.communicate()[0].decode("utf-8", "replace") for process in running]
        try:
            reference, twin = (load(path) for path in records.values())
        except RecordError as error:
            print(*outputs, error, sep="\n", file=sys.stderr)
            return 1
    tell("reference", reference)
    tell("broken twin", twin)
    caught = [v for v in twin.verdicts if v.clause == BROKEN_CLAUSE and v.outcome is Outcome.FAIL]
    explain(reference, caught)
    good = bool(reference.verdicts) and all(v.outcome is Outcome.PASS for v in reference.verdicts)
    return 0 if good and caught else 1


def explain(reference: Record, caught: list[TestVerdict]) -> None:
    """Print a few lines on the meaning of the two verdicts."""
    for verdict in [v for v in reference.verdicts if v.outcome.bad][:5]:
        print(f"  UNEXPECTED {verdict.clause}: {verdict.message}")
    if not caught:
        print(f"  UNEXPECTED: no test of {BROKEN_CLAUSE} failed on the broken twin")
        return
    text = reference.clauses[BROKEN_CLAUSE]
    print(
        "\nThe reference passes the scaling clauses; its copy, changed in one line, applies overflowed updates.\n"
        f"{len(caught)} tests of {BROKEN_CLAUSE} ({text.level}) caught it:\n"
        f"  requirement  {' '.join(text.requirement.split())}\n"
        f"  seen         {caught[0].message}\n"
        f"Repeat one: {caught[0].repro}"
    )
