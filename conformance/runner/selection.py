"""`--tests quick|core|all`: fixed selections of tests, stored as data for each framework and mode.

`quick` takes about a minute, and `core` is the default of a run. `python -m tools selections` makes the files from the
faults that tests catch and the seconds that they take. A test that is in no file belongs to `core`, so a new clause is
tested before its tests are measured.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from pluggy import HookimplMarker

from conformance.test_ids.inventory import code_of, id_of

if TYPE_CHECKING:
    import pytest

    from frameworks.contract import Framework

FOLDER = Path(__file__).with_name("selections")
QUICK, CORE, ALL = "quick", "core", "all"
NAMES = (QUICK, CORE, ALL)
OWN_LOOP = "loop"
"""The mode of users' own training loops; one selection is for all of them."""


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

    @HookimplMarker("pytest")(tryfirst=True)  # pytest.hookimpl, without the import of pytest
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Deselect the tests outside the selection."""
        kept = [item for item in items if code_of(item.nodeid) and self._selection.has(id_of(item.nodeid), self._name)]
        names = {item.nodeid for item in kept}
        self._config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in names])
        items[:] = kept


def durations(name: str, mode: str, device: str, folder: Path | None = None) -> dict[str, float]:
    """Return the seconds of each test in a framework's nearest baseline, and of each function the median of its cases.

    Raises:
        RecordError: a baseline cannot be read.
    """
    from conformance.runner.baselines import BASELINES, nearest  # takes long, and `conformance run --help` is quick
    from results.record.reading import load

    path = nearest(name, mode, device, folder or BASELINES)
    seconds = {} if path is None else {verdict.test: verdict.duration_s for verdict in load(path).verdicts}
    cases: dict[str, list[float]] = {}
    for test, taken in seconds.items():
        cases.setdefault(test.partition("[")[0], []).append(taken)
    return {**{function: statistics.median(taken) for function, taken in cases.items()}, **seconds}
