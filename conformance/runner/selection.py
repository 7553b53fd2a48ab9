"""The tests of a run: `--tests quick|core|all`, `--way TECHNIQUE.NAME`, and the tests that a run left out.

`quick` takes about a minute, and `core` is the default of a run. Both are fixed selections, stored as data for each
framework and mode; `python -m tools selections` makes the files from the faults that tests catch and the seconds that
they take. A test that is in no file belongs to `core`, so a new clause is tested before its tests are measured.

With `--way`, which replaces the public call of a technique, only tests that may use the technique run.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pluggy import HookimplMarker

from conformance.checks.checkpoints import SavedRun
from conformance.fingerprints.cases import JudgedKind
from conformance.spec.clauses import Workaround
from conformance.test_ids import SUITES, TestCode, code_of, id_of, inventory
from fixtures.recipe import LEVELS_OF
from frameworks.registry import built_in
from frameworks.ways import Way, find_installed_ways, sets
from results.record.files import one_line

if TYPE_CHECKING:
    import pytest

    from frameworks.contract import Framework
    from results.record.model import Status, TestVerdict

FOLDER = Path(__file__).with_name("selections")
QUICK, CORE, ALL = "quick", "core", "all"
NAMES = (QUICK, CORE, ALL)
OWN_LOOP = "loop"
"""The mode of users' own training loops; one selection is for all of them."""

PARAMETERS: Mapping[str, Callable[[Way], bool]] = {
    "way": lambda way: way.technique not in LEVELS_OF,
    "rank_way": lambda way: way.technique in LEVELS_OF,
    "file_way": lambda way: way.technique in ("load", "save"),
    "rate_way": lambda way: way.technique in ("optimizer", "schedule"),
}
"""Test parameters whose values are ways of the framework's mode, each with the condition on its ways."""

_CLAUSE = "composition.ways"
_FIELDS = {"average", "clip", "recompute", "scaling", "schedule"}
"""Techniques with a field of that name in a recipe."""
_SAVED = ("sav", "resum", "restor", "checkpoint", "load")
"""Parts of the names of tests that write and read a checkpoint."""
_OUTPUT = "conformance-left-out"
_NAMED = 3
_PARAMETERS = {
    "workaround": Workaround,
    "judged_kind": JudgedKind,
    "saved_run": SavedRun,
    **dict.fromkeys(PARAMETERS, Way),
}
"""Types of test parameters for which a framework may have no values."""

_hookimpl = HookimplMarker("pytest")
"""`pytest.hookimpl`, without the import of pytest, which takes long."""


@dataclass(frozen=True)
class Selection:
    """The tests of one framework and mode that are in `quick`, and those that are not in `core`.

    Attributes:
        quick, left_out: cases by CLAUSE/function: the text between the brackets, "" for a test without parameters.
    """

    quick: Mapping[str, Sequence[str]] = field(default_factory=dict)
    left_out: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def has(self, test: str, name: str) -> bool:
        """Return whether a test, CLAUSE/function[parameters], is in the selection with this name."""
        function, _, case = test.partition("[")
        case = case.removesuffix("]")
        if name == QUICK:
            return case in self.quick.get(function, ())
        return name == ALL or case not in self.left_out.get(function, ())


def path_of(framework: str, mode: str, folder: Path = FOLDER) -> Path | None:
    """Return the file of a framework and mode, else the framework's first file, else the reference's; None without any.

    All users' own loops share one file.
    """
    paths = sorted(folder.glob("*.json"))
    own = [path for path in paths if path.stem.startswith(f"{framework}-") and not path.stem.endswith(f"-{OWN_LOOP}")]
    exact = [path for path in paths if path.stem == f"{framework}-{mode}"]
    loops = [path for path in paths if mode == OWN_LOOP and path.stem.endswith(f"-{OWN_LOOP}")]
    reference = [path for path in paths if path.stem.startswith("reference-")]
    return next(iter([*exact, *loops, *own, *reference]), None)


def read(path: Path | None) -> Selection:
    """Return the selection in a file, an empty one without a file."""
    if path is None:
        return Selection()
    content = json.loads(path.read_text("utf-8"))
    return Selection(content["quick"], content["left out of core"])


def write(path: Path, selection: Selection) -> None:
    """Write a selection, one line for each function, so that differences are readable."""

    def lines(functions: Mapping[str, Sequence[str]]) -> str:
        return ",\n".join(f"{json.dumps(name)}: {json.dumps(sorted(functions[name]))}" for name in sorted(functions))

    path.parent.mkdir(exist_ok=True)
    text = f'{{"quick": {{\n{lines(selection.quick)}\n}},\n"left out of core": {{\n{lines(selection.left_out)}\n}}}}\n'
    path.write_text(text, "utf-8")


