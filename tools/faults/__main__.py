"""Runs the faults and prints the score.

    python -m tools faults                          every fault of the reference and of every adapter
    python -m tools faults --of reference           those of one framework
    python -m tools faults ScaleGrowsToInfinity     these
    python -m tools faults --write                  and writes the table into the page with its block
    python -m tools faults --tests core             by the tests of a selection
    python -m tools faults --sample 40              a number of them, others for each commit
    python -m tools faults --matrix                 measures which tests fail on each one of the reference
    python -m tools faults --list                   prints their names

Exit status 0 if every fault is caught by every clause that is about it and no MUST clause is unproven; 1 if not; 2 if
a run could not be made.
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec

from conformance.runner.selection import ALL, NAMES
from conformance.spec.clauses import load_clauses
from frameworks.registry import adapter_file
from tools.docs import generate
from tools.faults import engine
from tools.faults.catalogue import Fault, faults
from tools.faults.engine import ROOT, Baselines, Engine, Fate, Group, RunError
from tools.faults.score import Score, must_clauses


def run(chosen: Sequence[Fault], workers: int, selection: str = ALL) -> list[Fate]:
    """The fate of every fault; prints each as its run ends."""
    engine = Engine(selection)
    clauses: dict[Group, set[str]] = {}
    for fault in chosen:
        clauses.setdefault((fault.framework, fault.mode), set()).update(fault.clauses)
    baselines = {group: Baselines(engine, group, named, workers) for group, named in clauses.items()}
    for group in baselines:
        print(f"baseline of {' '.join(filter(None, group))} …", flush=True)
        _ = baselines[group].needed

    def judge_fault(fault: Fault) -> Fate:
        fate = engine.fate(fault, baselines[fault.framework, fault.mode])
        broken = ", ".join(fate.broken) or "-"
        print(f"{fate.status:12}{fault.framework:10} {fault.label}: {broken}  ({fate.seconds:.1f} s)", flush=True)
        return fate

    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(judge_fault, chosen))


def sample_faults(chosen: Sequence[Fault], size: int) -> list[Fault]:
    """At most `size` of the faults, evenly spaced; the first one depends on the commit."""
    command = ("git", "rev-parse", "HEAD")
    commit = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()
    count = len(chosen)
    indices = {(int(commit or "0", 16) + i * count // size) % count for i in range(min(size, count))}
    return [chosen[index] for index in sorted(indices)]


def choose_faults(options: argparse.Namespace, every: Sequence[Fault]) -> list[Fault]:
    """The faults that the options choose.

    Raises:
        ValueError: a name or a count is wrong; the message is one line.
    """
    chosen = [
        fault
        for fault in every
        if (not options.names or {fault.label, fault.name} & set(options.names))
        and (not options.of or fault.framework in options.of)
    ]
    known = {name for fault in chosen for name in (fault.label, fault.name)}
    frameworks = {fault.framework for fault in every}
    if unknown := set(options.names) - known | set(options.of or ()) - frameworks:
        raise ValueError(f"there is no fault {', '.join(sorted(unknown))}; --list names them all")
    if options.sample is not None and options.sample < 1:
        raise ValueError("--sample wants a count of faults, 1 or more")
    return sample_faults(chosen, options.sample) if options.sample is not None and chosen else chosen


def main(arguments: Sequence[str]) -> int:
    """Runs what the arguments choose; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tools faults", description="The suite's mutation score.")
    parser.add_argument("names", nargs="*", metavar="CLASS", help="faults, as Class or module:Class; all if none")
    parser.add_argument("--of", action="append", metavar="FRAMEWORK", help="only faults of this framework")
    parser.add_argument("--workers", type=int, default=2, help="how many run at once")
    parser.add_argument("--tests", choices=NAMES, default=ALL, help="the tests that may catch a fault")
    parser.add_argument("--write", action="store_true", help="puts the table into the page with the block `faults`")
    parser.add_argument("--sample", type=int, metavar="COUNT", help="only so many of them, others for each commit")
    parser.add_argument("--matrix", action="store_true", help="which tests fail on each; the reference's only")
    parser.add_argument("--list", action="store_true", help="names the faults and runs none")
    options = parser.parse_args(arguments)
    every = [fault for fault in faults() if fault.framework == "reference" or not options.matrix]
    try:
        chosen = choose_faults(options, every)
    except ValueError as error:
        return _refuse(str(error))
    complete = len(chosen) == len(every)
    if options.write and (options.matrix or not complete):
        return _refuse("--write takes the score of all faults: leave out names, --of, --sample and --matrix")
    if options.list:
        for fault in chosen:
            print(f"{fault.name}: {fault.text} [{', '.join(fault.clauses)}] {fault.link}")
        return 0
    if options.matrix:
        return _measure(chosen, every, options.workers)
    needed = {framework: adapter_file(framework).imports for framework in {fault.framework for fault in chosen}}
    if absent := sorted(framework for framework, modules in needed.items() if not all(map(find_spec, modules[:1]))):
        return _refuse(f"{', '.join(absent)} not installed: `conformance install NAME`, or choose with --of")
    begun = time.monotonic()
    try:
        score = Score(tuple(run(chosen, options.workers, options.tests)), must_clauses(load_clauses().values()))
    except RunError as error:
        return _refuse(str(error))
    table = score.table(time.monotonic() - begun, complete)
    problems = score.problems(complete)
    print("", table, *problems, sep="\n")
    if options.write:
        generate.place({"faults": f"```text\n{table}\n```"})
    return 1 if problems else 0


def _measure(chosen: Sequence[Fault], every: Sequence[Fault], workers: int) -> int:
    """Measures which tests fail on the chosen faults; other entries stay."""
    known = engine.read()
    for count, (fault, tests) in enumerate(engine.measure_faults(chosen, workers), 1):
        known[fault.id] = tests
        print(f"{count} of {len(chosen)}  {fault.id}: {len(tests)} tests fail", flush=True)
        engine.write({entry.id: known[entry.id] for entry in every if entry.id in known})
    print(*(f"dominated: {name}" for name in engine.find_dominated(known)), sep="\n")
    return 0


def _refuse(line: str) -> int:
    print(line, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
