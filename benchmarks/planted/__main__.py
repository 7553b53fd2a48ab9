"""Ten runs of one framework's cost suites beside each other, and two in which a cost was planted.

    conformance self planted torch    runs, keeps what the comparisons told, and fills docs/measuring.md
    conformance self planted          fills the page only

Exit status 0; 1 if planted bytes were missed, a time was judged, or something was told of two equal runs; 2 with one
line if a run cannot be made or the page lacks its markers.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.planted import outcomes
from benchmarks.planted.runs import compared
from benchmarks.processes import RunError
from conformance.pages.generate import placed

PAGE = Path(__file__).parents[2] / "docs" / "measuring.md"
REPEATS = 10


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs if a framework is named, fills the page, and returns the exit status."""
    parser = argparse.ArgumentParser(prog="conformance self planted", description=__doc__.splitlines()[0])
    parser.add_argument("framework", nargs="?", help="whose adapter; only the page is filled if none is named")
    parser.add_argument("--device", default="auto", help="auto (a GPU where there is one), cpu or cuda")
    parser.add_argument("--mode", default="", help="the adapter's first one by default")
    parser.add_argument("--repeats", type=int, default=REPEATS, help=f"comparisons of equal runs; {REPEATS} by default")
    options = parser.parse_args(arguments)
    right = True
    try:
        if options.repeats < 1:
            raise ValueError(f"{options.repeats} repeats show nothing: at least one is needed")
        if options.framework:
            found = outcomes.collected(compared(options.framework, options.device, options.mode, options.repeats))
            outcomes.save(found)
            right = all(told.right for told in found.told)
        block = outcomes.block()
        print(block)
        PAGE.write_text(placed(PAGE.read_text("utf-8"), {"planted": block}), "utf-8")
    except (OSError, ValueError, RunError) as error:
        print(" ".join(str(error).split()), file=sys.stderr)
        return 2
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