class SelectedTests:
    """Plugin of every process: keeps the tests of a selection."""

    def __init__(self, config: pytest.Config, framework: Framework, name: str) -> None:
        self._config, self._name = config, name
        self._selection = read(path_of(framework.name, framework.mode))

    @_hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Deselect the tests outside the selection."""
        kept = [item for item in items if code_of(item.nodeid) and self._selection.has(id_of(item.nodeid), self._name)]
        names = {item.nodeid for item in kept}
        self._config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in names])
        items[:] = kept


@dataclass(frozen=True)
class Ways:
    """The ways of the framework's mode, and the ways that the run has chosen."""

    offered: tuple[Way, ...] = ()
    chosen: tuple[Way, ...] = ()


def chosen_ways(adapter: str, framework: Framework, names: Sequence[str]) -> Ways:
    """Return the ways of a run; the name "set-N" stands for the N-th way of each technique.

    Raises:
        ValueError: the framework has no such way in this mode, or two ways are of one technique.
    """
    ways = find_installed_ways(framework.name if framework.name in built_in() else adapter, framework.mode)
    named = {str(way): (way,) for way in ways} | {f"set-{n}": group for n, group in enumerate(sets(ways), start=1)}
    for name in names:
        if name not in named:
            raise ValueError(
                f"{framework.name} has no way {name!r} in mode {framework.mode}: one of {', '.join(named) or 'none'}"
            )
    chosen = tuple(way for name in names for way in named[name])
    if len({way.technique for way in chosen}) < len(chosen):
        raise ValueError(f"--way got {', '.join(names)}, want at most one of each technique")
    return Ways(ways, chosen)


def may_use(verdict: TestVerdict, technique: str) -> bool:
    """Return whether a test may use a technique, judged by the training runs of an earlier verdict."""
    if technique in ("save", "load"):
        return any(part in verdict.test for part in _SAVED)
    if technique in LEVELS_OF and verdict.test.startswith("sharding."):
        return True
    return any(_uses(run.recipe, technique) for run in verdict.runs)


def _uses(recipe: Mapping[str, Any], technique: str) -> bool:
    if technique == "autocast":
        return bool(recipe.get("precision", {}).get("level") == "O1")
    if technique in LEVELS_OF:
        return (recipe.get("ranks") or {}).get("level") in LEVELS_OF[technique]
    return technique not in _FIELDS or recipe.get(technique) is not None


