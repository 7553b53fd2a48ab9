"""Whether the baselines of the default modes were written by this suite.

    python -m tools baselines             a clause, a check or a recipe must not have changed since
    python -m tools baselines --release   nor anything else of the suite or the adapter

Exit status 1 if a baseline is out of date: judge the framework by all tests, and accept the record.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from conformance.runner.baselines import BASELINES
from conformance.runner.identity import DEMANDS, suite
from results.record.folders import listed
from results.record.reading import Record, load
from tools.selections import CORE_S


def default_baselines(folder: Path = BASELINES) -> Iterator[Record]:
    """The baselines of the default modes, on a CPU."""
    for path in listed(folder):
        record = load(path)
        if record.series.device == "cpu" and f"{record.series.framework}-{record.series.mode}" in CORE_S:
            yield record


def stale(record: Record, areas: Mapping[str, str], names: Sequence[str]) -> list[str]:
    """Areas of these names in which a record's suite differs from another."""
    return [name for name in names if record.suite.areas.get(name) != areas.get(name)]


def main(arguments: Sequence[str]) -> int:
    """Prints one line for each baseline that is out of date; returns the exit status."""
    if unknown := [word for word in arguments if word != "--release"]:
        print(f"got {unknown[0]!r}, want nothing or --release", file=sys.stderr)
        return 2
    result = 0
    for record in default_baselines():
        areas = suite(record.series.framework, (), ()).areas
        if names := stale(record, areas, sorted(areas) if arguments else DEMANDS):
            result = 1
            print(f"{record.series.framework} {record.series.mode}: the baseline is of other {', '.join(names)}")
    return result


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
