"""Ten runs of one framework's cost suites next to each other, and two in which a cost was planted.

    conformance self planted torch    runs, keeps what the comparisons said, and fills the page
    conformance self planted          fills the page only

Exit status 0; 1 if planted bytes were missed, a time was judged, or something was said of two equal runs; 2 with one
line if a run cannot be made or no page has a place for the table.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from benchmarks.kit import command
from benchmarks.planted import outcomes
from benchmarks.planted.runs import compared

REPEATS = 10


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs if a framework is named, fills the page, and returns the exit status."""
    parser = command.parser("planted", "Does a comparison show a cost that was planted in an adapter?")
    parser.add_argument("--mode", default="", help="the adapter's first one by default")
    parser.add_argument("--repeats", type=int, default=REPEATS, help=f"comparisons of equal runs; {REPEATS} by default")
    return command.run(parser.parse_args(arguments), _measured, "planted")


def _measured(options: argparse.Namespace) -> Sequence[str]:
    if options.repeats < 1:
        raise ValueError(f"{options.repeats} repeats show nothing: at least one is needed")
    planted = outcomes.collected(compared(options.framework, options.device, options.mode, options.repeats))
    outcomes.STORE.save(planted, planted.framework)
    wrong = (told for told in planted.told if not told.right)
    return [f"{told.planted or 'nothing planted'}: {'; '.join(told.changes) or 'no change'}" for told in wrong]


if __name__ == "__main__":
    sys.exit(main())
