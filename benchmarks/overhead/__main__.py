"""What a step through an adapter costs.

    conformance self overhead torch    takes the times, keeps them, and fills docs/overhead.md from all kept ones
    conformance self overhead          fills the page only

Exit status 0; 1 if an adapter's whole interval lies beyond what is wanted; 2 with one line if times cannot be taken or
read, the two sides do not train the same, or the page lacks its markers.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.overhead import measuring, samples, tables
from conformance.pages.generate import placed
from frameworks.by_hand import steps
from frameworks.contract import MissingDevice
from frameworks.registry import UnknownFramework, load
from results.compare.ratio import FEWEST

PAGE = Path(__file__).parents[2] / "docs" / "overhead.md"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures if a framework is named, fills the page, and returns the exit status."""
    parser = argparse.ArgumentParser(prog="conformance self overhead", description=__doc__.splitlines()[0])
    parser.add_argument("framework", nargs="?", help="whose adapter; only the page is filled if none is named")
    parser.add_argument("--device", default="auto", help="auto (a GPU where there is one), cpu or cuda")
    parser.add_argument("--pairs", type=int, default=measuring.PAIRS, help=f"pairs a step, at least {FEWEST}")
    options = parser.parse_args(arguments)
    problems: list[str] = []
    try:
        if options.pairs < FEWEST:
            raise ValueError(f"{options.pairs} pairs are too few: {FEWEST} are needed")
        if options.framework:
            framework = load(options.framework, options.device)
            found = measuring.overhead(framework, steps(framework.name, framework.mode), options.pairs)
            samples.save(found, samples.path(framework.name))
            problems = tables.beyond(found)
        block = tables.block()
        print(block)
        PAGE.write_text(placed(PAGE.read_text("utf-8"), {"overhead": block}), "utf-8")
    except (OSError, ValueError, LookupError, UnknownFramework, MissingDevice, measuring.Apart) as error:
        print(" ".join(str(error).split()), file=sys.stderr)
        return 2
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