class WayTests:
    """Plugin of every process: deselects tests that did not use the chosen techniques in the nearest baseline."""

    def __init__(self, framework: Framework, ways: Ways) -> None:
        verdicts = _baseline_verdicts(framework.name, framework.mode, framework.device)
        techniques = [way.technique for way in ways.chosen]
        self._known: Collection[str] = {verdict.test for verdict in verdicts}
        self.due = {v.test for v in verdicts if any(may_use(v, technique) for technique in techniques)}

    @_hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Keep the tests that may use a chosen technique, and the tests that the baseline does not have."""
        tests = {item: id_of(item.nodeid) for item in items if code_of(item.nodeid) is not None}
        due = {test for test in tests.values() if test in self.due or test not in self._known}
        selection = [item for item, test in tests.items() if test in due and not test.startswith(f"{_CLAUSE}/")]
        config.hook.pytest_deselected(items=[item for item in items if item not in selection])
        items[:] = selection


class Completeness:
    """Plugin of every process: drops the families that a mode lacks, records what was collected and deselected.

    Under pytest-xdist each worker reports its deselected tests to the controller when it ends.
    """

    def __init__(self, config: pytest.Config, lacks: Collection[str]) -> None:
        self._config, self._lacks = config, lacks
        self.tests: set[str] = set()
        self._left_out: list[list[str]] | None = None  # test functions not collected, and tests deselected

    @_hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> Generator[None]:
        """Compare the collected tests with the inventory, and with the tests that all plugins have selected."""
        items[:] = [item for item in items if (code := code_of(item.nodeid)) is None or not self._is_lacking(code)]
        collected = {item.nodeid: _has_parameters(item) for item in items if code_of(item.nodeid) is not None}
        items[:] = [item for item in items if collected.get(item.nodeid, True)]
        yield
        functions = {code.function for test in collected if (code := code_of(test))}
        selected = {item.nodeid for item in items}
        self.tests |= {id_of(test) for test in selected & collected.keys()}
        self._left_out = [
            sorted(c.id for name, c in inventory().items() if name not in functions and not self._is_lacking(c)),
            sorted(id_of(test) for test, has_case in collected.items() if has_case and test not in selected),
        ]
        if hasattr(self._config, "workeroutput"):
            self._config.workeroutput[_OUTPUT] = self._left_out

    def _is_lacking(self, code: TestCode) -> bool:
        """Return whether the mode has no place for the family of a test's clause."""
        return code.clause.partition(".")[0] in self._lacks

    @_hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: Sequence[str]) -> None:
        """A worker has collected what all of them share."""
        self.tests.update(id_of(test) for test in ids if code_of(test) is not None)

    @_hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """A worker has ended; one that died reports nothing."""
        output: Mapping[str, Any] = getattr(node, "workeroutput", None) or {}
        self._left_out = output.get(_OUTPUT, self._left_out)

    def status(self, judged: Collection[str], *, completed: bool, selection: str) -> tuple[Status, list[str]]:
        """Return the status of the run's record, and notes on what the record lacks.

        Args:
            judged: tests that have a verdict.
            completed: whether the session was completed.
            selection: command-line words that selected tests, or "".
        """
        reasons = ("test functions were not collected", "tests were deselected")
        left_out = zip(reasons, self._left_out or (), strict=False)
        notes = [f"{len(tests)} {reason} ({_some(tests)})" for reason, tests in left_out if tests]
        if selection.startswith("--tests=") and self._left_out is not None:
            notes = [f"{selection}: {len(self.tests)} of {len(self.tests) + len(self._left_out[1])} tests"]
        unjudged = sorted(self.tests.difference(judged))
        if unjudged:
            notes.insert(0, f"{len(unjudged)} of {len(self.tests)} collected tests were not judged ({_some(unjudged)})")
        if unjudged or not completed or self._left_out is None:
            return "interrupted", notes
        return ("partial" if selection or notes else "complete"), notes


def _has_parameters(item: pytest.Item) -> bool:
    """Return whether the test has a parameter value; for a parameter without values, pytest adds one skipped test."""
    call = getattr(item, "callspec", None)
    wanted = _PARAMETERS.keys() & {*getattr(item, "fixturenames", ())}
    return all(call is not None and isinstance(call.params.get(name), _PARAMETERS[name]) for name in wanted)


def _some(names: Sequence[str]) -> str:
    text = ", ".join(name.partition("/")[2] for name in names[:_NAMED])
    return one_line(f"{text}{', ...' if names[_NAMED:] else ''}")


def selecting_options(config: pytest.Config) -> str:
    """Return the options that selected tests, as on the command line; "" if all tests run."""
    option = config.option
    arguments = [str(a) for a in config.args if not SUITES.is_relative_to(config.invocation_params.dir / str(a))]
    arguments += [f"-k {option.keyword}"] if option.keyword else []
    arguments += [f"-m {option.markexpr}"] if option.markexpr else []
    arguments += [f"--deselect={prefix}" for prefix in option.deselect or ()]
    arguments += [f"--ignore={path}" for path in option.ignore or ()]
    arguments += [f"--ignore-glob={path}" for path in option.ignore_glob or ()]
    arguments += [f"--tests={option.tests}"] if option.tests != ALL else []
    return " ".join(arguments)


def durations(name: str, mode: str, device: str, folder: Path | None = None) -> dict[str, float]:
    """Return the seconds of each test in a framework's nearest baseline, and of each function the median of its cases.

    Raises:
        RecordError: a baseline cannot be read.
    """
    seconds = {verdict.test: verdict.duration_s for verdict in _baseline_verdicts(name, mode, device, folder)}
    cases: dict[str, list[float]] = {}
    for test, duration in seconds.items():
        cases.setdefault(test.partition("[")[0], []).append(duration)
    return {**{function: statistics.median(times) for function, times in cases.items()}, **seconds}


def _baseline_verdicts(name: str, mode: str, device: str, folder: Path | None = None) -> tuple[TestVerdict, ...]:
    """Return the verdicts of a framework's nearest baseline, none without any baseline."""
    from conformance.runner.baselines import BASELINES, nearest  # takes long, and `conformance run --help` is quick
    from results.record.reading import load

    path = nearest(name, mode, device, folder or BASELINES)
    return () if path is None else load(path).verdicts
