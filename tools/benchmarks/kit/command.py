"""A benchmark's command line: measure a named framework, store the samples, fill the page."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence

from frameworks.contract import MissingDevice
from frameworks.installer import install
from frameworks.registry import UnknownFramework
from results.record.files import RecordError
from tools.benchmarks.kit.processes import RunError
from tools.docs import generate

Measure = Callable[[argparse.Namespace], Sequence[str]]
"""Measures and stores samples; returns a line for each result beyond its limit."""

_REFUSED = (OSError, ValueError, LookupError, UnknownFramework, MissingDevice, RecordError, RunError)


def parser(name: str, purpose: str) -> argparse.ArgumentParser:
    """The options of `python -m tools NAME`: an optional framework, and its device."""
    made = argparse.ArgumentParser(prog=f"python -m tools {name}", description=purpose)
    made.add_argument("framework", nargs="?", help="framework to measure; without it, only fill the page")
    made.add_argument("--device", default="auto", help="auto (a GPU if there is one), cpu or cuda")
    return made


def run(options: argparse.Namespace, measure: Measure, *blocks: str) -> int:
    """Installs the named framework, measures, prints these generated blocks, and writes them into their pages.

    Returns:
        As `refusing`.
    """

    def work() -> Sequence[str]:
        problems: Sequence[str] = ()
        if options.framework:
            if options.framework in install.DISTRIBUTIONS and install.main([options.framework]):
                raise RunError(f"{options.framework} cannot be installed")
            problems = measure(options)
        fill(*blocks)
        return problems

    return refusing(work)


def fill(*blocks: str) -> Sequence[str]:
    """Prints these generated blocks and writes them into their pages; returns no problems."""
    texts = generate.texts(blocks)
    print(*texts.values(), sep="\n\n")
    generate.place(texts)
    return ()


def refusing(work: Callable[[], Sequence[str]]) -> int:
    """Runs a piece of work.

    Returns:
        0; 1 if a result is beyond its limit, with one line each; 2, with one line, if it cannot be measured, read or
        written.
    """
    try:
        problems = work()
    except _REFUSED as error:
        print(" ".join(str(error).split()), file=sys.stderr)
        return 2
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0
