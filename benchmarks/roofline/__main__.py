"""How far a step is from the roof that its device's rates put over it.

    conformance self roofline torch    measures, keeps the samples, and fills docs/roofline.md from all kept ones
    conformance self roofline          fills the page only

Exit status 0; 2 with one line if nothing can be measured or read, or the page lacks its markers.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.roofline import measuring, samples, tables
from conformance.pages.generate import placed
from frameworks.contract import MissingDevice
from frameworks.registry import UnknownFramework, load

PAGE = Path(__file__).parents[2] / "docs" / "roofline.md"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures if a framework is named, fills the page, and returns the exit status."""
    parser = argparse.ArgumentParser(prog="conformance self roofline", description=__doc__.splitlines()[0])
    parser.add_argument("framework", nargs="?", help="through which; only the page is filled if none is named")
    parser.add_argument("--device", default="auto", help="auto (a GPU where there is one), cpu or cuda")
    options = parser.parse_args(arguments)
    try:
        if options.framework:
            framework = load(options.framework, options.device)
            found = measuring.roofline(framework, measuring.works(framework.name))
            samples.save(found, samples.path(framework.name, framework.device))
        block = tables.block()
        print(block)
        PAGE.write_text(placed(PAGE.read_text("utf-8"), {"roofline": block}), "utf-8")
    except (OSError, ValueError, UnknownFramework, MissingDevice) as error:
        print(" ".join(str(error).split()), file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
