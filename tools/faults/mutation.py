"""First-order mutants of the reference by cosmic-ray: a random sample, and those that no test kills.

    python -m tools mutation --sample 20
    python -m tools mutation --sample 20 --seed 7 conformance/suites/scaling/test_scaling.py

A copy of frameworks/reference is mutated, so that what the suites expect still comes from the reference itself.
Exit status 0 if every mutant of the sample is killed, 1 if one survives, 2 if the sample cannot be run.
"""

from __future__ import annotations

import argparse
import os
import random
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).parents[2]
SUBJECT = "mutated_reference"
"""The package that the copy becomes."""
LIMIT_S = 1800
"""How long the tests of one mutant may take. One that takes longer counts as killed."""
ANNOTATIONS = "core/ReplaceBinaryOperator_BitOr_"
"""Operators that are left out: `|` stands in annotations almost alone, and these are not evaluated."""
CONFIGURATION = """
[cosmic-ray]
module-path = "{subject}"
timeout = {limit}.0
excluded-modules = []
test-command = '''{command}'''

[cosmic-ray.distributor]
name = "local"
"""


def main(arguments: Sequence[str]) -> int:
    """Runs what the arguments choose; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tools mutation", description="Mutants of the reference.")
    parser.add_argument("suites", nargs="*", default=["conformance/suites"], help="files of tests; all by default")
    parser.add_argument("--sample", type=int, default=20, metavar="N", help="how many mutants; 20 by default")
    parser.add_argument("--seed", type=int, default=0, help="another seed draws another sample")
    given = parser.parse_args(arguments)
    if find_spec("cosmic_ray") is None:
        print("cosmic-ray is not installed: pip install cosmic-ray==8.7.0", file=sys.stderr)
        return 2
    if given.sample < 1:
        parser.error(f"--sample: got {given.sample}, want 1 or more")
    try:
        with tempfile.TemporaryDirectory(prefix="mutation-") as folder:
            survivors = survived(Path(folder), [str(ROOT / suite) for suite in given.suites], given.sample, given.seed)
    except subprocess.CalledProcessError as error:
        print(f"cosmic-ray {error.cmd[3]} failed: do the suites pass on the reference?", file=sys.stderr)
        return 2
    print(*survivors, f"{len(survivors)} of {given.sample} mutants survive", sep="\n")
    return 1 if survivors else 0


def survived(folder: Path, suites: Sequence[str], size: int, seed: int) -> list[str]:
    """A diff of every mutant of a sample that the suites do not kill.

    Args:
        folder: takes the mutated copy and cosmic-ray's session.
    """
    from cosmic_ray.work_db import use_db
    from cosmic_ray.work_item import TestOutcome, WorkerOutcome, WorkResult

    copy(folder / SUBJECT)
    words = [sys.executable, "-m", "pytest", f"--framework={SUBJECT}:ReferenceFramework", "--profile=quick"]
    words += ["--exitfirst", "-q", "-p", "no:xdist", "--timeout=300", f"--record={folder / 'record.json'}", *suites]
    text = CONFIGURATION.format(subject=SUBJECT, limit=LIMIT_S, command=shlex.join(words))
    (folder / "cosmic-ray.toml").write_text(text, "utf-8")
    _cosmic_ray(folder, "baseline", "cosmic-ray.toml")
    _cosmic_ray(folder, "init", "cosmic-ray.toml", "session.sqlite")
    with use_db(folder / "session.sqlite") as session:
        mutants = [item for item in session.work_items if not item.mutations[0].operator_name.startswith(ANNOTATIONS)]
        mutants.sort(key=lambda item: str(item.mutations[0]))
        chosen = {item.job_id for item in random.Random(seed).sample(mutants, min(size, len(mutants)))}
        left_out = [item.job_id for item in session.work_items if item.job_id not in chosen]
        session.set_multiple_results(left_out, WorkResult(WorkerOutcome.SKIPPED))
    _cosmic_ray(folder, "exec", "cosmic-ray.toml", "session.sqlite")
    with use_db(folder / "session.sqlite") as session:
        results = [(item, result) for item, result in session.completed_work_items if item.job_id in chosen]
        return [str(result.diff) for _, result in results if result.test_outcome is TestOutcome.SURVIVED]


def copy(package: Path) -> None:
    """Copies frameworks/reference to a package of another name, which imports its own modules."""
    shutil.copytree(ROOT / "frameworks" / "reference", package, ignore=shutil.ignore_patterns("__pycache__"))
    for module in package.rglob("*.py"):
        text = module.read_text("utf-8")
        module.write_text(text.replace("frameworks.reference", package.name), "utf-8")


def _cosmic_ray(folder: Path, *words: str) -> None:
    path = os.pathsep.join(filter(None, (str(folder), str(ROOT), os.environ.get("PYTHONPATH"))))
    command = [sys.executable, "-m", "cosmic_ray.cli", *words]
    subprocess.run(command, cwd=folder, env={**os.environ, "PYTHONPATH": path}, check=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
