"""The job of one framework: run the suites in each of its modes, and compare the records with the baselines."""

import os
import shlex
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise, product
from pathlib import Path

from rich.console import Console

from conformance.runner import cost
from conformance.runner.baselines import FOREIGN, former
from conformance.runner.retry import repeat, repeatable
from conformance.runner.subprocesses import killed_by, run_to_end
from frameworks.installer import install
from results.compare.comparison import NONE, Comparisons, compare_sets
from results.record.files import one_line
from results.record.folders import LAST_RUNS
from results.record.reading import Record, load
from results.show.clauses import number
from results.show.differences import draw
from results.show.table import draw as draw_table

ROOT = Path(__file__).parents[2]
_JUNIT = ("--junitxml", "--junit-xml")
_FILES = ("--record", *_JUNIT)
"""Options with a file name; relative names are resolved first, because pytest runs in the suite's folder."""

NO_TEST = "no test is selected; correct the selection"

RESTARTS = 1000
"""Largest number of replaced workers before the run is given up; each test kills at most one worker."""


def _command(framework: str, mode: str, device: str, workers: int) -> list[str]:
    command = [sys.executable, "-m", "pytest", f"--numprocesses={workers}", f"--max-worker-restart={RESTARTS}"]
    command += ["--dist=worksteal", "--timeout=120", "-p", "no:benchmark"]  # which would make a folder
    return [*command, f"--framework={framework}", f"--device={device}", *([f"--mode={mode}"] if mode else [])]


def _find_refusal(command: Sequence[str], arguments: Sequence[str]) -> str:
    """Return why pytest refuses the arguments, "" if it accepts them; with this option it only parses them."""
    parsed = subprocess.run([*command, "--version", "--version", *arguments], cwd=ROOT, capture_output=True, text=True)
    if parsed.returncode != 4:
        return ""
    return f"pytest refuses its arguments: {reason_of(parsed.stderr)}"


def reason_of(output: str) -> str:
    """Return the line of pytest's output with the reason why it ended, without pytest's prefix."""
    lines = [line for line in output.splitlines() if line.strip()]
    marked = [line.partition(mark)[2] for mark in ("error: ", "Exit: ", "ERROR: ") for line in lines if mark in line]
    return (marked or lines or ["a bad option"])[0]


def judge(framework: str, mode: str, device: str, workers: int, arguments: Sequence[str]) -> int:
    """Run the suites in a separate process and repeat regressions.

    Returns:
        pytest's exit status: 5 if no test was selected; 0 also if no failure occurred again when repeated.
    """
    start = time.time()
    arguments = _replace_paths(arguments, _FILES, os.path.abspath)
    status = run_to_end([*_command(framework, mode, device, workers), *arguments], ROOT)
    if name := killed_by(status):
        remedy = "it left no journal, so run it again"
        if journals := _find_written(arguments, start, ".jsonl"):
            remedy = f"its verdicts so far are in its journal: conformance table {shlex.join(map(str, journals))}"
        print(f"\n{one_line(f'conformance: {name} killed the run; {remedy}')}", file=sys.stderr)
    if status not in (0, 1) or not repeatable(arguments):
        return status
    limits = [f"--timeout={value}" for value in _values(arguments, "--timeout")]
    for path in _find_written(arguments, start):
        repeated = repeat(path, [*_command(framework, mode, device, 1), *limits])
        for line in repeated.lines:
            print(line, flush=True)
        if (repeated.unstable or repeated.late) and not any(
            verdict.outcome.bad for verdict in repeated.record.verdicts
        ):
            status = 0
    return status


def _replace_paths(arguments: Sequence[str], options: Sequence[str], replace: Callable[[str], str]) -> list[str]:
    """Return the arguments with the paths that follow these options replaced."""
    result: list[str] = []
    for before, word in zip(("", *arguments), arguments, strict=False):
        option, equals, path = word.partition("=")
        if before in options:
            word = replace(word)
        elif equals and option in options:
            word = f"{option}={replace(path)}"
        result.append(word)
    return result


def _find_written(arguments: Sequence[str], start: float, ending: str = ".json") -> list[Path]:
    """Return the records, or journals, that a run with these arguments has written since `start`."""
    chosen = [Path(value).with_suffix(ending) for value in _values(arguments, "--record")]
    places = chosen[-1:] or sorted(LAST_RUNS.glob(f"*{ending}"))
    return [path for path in places if path.is_file() and path.stat().st_mtime >= start]


def selects(arguments: Sequence[str]) -> bool:
    """Return whether pytest's arguments select tests by themselves: by an expression, a file or a node id."""
    options = ("-k", "-m", "--deselect", "--ignore", "--tests")
    return any(word.startswith(options) or "::" in word or (ROOT / word).exists() for word in arguments)


