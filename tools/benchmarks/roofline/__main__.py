"""Compare the time of a step with the roofline of its device.

    python -m tools roofline torch    measures, keeps the samples, and fills the page from all kept ones
    python -m tools roofline          fills the page only

Exit status 0; 2 with one line if nothing can be measured or read, or no page has a place for the table.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from frameworks.registry import load
from tools.benchmarks.kit import command
from tools.benchmarks.roofline import measuring
from tools.benchmarks.roofline.samples import STORE


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures if a framework is named, fills the page, and returns the exit status."""
    parser = command.parser("roofline", "Compare step times with the roofline of the device.")
    return command.run(parser.parse_args(arguments), _measured, "roofline")


def _measured(options: argparse.Namespace) -> Sequence[str]:
    framework = load(options.framework, options.device)
    roofline = measuring.roofline(framework, measuring.works(framework.name))
    STORE.save(roofline, f"{framework.name}-{framework.device}")
    return ()


if __name__ == "__main__":
    sys.exit(main())
