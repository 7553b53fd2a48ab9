"""Times one training step of each fixture with each technique, through pytest-benchmark.

    python -m tools bench torch -k encoder --benchmark-json times.json

The framework is installed, as by `conformance install`; whatever follows its name goes to pytest, which shows the
reason of every skipped step. Exit status: that of pytest, or 2 with one line if there is no such framework or it cannot
be installed.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from frameworks.installer import install
from frameworks.registry import UnknownFramework, path_of


def main(arguments: Sequence[str] | None = None) -> int:
    """Installs the framework, runs the suite, and returns the exit status."""
    name, *words = list(sys.argv[1:] if arguments is None else arguments) or [""]
    try:
        if not name or name.startswith("-"):
            raise UnknownFramework("name a framework first: python -m tools bench torch --benchmark-json FILE")
        path_of(name)
    except UnknownFramework as error:
        print(error, file=sys.stderr)
        return 2
    if name in install.DISTRIBUTIONS and install.main([name]):
        return 2
    return int(pytest.main([str(Path(__file__).parent), f"--framework={name}", "-rs", *words]))


if __name__ == "__main__":
    sys.exit(main())
