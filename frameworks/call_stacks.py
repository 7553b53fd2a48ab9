"""Short Python stacks for frameworks that store the stack of each operation."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def short_call_stacks() -> Iterator[None]:
    """Within it `traceback` extracts the innermost frame alone.

    Paddle extracts the whole stack for each operation of a static program. Below pytest and Hypothesis it has 80
    frames, and to read them took longer than to build the program.
    """
    before = getattr(sys, "tracebacklimit", None)
    sys.tracebacklimit = 1
    try:
        yield
    finally:
        if before is None:
            del sys.tracebacklimit
        else:
            sys.tracebacklimit = before
