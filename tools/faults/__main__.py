"""Runs the faults and prints the score.

    python -m tools faults                          every fault of the reference and of every adapter
    python -m tools faults --of reference           those of one framework
    python -m tools faults ScaleGrowsToInfinity     these
    python -m tools faults --write                  and puts the table into the page that has a place for it
    python -m tools faults --alone                  those of the reference by drawn programs alone, which is no score
    python -m tools faults --tests core             by the tests of a selection alone
    python -m tools faults --sample 40              so many of them, others for each commit
    python -m tools faults --matrix                 measures again which tests fail on each of the reference's
    python -m tools faults --list                   names them

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
from tools.faults.score import Score, must_clauses, run_alone, tabulate_alone


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
        print(f"{fate.word:12}{fault.framework:10} {fault.label}: {broken}  ({fate.seconds:.1f} s)", flush=True)
        return fate

    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(judge_fault, chosen))


def sample_faults(chosen: Sequence[Fault], size: int) -> list[Fault]:
    """At most `size` of the faults, evenly spaced; the first one depends on the commit."""
    command = ("git", "rev-parse", "HEAD")
    commit = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()
    count = len(chosen)
    places = {(int(commit or "0", 16) + i * count // size) % count for i in range(min(size, count))}
    return [chosen[index] for index in sorted(places)]


def main(arguments: Sequence[str]) -> int:
    """Runs what the arguments choose; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tools faults", description="The suite's mutation score.")
    parser.add_argument("names", nargs="*", metavar="CLASS", help="faults, as Class or module:Class; all if none")
    parser.add_argument("--of", action="append", metavar="FRAMEWORK", help="only faults of this framework")
    parser.add_argument("--workers", type=int, default=2, help="how many run at once")
    parser.add_argument("--tests", choices=NAMES, default=ALL, help="the tests that may catch a fault")
    parser.add_argument("--write", action="store_true", help="puts the table into the page with the block `faults`")
    parser.add_argument("--alone", action="store_true", help="by drawn programs alone; the reference's faults only")
    parser.add_argument("--sample", type=int, metavar="COUNT", help="only so many of them, others for each commit")
    parser.add_argument("--matrix", action="store_true", help="which tests fail on each; the reference's only")
    parser.add_argument("--list", action="store_true", help="names the faults and runs none")
    options = parser.parse_args(arguments)
    every = [m for m in faults() if m.framework == "reference" or not (options.alone or options.matrix)]
    chosen = [
        m
        for m in every
        if (not options.names or {m.label, m.name} & set(options.names))
        and (not options.of or m.framework in options.of)
    ]
    known = {name for m in chosen for name in (m.label, m.name)}
    if unknown := set(options.names) - known | set(options.of or ()) - {m.framework for m in every}:
        return _refuse(f"there is no fault {', '.join(sorted(unknown))}; --list names them all")
    if options.sample is not None and options.sample < 1:
        return _refuse("--sample wants a count of faults, 1 or more")
    if options.sample is not None and chosen:
        chosen = sample_faults(chosen, options.sample)
    whole = len(chosen) == len(every)
    if options.write and (options.alone or options.matrix or not whole):
        return _refuse("--write takes the score of all faults: leave out names, --of, --sample, --alone and --matrix")
    if options.list:
        for m in chosen:
            print(f"{m.name}: {m.text} [{', '.join(m.clauses)}] {m.link}")
        return 0
    if options.alone:
        print("", tabulate_alone(run_alone(chosen, options.workers)), sep="\n")
        return 0
    if options.matrix:
        return _measure(chosen, every, options.workers)
    needed = {framework: adapter_file(framework).imports for framework in {m.framework for m in chosen}}
    if absent := sorted(framework for framework, modules in needed.items() if not all(map(find_spec, modules[:1]))):
        return _refuse(f"{', '.join(absent)} not installed: `conformance install NAME`, or choose with --of")
    begun = time.monotonic()
    try:
        score = Score(tuple(run(chosen, options.workers, options.tests)), must_clauses(load_clauses().values()))
    except RunError as error:
        return _refuse(str(error))
    table = score.table(time.monotonic() - begun, whole)
    problems = score.problems(whole)
    print("", table, *problems, sep="\n")
    if options.write:
        generate.place({"faults": f"```text\n{table}\n```"})
    return 1 if problems else 0


def _measure(chosen: Sequence[Fault], every: Sequence[Fault], workers: int) -> int:
    """Measures which tests fail on the chosen faults, and keeps the entries of the others."""
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
