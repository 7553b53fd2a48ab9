"""Runs rounds of invention again, or a new one for the first time.

    conformance self inventions                           every round
    conformance self inventions round_2026_11_22_a        one
    conformance self inventions --list                    names the faults

Exit status 0, or 2 if there is no such round.
"""

from __future__ import annotations

import argparse
import datetime
import sys
from collections.abc import Sequence

from tests.inventions.rounds import begun, inventions, rounds, run, store


def main(arguments: Sequence[str]) -> int:
    """Runs what the arguments choose; returns the exit status."""
    parser = argparse.ArgumentParser(prog="conformance self inventions", description="Rounds of invention.")
    parser.add_argument("rounds", nargs="*", metavar="ROUND", help="folders of tests/inventions; all if none")
    parser.add_argument("--fault", action="append", metavar="CLASS", help="only these faults; nothing is stored")
    parser.add_argument("--workers", type=int, default=2, help="how many run at once")
    parser.add_argument("--list", action="store_true", help="names the faults and runs none")
    given = parser.parse_args(arguments)
    try:
        chosen = {name: inventions(name) for name in given.rounds or rounds()}
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    status = 0
    for name, faults in chosen.items():
        if given.list:
            print(
                *(f"{fault.label}  {fault.kind}: {fault.text} [{fault.clause}] {fault.link}" for fault in faults),
                sep="\n",
            )
            continue
        faults = [fault for fault in faults if not given.fault or fault.label in given.fault]
        known = [] if given.fault else begun(name)
        left = [fault for fault in faults if fault.label not in {each.fault for each in known}]
        results = [*known, *run(left, given.workers)]
        caught = sum(bool(result.test) for result in results)
        laws = sum(result.by_laws for result in results)
        print(f"{name}: {caught} of {len(results)} caught, {laws} by drawn programs")
        whole = len(results) == len(faults)
        if not given.fault:
            store(name, results, whole, date=datetime.date.today().isoformat())
        if not whole:
            missing = len(faults) - len(results)
            print(f"{name}: {missing} runs did not end; run it again on a machine with less to do", file=sys.stderr)
            status = 2
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
