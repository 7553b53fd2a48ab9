"""Makes the fixed selections of tests, `conformance/runner/selections`.

    python -m tools selections [RECORD...]

A record of all tests says which tests a framework judges and what each takes; by default the baselines are read. The
kill matrix (`kills.json.gz`) says which planted faults each test catches, the committed histories (`results/sweeps`)
which changes between releases it showed. `core` has of each clause its quickest judged test (if
the clause is a MUST or the test takes less than 1 s), for each fault and change
that any test shows one that shows it, generated programs for at least a quarter of its time, and then whatever adds
most for its seconds. `quick` is a greedy cover of clauses, faults and changes in its seconds, of judged tests only.
"""

import heapq
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from conformance.runner.baselines import BASELINES
from conformance.runner.plugin import TIMED
from conformance.runner.selection import FOLDER, Selection, write
from conformance.spec.clauses import Level, load_clauses
from conformance.test_ids import node_of
from frameworks.registry import adapter_file
from results.record.files import RecordError
from results.record.model import UNJUDGED, Outcome
from results.record.reading import Record, TestVerdict, load
from tools.docs.blocks import read_committed_records
from tools.faults import engine

CORE_S = {
    "reference-emulated": 300.0,
    "torch-eager": 80.0,
    "torch-loop": 90.0,
    "tf-graph": 280.0,
    "paddle-dygraph": 56.0,
    "paddle-static": 144.0,
    "paddle-dygraph-forced-scaler": 45.0,
    "jax-jit": 255.0,
}
"""Seconds of work of `core`, by framework and mode; a run has two workers."""
QUICK_S = 42.0
"""Seconds of work of `quick`; the modes of a framework share them."""
GENERATED = 0.25
"""Least share of the time of `core` for generated programs, where a framework has as many."""
MORE = 1.12
"""Factor by which the choice aims above that share: tests are chosen whole, and the rest may exceed the limit."""
MISSED = 0.01
"""Greatest share of the faults of the reference, and of an adapter's, that `core` may miss."""
OPTIONAL_S = 1.0
"""Limit in seconds of a test in `core` for a clause that is no MUST."""
OVERHEAD_S = 0.02
"""Seconds that pytest adds to each test."""
CLAUSE_WEIGHT = 60.0
"""Value of the first test of a MUST clause, in faults."""
AGAIN = 0.5
"""Factor of a fault's value for each further test that catches it."""
ANY = 0.1
"""Additional value of any judged test, in faults, so that different tests are chosen."""
REFUSED = 0.002
"""Additional value of a refused test, in faults: that it is now supported is news, but no fault."""
ELSEWHERE = frozenset({"composition.declarations-hold", "composition.plain-way"})
"""Clauses about other people's calls, which another version of an adapter changes: mostly for `all`."""
LAWS = "laws."
CHANGE = "change: "
"""Prefix of the ids of changes among those of faults."""
LINES = BASELINES.parent / "sweeps"


@dataclass(frozen=True)
class Candidate:
    """A test that may be chosen.

    Attributes:
        seconds: duration, with pytest's overhead.
        faults: the planted faults that it catches, none if it does not pass.
        must: its clause if that is a MUST, else "".
    """

    test: str
    seconds: float
    faults: frozenset[str]
    must: str
    judged: bool

    @property
    def clause(self) -> str:
        """The id of its clause."""
        return self.test.partition("/")[0]


def order_candidates(candidates: Iterable[Candidate]) -> list[Candidate]:
    """The candidates by what each adds per second to the ones before it (a greedy cover, lazily evaluated)."""
    caught: Counter[str] = Counter()
    judged_clauses: set[str] = set()

    def value_per_second(entry: Candidate) -> float:
        fresh = sum(AGAIN ** caught[fault] for fault in entry.faults)
        clause = CLAUSE_WEIGHT * bool(entry.judged and entry.must and entry.must not in judged_clauses)
        return ((ANY if entry.judged else REFUSED) + fresh + clause) / entry.seconds

    heap = [(-value_per_second(entry), entry.test, entry) for entry in candidates]
    heapq.heapify(heap)
    order: list[Candidate] = []
    while heap:
        _, test, best = heapq.heappop(heap)
        value = value_per_second(best)
        if heap and value < -heap[0][0]:
            heapq.heappush(heap, (-value, test, best))
            continue
        order.append(best)
        caught.update(best.faults)
        judged_clauses.add(best.must)
    return order


