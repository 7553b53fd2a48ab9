"""The command `conformance`: `main` runs one command and returns its exit status."""

from conformance.cli.main import main

__all__ = ["main"]
