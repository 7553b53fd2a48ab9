"""The known failures as Markdown, and the README's list of them.

    python -m conformance.known            prints the list
    python -m conformance.known README.md  puts it between the file's markers

Exit status 0, or 2 with one line if the file has no markers or cannot be written.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path

from conformance.expectations import Expectation, load_expectations

BEGIN, END = "<!-- known failures: begin -->", "<!-- known failures: end -->"


def markdown(expectations: Iterable[Expectation]) -> str:
    """A list a framework: what goes wrong, in which clauses, and where it is reported. One item a reason."""
    return "\n".join(_lines(expectations)) + "\n"


def _lines(expectations: Iterable[Expectation]) -> Iterator[str]:
    for framework, entries in groupby(sorted(expectations, key=_order), key=lambda entry: entry.framework):
        yield from (f"**{framework}**", "")
        for _, alike in groupby(entries, key=lambda entry: (entry.versions, entry.reason, entry.link)):
            group = list(alike)
            where = sorted({entry.mode for entry in group} - {"*"})
            clauses = ", ".join(f"`{clause}`" for clause in sorted({entry.clause for entry in group}))
            modes = f", {', '.join(where)}" if where else ""
            yield f"- {group[0].reason} {clauses} ({group[0].versions}{modes}; [link]({group[0].link}))"
        yield ""


def _order(entry: Expectation) -> tuple[str, ...]:
    return entry.framework, entry.versions, entry.reason, entry.link, entry.clause, entry.mode


def placed(text: str, listed: str) -> str:
    """`text` with the list between its markers.

    Raises:
        ValueError: there is not one pair of markers.
    """
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"there is no {BEGIN} … {END}")
    return f"{before}{BEGIN}\n\n{listed}\n{END}{after}"


def main(arguments: list[str]) -> int:
    """Prints the list, or puts it into a file; returns the exit status."""
    listed = markdown(load_expectations())
    if not arguments:
        sys.stdout.write(listed)
        return 0
    path = Path(arguments[0])
    try:
        path.write_text(placed(path.read_text("utf-8"), listed), "utf-8")
    except (OSError, ValueError) as error:
        print(f"{path}: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