def caught_by(framework: str, matrix: Mapping[str, Sequence[str]]) -> dict[str, set[str]]:
    """The faults of the reference and of an adapter that each test catches; also each function, by any of its cases."""
    result: dict[str, set[str]] = defaultdict(set)
    for fault, tests in matrix.items():
        if fault.startswith(("reference.", f"{framework}.")):
            for test in tests:
                result[test].add(fault)
                result[test.partition("[")[0]].add(fault)
    return result


def changes_of(framework: str, mode: str, folder: Path = LINES) -> dict[str, set[str]]:
    """The changes between releases of a framework or its packages that each test showed in a mode, by the histories."""
    result: dict[str, set[str]] = defaultdict(set)
    for path in sorted(folder.glob("*.json")):
        for line in json.loads(path.read_text("utf-8"))["lines"]:
            if (line["framework"], line["mode"]) != (framework, mode):
                continue
            for clause, history in line["clauses"].items():
                for point in history.get("points", ()):
                    change = f"{CHANGE}{line['package']} {line['mode']} {clause} {point['between']}"
                    cases = [case for key in ("passes", "fails", "unsupported") for case in point.get(key, ())]
                    for case in [*cases, *(case for case, *_ in point.get("otherwise", ()))]:
                        result[f"{clause}/{case}"].add(change)
    return result


def candidates_of(
    record: Record, faults: Mapping[str, set[str]], changes: Mapping[str, set[str]] | None = None
) -> list[Candidate]:
    """The tests of a record that can be chosen; a change counts as a fault, whatever the test does now."""
    clauses = load_clauses()

    def candidate(verdict: TestVerdict) -> Candidate:
        clause = clauses[verdict.clause]
        passing = verdict.outcome is Outcome.PASS
        caught = faults.get(verdict.test, faults.get(verdict.test.partition("[")[0], set())) if passing else set()
        caught = caught | (changes or {}).get(verdict.test, set())
        seconds = verdict.duration_s * (2 if clause.id in TIMED else 1) + OVERHEAD_S
        must = clause.id if clause.level is Level.MUST else ""
        return Candidate(verdict.test, seconds, frozenset(caught), must, verdict.outcome not in UNJUDGED)

    return [candidate(verdict) for verdict in record.verdicts if node_of(verdict.test) is not None]


def select_needed(candidates: Sequence[Candidate]) -> list[Candidate]:
    """The quickest test of each clause, a judged one if there is any, and a cover of the faults.

    A clause that is no MUST has no test here if its quickest one takes more than `OPTIONAL_S`. The cover has every
    change, and all faults of the reference and of the adapter except a share `MISSED` of each with the longest tests.
    """
    first: dict[str, Candidate] = {}
    for entry in sorted(candidates, key=lambda entry: (not entry.judged, entry.seconds)):
        if entry.must or entry.seconds <= OPTIONAL_S:
            first.setdefault(entry.clause, entry)
    chosen = {entry.test: entry for entry in first.values()}
    every = {fault for entry in candidates for fault in entry.faults}
    uncaught = every - {fault for entry in chosen.values() for fault in entry.faults}
    spare = {kind: int(MISSED * count) for kind, count in Counter(map(_kind, every)).items()}
    spare[CHANGE] = 0
    while any(count > spare[kind] for kind, count in Counter(map(_kind, uncaught)).items()):
        best = max(candidates, key=lambda entry: len(uncaught & entry.faults) / entry.seconds)
        chosen[best.test] = best
        uncaught -= best.faults
    return list(chosen.values())


