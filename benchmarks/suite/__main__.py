"""What a run of the suites costs.

    conformance self suite-cost torch            takes the times, keeps them, and fills docs/speed.md from all kept ones
    conformance self suite-cost -k scaling jax   the same of some tests, where all of them take too long
    conformance self suite-cost                  fills the page only

Exit status 0, or 2 with one line if times cannot be taken or read, or the page lacks its markers.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.processes import RunError
from benchmarks.suite import measuring, samples, tables
from conformance.pages.generate import placed
from results.record.files import RecordError

PAGE = Path(__file__).parents[2] / "docs" / "speed.md"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures the frameworks that are named, fills the page, and returns the exit status."""
    parser = argparse.ArgumentParser(prog="conformance self suite-cost", description=__doc__.splitlines()[0])
    parser.add_argument("frameworks", nargs="*", metavar="NAME", help="adapters; only the page is filled without one")
    parser.add_argument("-k", dest="selection", default="", help="which tests, as pytest's -k; all by default")
    options = parser.parse_args(arguments)
    try:
        for name in options.frameworks:
            samples.save(measuring.cost(name, options.selection), samples.path(name))
        block = tables.block()
        print(block)
        PAGE.write_text(placed(PAGE.read_text("utf-8"), {"suite cost": block}), "utf-8")
    except (OSError, ValueError, RecordError, RunError) as error:
        print(" ".join(str(error).split()), file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
