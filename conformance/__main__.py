"""`python -m conformance` is the command `conformance`."""

import sys

if sys.version_info < (3, 11):  # noqa: UP036
    sys.exit("conformance: got Python %d.%d, want 3.11 or newer" % sys.version_info[:2])  # noqa: UP031


def run() -> int:
    """Runs the command; one line names a package that the suite requires and that is not installed."""
    try:
        from conformance.cli import main

        return main()
    except ModuleNotFoundError as error:
        if (error.name or "conformance").partition(".")[0] in ("conformance", "fixtures", "frameworks", "results"):
            raise
        remedy = "pip install -U pip, then pip install --group suite --group run"
        print(f"conformance: {error.name} is not installed; {remedy}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(run())
