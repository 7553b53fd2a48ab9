"""Kills a process of a run at random moments, again and again, and prints what was left of each run.

    conformance self killed torch --moments 50
    conformance self killed torch --mode=fsdp --minutes 12 -- conformance/suites/test_sharding.py -k replicated

pytest, the worker and one of the ranks are killed in turn, in an environment that has the framework. What follows `--`
selects tests; without it these are some of the sharding suites.

Exit status 0; 1 if processes lived on, a kill cost more than a test, or a record was missing; 2 with one line if the
selection cannot be run.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Sequence

from benchmarks.killed.processes import KINDS
from benchmarks.killed.runs import Killed, killed, undisturbed
from benchmarks.kit import command

SELECTION = ("conformance/suites/test_sharding_decisions.py", "-k", "full")


def main(arguments: Sequence[str] | None = None) -> int:
    """Kills, prints a table, and returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="conformance self killed",
        description="What is left of a run whose processes are killed.",
        epilog=f"Words for pytest follow --; without any they are {' '.join(SELECTION)}.",
    )
    parser.add_argument("framework", help="whose adapter; it has to be installed")
    parser.add_argument("--device", default="cpu", help="cpu by default")
    parser.add_argument("--mode", default="", help="the adapter's first one by default")
    parser.add_argument("--moments", type=int, default=50, help="how often something is killed; 50 by default")
    parser.add_argument("--minutes", type=float, default=0.0, help="stop after so many; 0, the default, for never")
    parser.add_argument("--seed", type=int, default=0, help="what the moments are drawn from")
    words = list(sys.argv[1:] if arguments is None else arguments)
    end = words.index("--") if "--" in words else len(words)
    options = parser.parse_args(words[:end])
    return command.refusing(lambda: _problems(options, words[end + 1 :] or SELECTION))


def _problems(options: argparse.Namespace, tests: Sequence[str]) -> Sequence[str]:
    if options.moments < 1:
        raise ValueError(f"{options.moments} moments show nothing: at least one is needed")
    mode = [f"--mode={options.mode}"] if options.mode else []
    chosen = [f"--framework={options.framework}", f"--device={options.device}", *mode, *tests]
    until = time.monotonic() + 60.0 * options.minutes
    plain = undisturbed(chosen)
    print(f"{len(plain.outcomes)} tests, {plain.seconds:.0f} s without a kill\n", flush=True)
    print("| moment | killed | what the run says | gone after | left |\n|--:|---|---|--:|--:|", flush=True)
    problems: list[str] = []
    kills: list[Killed] = []
    for one in killed(chosen, plain, options.moments, options.seed):
        kills.append(one)
        print(row(one), flush=True)
        problems += [f"{one.kind or 'nothing'} killed at {one.moment:.1f} s: {line}" for line in one.wrong]
        if options.minutes and time.monotonic() > until:
            break
    print(f"\n{summary(kills)}", flush=True)
    return problems


def row(one: Killed) -> str:
    """A kill as a row of the table."""
    return f"| {one.moment:.1f} s | {one.kind or 'nothing'} | {one.said} | {one.gone_s:.1f} s | {one.left} |"


def summary(kills: Sequence[Killed]) -> str:
    """How often what was killed, and what was wrong, in one line."""
    count = Counter(one.kind for one in kills)
    words = [f"{count[kind]} times {kind}" for kind in KINDS if count[kind]]
    bad = sum(bool(one.wrong) for one in kills)
    longest = max((one.gone_s for one in kills), default=0.0)
    return (
        f"killed {', '.join(words) or 'nothing'}; {bad} not as they should be; "
        f"processes gone after {longest:.1f} s at most"
    )


if __name__ == "__main__":
    sys.exit(main())
