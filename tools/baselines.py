"""Check that the baselines of the default modes were written by this suite.

    python -m tools baselines             a clause, a check or a recipe must not have changed since
    python -m tools baselines --release   nor anything else of the suite or the adapter

Exit status 1 if every baseline of a series is out of date: judge the framework by all tests, and accept the record.
A mode may have one more baseline, from a processor with more instruction sets.
"""

import sys
from collections.abc import Mapping, Sequence
from operator import attrgetter
from pathlib import Path

from conformance.runner.baselines import BASELINES
from conformance.runner.identity import DEMANDS, suite
from results.record.folders import list_records
from results.record.reading import Record, load
from tools.selections import CORE_S


def default_baselines(folder: Path = BASELINES) -> list[Record]:
    """The last baseline of each default mode on a CPU. An earlier one may have more instruction sets."""
    records = [record for record in map(load, list_records(folder)) if record.series.device == "cpu"]
    modes = {
        (record.series.framework, record.series.mode): record for record in sorted(records, key=attrgetter("started"))
    }
    return [record for (framework, mode), record in modes.items() if f"{framework}-{mode}" in CORE_S]


def stale(record: Record, areas: Mapping[str, str], names: Sequence[str]) -> list[str]:
    """Areas of these names in which a record's suite differs from another."""
    return [name for name in names if record.suite.areas.get(name) != areas.get(name)]


def main(arguments: Sequence[str]) -> int:
    """Prints one line for each baseline that is out of date; returns the exit status."""
    if unknown := [argument for argument in arguments if argument != "--release"]:
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