def _values(arguments: Sequence[str], option: str) -> list[str]:
    """Return all values that the arguments give an option."""
    values = [word for before, word in pairwise(("", *arguments)) if before == option]
    return [*values, *(word.partition("=")[2] for word in arguments if word.startswith(f"{option}="))]


def _add_suffix(suffix: str, path: str) -> str:
    """Return the path of a JUnit report with a mode's suffix, so that each mode has its own report."""
    name, ending = os.path.splitext(path)
    return f"{name}{suffix}{ending}"


def job(
    framework: str, modes: Sequence[str], device: str, arguments: Sequence[str], ways: Sequence[Sequence[str]] = ((),)
) -> int:
    """Judge a framework in some modes ("" for its first) and print how its records differ from the baselines.

    Two workers share the tests of a mode, with a fixed split if the mode is serial. `arguments` are passed to pytest.

    Args:
        ways: ways of techniques; each element gives one run in each mode.

    Returns:
        2 if a run could not be made, or no run had a test; 1 if a test failed that no expectation names, or an
        expected failure is fixed; else 0.
    """
    if problem := _find_refusal(_command(framework, modes[0], device, 1), arguments):
        print(one_line(f"conformance: {problem}; `python -m pytest --help` has the options"), file=sys.stderr)
        return 2
    if problem := install.lacking(framework, modes):
        print(one_line(f"conformance: {problem}"), file=sys.stderr)
        return 2
    start, spent = time.time(), cost.measure_child_time()
    yardstick = cost.Yardstick() if os.environ.get("CI") else None
    statuses = []
    runs = [*product(modes, ways)]
    for mode, chosen in runs:
        suffix = f"-{'+'.join((mode, *chosen))}" if runs[1:] else ""
        own = _replace_paths(arguments, _JUNIT, partial(_add_suffix, suffix))
        own += [f"--way={way}" for way in chosen]
        statuses.append(judge(framework, mode, device, 2, own))
    units = (cost.measure_child_time() - spent) / yardstick.stop() if yardstick is not None else None
    if all(status == 5 for status in statuses):
        selecting = " ".join(word for word in arguments if word != "--tests=all")
        print(one_line(f"conformance: {NO_TEST} ({selecting})"), file=sys.stderr)
        return 2
    if any(status not in (0, 1, 5) for status in statuses):
        return 2
    paths = sorted(LAST_RUNS.glob("*.json"))
    new = {path: load(path) for path in paths if path.stat().st_mtime >= start}
    if new:
        draw_table([*new.values()], Console())
    if new and len(new) < len(paths):
        print(f"`conformance table` shows them next to {len(paths) - len(new)} of earlier runs", flush=True)
    too_costly = bool(new) and ":" not in framework and _conclude(framework, new, arguments, units)
    return 1 if too_costly or 1 in statuses else 0


def _conclude(framework: str, records: Mapping[Path, Record], arguments: Sequence[str], units: float | None) -> bool:
    """Print how records differ from the baselines; return whether the run has cost too much.

    Args:
        units: the cost of the run in yardsticks, None if it was not measured.
    """
    compared = [_beside_baseline(path, record) for path, record in records.items()]
    summary = conclusion([*records.values()], compared)
    if units is None:
        print(summary)
        return False
    tests = next((word.partition("=")[2] for word in arguments if word.startswith("--tests=")), "")
    line, over = cost.judge(framework, tests if arguments[1:] == [] else "", units)
    print(*((summary, line) if over else (line, summary)), sep="\n")
    return over


def _beside_baseline(path: Path, record: Record) -> Comparisons:
    result = former(record)
    if result is None:
        print(f"{one_line(path.name)}: no baseline of its series; `conformance accept` makes it one")
        return NONE
    baseline_path, baseline = result
    print(one_line(f"against results/baselines/{baseline_path.name}:"))
    comparisons = compare_sets([baseline], [record])
    draw(comparisons, Console(), brief=True)
    return comparisons


def conclusion(records: Sequence[Record], compared: Sequence[Comparisons]) -> str:
    """Return the last line of a run: the number of tests that need action, or what is worse than in the baselines."""
    bad = [verdict for record in records for verdict in record.verdicts if verdict.outcome.bad]
    elsewhere = sum(verdict.message.startswith(FOREIGN) for verdict in bad)
    if bad:
        text = f"{number(len(bad), 'test')} need{'s' if len(bad) == 1 else ''} action"
        return f"{text}, {elsewhere} of them {FOREIGN}" if elsewhere else text
    if any(record.status == "interrupted" for record in records):
        return "the run did not end"
    changes = (change for comparisons in compared for pair in comparisons.pairs for change in pair.changes)
    worse = Counter(change.kind for change in changes if change.kind.worse)
    if worse:
        return f"worse than in the baseline: {', '.join(f'{count} {kind}' for kind, count in worse.items())}"
    return "nothing is worse"
