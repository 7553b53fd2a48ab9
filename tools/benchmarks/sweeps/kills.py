"""`python -m tools.benchmarks.sweeps.kills`: a sweep that is killed at random moments, next to one that is not.

Checks that both give the same verdicts, that no cell runs again that has ended, that a killed sweep leaves no process
and no temporary file once it is resumed, and that a raised revision of a clause runs its tests alone.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tools.benchmarks.sweeps.checkouts import SweptCheckout

VERSIONS = ("1.0", "2.0", "2.1", "3.0", "3.5", "4.0", "4.2", "5.0", "6.0")
CLAUSE = "scaling.skip-is-atomic"
PLAN = """
selection = "-k 'test_skipped_update_is_atomic or test_overflow_can_be_discarded'"
limit = "10m"
repeat = false
[[cells]]
framework = "TOY"
versions = [">=1"]
[[cells]]
framework = "reference"
versions = ["1"]
modes = ["emulated", "ranks", "offload"]
"""


def main() -> int:
    """Runs the trial; 1 if a check fails."""
    parser = argparse.ArgumentParser(prog="python -m tools.benchmarks.sweeps.kills")
    parser.add_argument("--kills", type=int, default=5, help="number of kills")
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("--selection", default="", help="words for pytest instead of the usual ones")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="sweeps-") as folder:
        return _trial(Path(folder), options.kills, random.Random(options.seed), options.selection)


def _trial(folder: Path, kills: int, moments: random.Random, selection: str) -> int:
    checkout = SweptCheckout(folder)
    plan = PLAN if not selection else PLAN.replace(PLAN.splitlines()[1], f"selection = {json.dumps(selection)}")
    checkout.make(VERSIONS, plan)
    begun = time.monotonic()
    with checkout.sweeping("whole", "--jobs=2") as process:
        status = process.wait()
    took = time.monotonic() - begun
    print(f"uninterrupted: status {status}, {took:.0f} s, {checkout.kinds('whole')}", flush=True)
    problems = [] if status == 0 else [f"the uninterrupted sweep ended with {status}"]
    for number in range(kills):
        wait = moments.uniform(0.03, 0.22) * took
        with checkout.sweeping("killed", "--jobs=2") as process:
            time.sleep(wait)
            over = process.poll() is not None
            process.send_signal(signal.SIGKILL)
        ended, left = checkout.kinds("killed"), _left(checkout, 15.0)
        print(
            f"kill {number + 1} after {wait:.0f} s{' (over)' if over else ''}: {ended}, {left} processes left",
            flush=True,
        )
        problems += [f"{left} processes outlive kill {number + 1}"] if left else []
    with checkout.sweeping("killed", "--jobs=2") as process:
        status = process.wait()
    print(f"resumed to its end: status {status}, {checkout.kinds('killed')}", flush=True)
    same = checkout.verdicts("whole") == checkout.verdicts("killed")
    count = sum(map(len, checkout.verdicts("killed").values()))
    print(f"{count} verdicts of {len(checkout.verdicts('killed'))} cells, the same: {same}", flush=True)
    problems += [] if same and count else ["verdicts differ"]
    problems += _twice(checkout.journal("killed"))
    problems += _raised(checkout)
    problems += [f"left in the temporary directory: {path.name}" for path in checkout.temporary.iterdir()]
    for problem in problems:
        print(f"FAILED: {problem}")
    return 1 if problems else 0


def _raised(checkout: SweptCheckout) -> list[str]:
    """Raises the revision of a clause, and runs the sweep again."""
    path = checkout.root / "conformance" / "spec" / "scaling.toml"
    path.write_text(path.read_text("utf-8").replace(f'id = "{CLAUSE}"', f'id = "{CLAUSE}"\nrevision = 2'), "utf-8")
    before = checkout.verdicts("killed")
    begun = time.monotonic()
    with checkout.sweeping("killed", "--jobs=2") as process:
        status = process.wait()
    endings = [line for line in checkout.journal("killed") if line["kind"] == "ended"][-len(before) :]
    wanted = [sum(test.startswith(f"{CLAUSE}/") for test in each) for each in before.values()]
    ran = [line["ran"] for line in endings]
    same = before == checkout.verdicts("killed")
    seconds = time.monotonic() - begun
    print(
        f"after raising {CLAUSE}: status {status}, {seconds:.0f} s, {sum(ran)} tests run, {sum(wanted)} of the clause"
    )
    good = same and sorted(ran) == sorted(wanted) and 0 < sum(ran) < sum(map(len, before.values()))
    return [] if good else [f"after raising a revision: ran {ran}, want {wanted}, same verdicts: {same}"]


def _twice(journal: Sequence[Mapping[str, object]]) -> list[str]:
    """Cells that began again after they had ended."""
    ended, again = set[object](), []
    for line in journal:
        if line["kind"] == "begun" and line["cell"] in ended:
            again.append(f"{line['name']} ran again")
        if line["kind"] == "ended":
            ended.add(line["cell"])
    print(f"{len(again)} cells ran again after they had ended")
    return again


def _left(checkout: SweptCheckout, patience_s: float) -> int:
    """Processes of cells that are still alive after some seconds."""
    end = time.monotonic() + patience_s
    while time.monotonic() < end and checkout.processes():
        time.sleep(0.2)
    return checkout.processes()


if __name__ == "__main__":
    sys.exit(main())
