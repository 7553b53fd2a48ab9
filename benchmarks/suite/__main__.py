"""What a run of the suites costs.

    conformance self suite-cost torch            takes the times, keeps them, and fills the page from all kept ones
    conformance self suite-cost -k scaling jax   the same of some tests, where all of them take too long
    conformance self suite-cost                  fills the page only

Exit status 0, or 2 with one line if times cannot be taken or read, or no page has a place for the tables.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from benchmarks.kit import command
from benchmarks.suite import measuring
from benchmarks.suite.samples import STORE


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures if a framework is named, fills the page, and returns the exit status."""
    parser = command.parser("suite-cost", "What a run of the suites costs.")
    parser.add_argument("-k", dest="selection", default="", help="which tests, as pytest's -k; all by default")
    return command.run(parser.parse_args(arguments), _measured, "suite cost")


def _measured(options: argparse.Namespace) -> Sequence[str]:
    STORE.save(measuring.cost(options.framework, options.selection, options.device), options.framework)
    return ()


if __name__ == "__main__":
    sys.exit(main())
