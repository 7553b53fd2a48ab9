"""`python -m results table | slowest | findings | validate | recover`: what records say, on the command line.

Exit status: 0; 1 if `table --strict` finds trouble or the reader of the output went away; 2 if a record cannot be read,
in one line on standard error.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from functools import cache
from io import TextIOWrapper
from pathlib import Path

from rich.console import Console

from results.record.files import RecordError, one_line, os_problem
from results.record.folders import find, read
from results.record.journal import convert
from results.record.reading import load
from results.show import portability, times
from results.show.findings import markdown
from results.show.table import draw, troubles
from results.show.titles import title


def table(arguments: argparse.Namespace) -> int:
    """Prints the summary, or with --clauses a word a clause; with --times and --strict what took long or is wrong."""
    records = read(arguments.paths)
    console = Console(width=arguments.width)
    if arguments.clauses:
        for line in portability.listed(records):
            print(line)
    else:
        draw(records, console)
    if arguments.times:
        times.draw(records, console)
    if not arguments.strict:
        return 0
    wrong = [f"{' '.join(title(record)[:3])}: {', '.join(found)}" for record in records if (found := troubles(record))]
    for line in wrong:
        print(line, file=sys.stderr)
    return 1 if wrong else 0


def slowest(arguments: argparse.Namespace) -> int:
    """Prints what took longest."""
    for line in times.listed(read(arguments.paths), arguments.by, arguments.count):
        print(line)
    return 0


def findings(arguments: argparse.Namespace) -> int:
    """Prints the known failures as Markdown."""
    print(markdown(read(arguments.paths)), end="")
    return 0


def validate(arguments: argparse.Namespace) -> int:
    """Reads every record."""
    for path in find(arguments.paths):
        record = load(path)
        print(one_line(f"{path}: a valid record, {record.status}, {len(record.verdicts)} verdicts"))
    return 0


def recover(arguments: argparse.Namespace) -> int:
    """Turns a journal into a record."""
    print(one_line(str(convert(arguments.journal))))
    return 0


def _count(text: str) -> int:
    count = int(text)
    if count < 1:
        raise ValueError
    return count


def _width(text: str) -> int:
    width = int(text)
    if not 20 <= width <= 1000:
        raise ValueError
    return width


@cache
def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m results", description="What the records of runs say.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    several = "records (.json), journals (.jsonl) or folders of them; those of the last runs if none is named"

    command = commands.add_parser("table", help="families of clauses down, frameworks across")
    command.add_argument("paths", nargs="*", type=Path, metavar="PATH", help=several)
    words = "instead, each clause with one word across frameworks: portable, differs, broken in X since V, ..."
    command.add_argument("--clauses", action="store_true", help=words)
    command.add_argument("--strict", action="store_true", help="exit with 1 if any outcome is bad or a run interrupted")
    command.add_argument("--times", action="store_true", help="also seconds by family, and the slowest tests")
    command.add_argument("--width", type=_width, help="columns to fill, 20 to 1000; the terminal's if not given")
    command.set_defaults(run=table)

    command = commands.add_parser("slowest", help="the tests or clauses of each record that took longest, with seconds")
    command.add_argument("paths", nargs="*", type=Path, metavar="PATH", help=several)
    command.add_argument("--by", choices=("test", "clause"), default="test", help="what is listed; tests by default")
    command.add_argument("--count", type=_count, default=times.SLOWEST, metavar="N", help="how many of each record")
    command.set_defaults(run=slowest)

    command = commands.add_parser("findings", help="known failures as a Markdown list")
    command.add_argument("paths", nargs="*", type=Path, metavar="PATH", help=several)
    command.set_defaults(run=findings)

    command = commands.add_parser("validate", help="read records and say whether they are valid")
    command.add_argument("paths", nargs="+", type=Path, metavar="PATH", help="records, journals or folders")
    command.set_defaults(run=validate)

    command = commands.add_parser("recover", help="turn the journal of a run that was killed into a record")
    command.add_argument("journal", type=Path, metavar="JOURNAL", help="a .jsonl file")
    command.set_defaults(run=recover)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns the exit status."""
    chosen = _parser().parse_args(arguments)
    try:
        status: int = chosen.run(chosen)
        sys.stdout.flush()
        return status
    except RecordError as error:
        print(f"results: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            return 1
        print(f"results: the output cannot be written ({os_problem(error)}); write it elsewhere", file=sys.stderr)
        return 2


if __name__ == "__main__":
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")
    sys.exit(main())