def _kind(fault: str) -> str:
    return CHANGE if fault.startswith(CHANGE) else fault.partition(".")[0]


def core_of(candidates: Sequence[Candidate], limit: float) -> set[str]:
    """The tests of `core` within a time limit, which only the clauses and faults may exceed."""
    chosen = {entry.test: entry for entry in select_needed(candidates)}
    order = [entry for entry in order_candidates(candidates) if entry.test not in chosen]
    generated = [entry for entry in order if entry.clause.startswith(LAWS)]
    rest = [entry for entry in order if entry.clause not in ELSEWHERE and entry not in generated]

    def spend(tests: Sequence[Candidate], seconds: float) -> None:
        for entry in tests:
            if entry.seconds <= seconds:
                chosen[entry.test] = entry
                seconds -= entry.seconds

    def sum_seconds(prefix: str = "") -> float:
        return sum(entry.seconds for entry in chosen.values() if entry.clause.startswith(prefix))

    spend(generated, MORE * GENERATED * limit - sum_seconds(LAWS))
    spend(rest, limit - sum_seconds())
    return {*chosen}


def quick_of(candidates: Sequence[Candidate], limit: float) -> set[str]:
    """The tests of `quick`."""
    chosen: set[str] = set()
    for entry in order_candidates(entry for entry in candidates if entry.judged):
        if entry.seconds <= limit:
            chosen.add(entry.test)
            limit -= entry.seconds
    return chosen


def cases(tests: Iterable[str]) -> dict[str, list[str]]:
    """Cases by CLAUSE/function, as a selection has them."""
    result: dict[str, list[str]] = defaultdict(list)
    for test in sorted(tests):
        function, _, case = test.partition("[")
        result[function].append(case.removesuffix("]"))
    return result


def make(record: Record, matrix: Mapping[str, Sequence[str]]) -> None:
    """Writes a record's selection, and prints one line with its counts."""
    loop = "." in record.series.framework
    framework = "torch" if loop else record.series.framework
    name = f"{framework}-{record.series.mode}"
    modes = 1 if loop else len(adapter_file(framework).modes) or 1
    candidates = candidates_of(record, caught_by(framework, matrix), changes_of(framework, record.series.mode))
    core, quick = core_of(candidates, CORE_S[name]), quick_of(candidates, QUICK_S / modes)
    write(FOLDER / f"{name}.json", Selection(cases(quick), cases({entry.test for entry in candidates} - core)))

    def counts(tests: set[str]) -> str:
        selected = [entry for entry in candidates if entry.test in tests]
        every = {fault for entry in candidates for fault in entry.faults}
        caught = {fault for entry in selected for fault in entry.faults}
        changes = [sum(fault.startswith(CHANGE) for fault in faults) for faults in (caught, every)]
        must = {entry.must for entry in candidates if entry.judged} - {""}
        judged = {entry.must for entry in selected if entry.judged} - {""}
        seconds = sum(entry.seconds for entry in selected)
        laws = sum(entry.seconds for entry in selected if entry.clause.startswith(LAWS)) / seconds
        return (
            f"{len(selected)} of {len(candidates)} tests, {seconds:.0f} s ({laws:.0%} generated), "
            f"{len(judged)} of {len(must)} MUST clauses, "
            f"{len(caught) - changes[0]} of {len(every) - changes[1]} faults, {changes[0]} of {changes[1]} changes"
        )

    print(f"{name}: quick {counts(quick)}; core {counts(core)}", flush=True)


def main(arguments: Sequence[str]) -> int:
    """Makes the selections of the named records; returns the exit status."""
    matrix = engine.read()
    try:
        for record in [load(Path(path)) for path in arguments] or read_committed_records():
            name = f"{record.series.framework}-{record.series.mode}"
            if arguments or (name in CORE_S and record.series.device == "cpu"):
                make(record, matrix)
    except RecordError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
