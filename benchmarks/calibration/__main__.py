"""What rules for comparing times make of recorded samples.

    conformance self calibration                                   fills the page's tables from the committed samples
    conformance self calibration record interleaved --disturbed    records samples anew (10 minutes or more)

Exit status 0, or 2 with one line if samples cannot be taken or read, or no page has a place for the tables.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from benchmarks.calibration import recording
from benchmarks.calibration.samples import STORE, name
from benchmarks.kit import command

BLOCKS = ("promise", "interleaved, quiet", "interleaved, disturbed", "separate, quiet", "separate, disturbed")


def main(arguments: Sequence[str] | None = None) -> int:
    """Records samples or fills the page, and returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="conformance self calibration", description="How often rules for comparing times are wrong."
    )
    commands = parser.add_subparsers(dest="command")
    record = commands.add_parser("record", help="record samples anew, instead of filling the page")
    record.add_argument("design", choices=sorted(recording.DESIGNS))
    record.add_argument("--disturbed", action="store_true", help="with a load that comes and goes meanwhile")
    record.add_argument("--processes", type=int, help="how many processes, one after the other")
    options = parser.parse_args(arguments)
    if options.command is None:
        return command.refusing(lambda: command.fill(*BLOCKS))
    return command.refusing(lambda: _record(options))


def _record(options: argparse.Namespace) -> Sequence[str]:
    samples = recording.record(options.design, options.disturbed, options.processes)
    STORE.save(samples, name(options.design, options.disturbed))
    return ()


if __name__ == "__main__":
    sys.exit(main())
