"""Records samples, and what the rules make of them.

    conformance self calibration record interleaved --disturbed    records samples anew (10 minutes or more)
    conformance self calibration table docs/measuring.md           fills that page's tables from committed samples

Exit status 0, or 2 with one line if samples cannot be taken or read, or the page lacks a pair of markers.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.calibration import recording, samples, tables
from conformance.pages.generate import placed


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one of the two commands and returns the exit status."""
    parser = argparse.ArgumentParser(prog="conformance self calibration", description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    record = commands.add_parser("record", help="record samples anew")
    record.add_argument("design", choices=sorted(recording.DESIGNS))
    record.add_argument("--disturbed", action="store_true", help="with a load that comes and goes beside it")
    record.add_argument("--processes", type=int, help="how many processes, one after the other")
    table = commands.add_parser("table", help="fill a page's tables from the committed samples")
    table.add_argument("page", type=Path)
    options = parser.parse_args(arguments)
    try:
        if options.command == "record":
            found = recording.record(options.design, options.disturbed, options.processes)
            samples.save(found, samples.path(options.design, options.disturbed))
        else:
            page: Path = options.page
            page.write_text(placed(page.read_text("utf-8"), tables.blocks()), "utf-8")
    except (OSError, ValueError, RuntimeError) as error:
        print(" ".join(str(error).split()), file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
