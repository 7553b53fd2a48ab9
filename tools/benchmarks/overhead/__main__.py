"""Measure the overhead of a step through an adapter.

    python -m tools overhead torch    takes the times, keeps them, and fills the page from all kept ones
    python -m tools overhead          fills the page only

Exit status 0; 1 if an adapter's whole interval lies beyond what is wanted; 2 with one line if times cannot be taken or
read, the two sides do not train the same, or no page has a place for the table.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from frameworks.native_loop import steps
from frameworks.registry import load
from results.compare.ratio import FEWEST
from tools.benchmarks.kit import command
from tools.benchmarks.overhead import measuring, tables
from tools.benchmarks.overhead.samples import STORE


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures if a framework is named, fills the page, and returns the exit status."""
    parser = command.parser("overhead", "Measure the overhead of a step through an adapter.")
    parser.add_argument("--pairs", type=int, default=measuring.PAIRS, help=f"pairs a step, at least {FEWEST}")
    return command.run(parser.parse_args(arguments), _measured, "overhead")


def _measured(options: argparse.Namespace) -> Sequence[str]:
    if options.pairs < FEWEST:
        raise ValueError(f"{options.pairs} pairs are too few: {FEWEST} are needed")
    framework = load(options.framework, options.device)
    overhead = measuring.overhead(framework, steps(framework.name, framework.mode), options.pairs)
    STORE.save(overhead, framework.name)
    return tables.beyond(overhead)


if __name__ == "__main__":
    sys.exit(main())
