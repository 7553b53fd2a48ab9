"""Runs the suites at many seeds and reports every verdict that is not the same at all of them.

    python -m conformance.doubts.seeds reference --seeds 30
    python -m conformance.doubts.seeds paddle --modes dygraph,static --seeds 10 -- -k parity

A seed draws weights, data, schedules and the cases of every property; a correct suite says the same at each. What
stands behind `--` goes to pytest. The records go to the folder that `--records` names; `--resume` takes the whole ones
that an interrupted stress left there. Exit status: 0; 1 if a verdict changed or was bad; 2 if a run could not be made.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from results.record.outcomes import Outcome
from results.record.reading import Record, RecordError, load

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "results" / "records" / "stress"

_UNJUDGED = (Outcome.UNSUPPORTED, Outcome.ABSTAIN)

Found = dict[str, dict[int, str]]
"""What was found by test and seed: an outcome, a failure with its signature."""


@dataclass(frozen=True)
class Stress:
    """Many runs of one framework in one mode ("" for its first); `words` go to pytest."""

    framework: str
    mode: str
    folder: Path
    words: tuple[str, ...] = ()
    resume: bool = False

    def record(self, seed: int) -> Record:
        """The record of one seed, from the folder or from a run.

        Raises:
            RecordError: the run wrote none.
        """
        path = self.folder / f"{self.framework.replace(':', '.')}-{self.mode or 'default'}-{seed}.json"
        if self.resume and path.exists():
            return load(path)
        device = os.environ.get("CONFORMANCE_DEVICE") or "auto"
        command = [sys.executable, "-m", "pytest", "-q", "--numprocesses=1", "--timeout=120", f"--seed={seed}"]
        command += [f"--framework={self.framework}", f"--device={device}", f"--record={path}"]
        command += [f"--mode={self.mode}"] if self.mode else []
        ended = subprocess.run([*command, *self.words], cwd=ROOT, capture_output=True, text=True, check=False)
        if ended.returncode not in (0, 1, 5):
            said = (ended.stdout + ended.stderr).strip().splitlines()
            raise RecordError(path, said[-1] if said else "pytest said nothing", "run that seed by hand")
        return load(path)


def changing(records: dict[int, Record]) -> Found:
    """Every test whose verdict differs between seeds or is bad at one, with what it was at each."""
    found: Found = defaultdict(dict)
    bad: set[str] = set()
    for seed, record in records.items():
        for verdict in record.verdicts:
            signature = "" if verdict.outcome in _UNJUDGED else verdict.signature
            found[verdict.test][seed] = f"{verdict.outcome} {signature}".strip()
            if verdict.outcome.bad or verdict.outcome is Outcome.ABSTAIN:
                bad.add(verdict.test)
    same = {test for test, by_seed in found.items() if len(by_seed) == len(records) and len(set(by_seed.values())) == 1}
    return {test: by_seed for test, by_seed in found.items() if test in bad or test not in same}


def told(changed: Found) -> list[str]:
    """A line a test: each verdict with the seeds that gave it, the rarest first."""
    lines = []
    for test, by_seed in sorted(changed.items()):
        counts = Counter(by_seed.values())
        parts = []
        for verdict, count in sorted(counts.items(), key=lambda item: item[1]):
            seeds = [str(seed) for seed, found in sorted(by_seed.items()) if found == verdict]
            parts.append(f"{verdict} at {count} ({', '.join(seeds[:12])}{', …' if count > 12 else ''})")
        lines.append(f"{test}: {'; '.join(parts)}")
    return lines


def main(arguments: Sequence[str]) -> int:
    """Runs and compares; returns the exit status."""
    cut = arguments.index("--") if "--" in arguments else len(arguments)
    parser = argparse.ArgumentParser(prog="python -m conformance.doubts.seeds")
    parser.add_argument("framework")
    parser.add_argument("--modes", default="", help="comma-separated; the framework's first mode if not given")
    parser.add_argument("--seeds", type=int, default=10, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--jobs", type=int, default=2, help="how many runs at once")
    parser.add_argument("--records", type=Path, default=FOLDER, metavar="FOLDER", help="where the records are kept")
    parser.add_argument("--resume", action="store_true", help="take the records that are there")
    given = parser.parse_args(arguments[:cut])
    if given.seeds < 2 or given.first < 0:
        print("at least two seeds, from 0 on, can be compared", file=sys.stderr)
        return 2
    status = 0
    for mode in given.modes.split(","):
        begun = time.monotonic()
        stress = Stress(given.framework, mode, given.records, tuple(arguments[cut + 1 :]), given.resume)
        seeds = range(given.first, given.first + given.seeds)
        try:
            with ThreadPoolExecutor(given.jobs) as pool:
                records = dict(zip(seeds, pool.map(stress.record, seeds), strict=True))
        except RecordError as error:
            print(f"{given.framework}: {error}", file=sys.stderr)
            return 2
        changed = changing(records)
        tests = len({verdict.test for record in records.values() for verdict in record.verdicts})
        print(*told(changed), sep="\n")
        name = f"{given.framework} {mode}".strip()
        seconds = time.monotonic() - begun
        print(
            f"{name}: {len(changed)} of {tests} verdicts changed or were bad at {given.seeds} seeds ({seconds:.0f} s)"
        )
        status = 1 if changed else status
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
