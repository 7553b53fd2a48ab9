"""`python -m conformance` is the command `conformance`."""

import sys

from conformance.cli import main

if __name__ == "__main__":
    sys.exit(main())
