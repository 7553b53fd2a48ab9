"""Seed sweeps: runs of the suites under many seeds, and the verdicts that differ."""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from conformance.runner.jobs import NO_TEST, reason_of
from results.record.folders import LAST_RUNS
from results.record.outcomes import UNJUDGED, Outcome
from results.record.reading import Record, RecordError, load

ROOT = Path(__file__).parents[2]
FOLDER = LAST_RUNS / "stress"

VerdictsBySeed = dict[str, dict[int, str]]
"""The outcome by test and seed, for a failure with its signature."""


@dataclass(frozen=True)
class Stress:
    """Many runs of one framework.

    Attributes:
        mode: "" for its first.
        folder: directory of the records.
        words: arguments for pytest.
        resume: whether existing records are reused.
    """

    framework: str
    mode: str
    device: str
    folder: Path
    words: tuple[str, ...] = ()
    resume: bool = False

    def record(self, seed: int) -> Record:
        """The record of one seed, from the folder or from a new run.

        Raises:
            RecordError: the run wrote none.
            ValueError: pytest refuses the arguments, or they select no test.
        """
        path = self.folder / f"{self.framework.replace(':', '.')}-{self.mode or 'default'}-{seed}.json"
        if self.resume and path.exists():
            return load(path)
        command = [sys.executable, "-m", "pytest", "-q", "--numprocesses=1", "--timeout=120", f"--seed={seed}"]
        command += [f"--framework={self.framework}", f"--device={self.device}", f"--record={path}"]
        command += [f"--mode={self.mode}"] if self.mode else []
        ended = subprocess.run([*command, *self.words], cwd=ROOT, capture_output=True, text=True, check=False)
        if ended.returncode == 5:
            raise ValueError(f"{NO_TEST} ({' '.join(self.words)})")
        if ended.returncode in (2, 4):
            raise ValueError(reason_of(ended.stderr or ended.stdout))
        if ended.returncode not in (0, 1):
            said = (ended.stdout + ended.stderr).strip().splitlines()
            raise RecordError(path, said[-1] if said else "pytest printed nothing", "run that seed by hand")
        return load(path)


def changing(records: dict[int, Record]) -> VerdictsBySeed:
    """Tests whose verdict differs between seeds or needs action, with the verdict at each seed."""
    result: VerdictsBySeed = defaultdict(dict)
    bad: set[str] = set()
    for seed, record in records.items():
        for verdict in record.verdicts:
            signature = "" if verdict.outcome in UNJUDGED else verdict.signature
            result[verdict.test][seed] = f"{verdict.outcome} {signature}".strip()
            if verdict.outcome.bad:
                bad.add(verdict.test)
    same = {
        test for test, by_seed in result.items() if len(by_seed) == len(records) and len(set(by_seed.values())) == 1
    }
    return {test: by_seed for test, by_seed in result.items() if test in bad or test not in same}


def never_judged(records: dict[int, Record]) -> list[str]:
    """The tests that abstain in every record."""
    abstained = [{v.test for v in record.verdicts if v.outcome is Outcome.ABSTAIN} for record in records.values()]
    return sorted(set.intersection(*abstained))


def summary_lines(changed: VerdictsBySeed) -> list[str]:
    """One line for each test: its verdicts with their seeds, the rarest first."""
    lines = []
    for test, by_seed in sorted(changed.items()):
        counts = Counter(by_seed.values())
        parts = []
        for verdict, count in sorted(counts.items(), key=lambda item: item[1]):
            seeds = [str(seed) for seed, result in sorted(by_seed.items()) if result == verdict]
            parts.append(f"{verdict} at {count} ({', '.join(seeds[:12])}{', …' if count > 12 else ''})")
        lines.append(f"{test}: {'; '.join(parts)}")
    return lines


def stress(runs: Stress, first: int, count: int, jobs: int) -> int:
    """Runs the suites at `count` seeds, `jobs` of them at once, and prints what differs.

    Returns:
        1 if a verdict differs or needs action, else 0.

    Raises:
        RecordError: a run wrote no record.
        ValueError: pytest refuses the arguments, or they select no test.
    """
    begun = time.monotonic()
    seeds = range(first, first + count)
    with ThreadPoolExecutor(jobs) as pool:
        records = dict(zip(seeds, pool.map(runs.record, seeds), strict=True))
    changed = changing(records)
    tests = len({verdict.test for record in records.values() for verdict in record.verdicts})
    for line in [*summary_lines(changed), *(f"{test}: abstains at every seed" for test in never_judged(records))]:
        print(line)
    name, seconds = f"{runs.framework} {runs.mode}".strip(), time.monotonic() - begun
    print(f"{name}: {len(changed)} of {tests} verdicts differ between {count} seeds or need action ({seconds:.0f} s)")
    return 1 if changed else 0
