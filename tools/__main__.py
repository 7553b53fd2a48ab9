"""`python -m tools`."""

import sys

from conformance.cli import main
from tools.commands import commands

if __name__ == "__main__":
    sys.exit(main(group=commands, program="python -m tools"))
