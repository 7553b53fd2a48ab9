"""What is collected: expressions that select tests, and parameters whose values the framework decides."""

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from _pytest.mark.expression import Expression

from conformance.checks.combinations import rows
from conformance.known_failures.reading import Known
from conformance.runner.ways import PARAMETERS, Ways
from conformance.test_ids.inventory import code_of, id_of
from frameworks.contract import SHIPPED, Framework


def check_expressions(config: pytest.Config) -> None:
    """Reads the expressions of `-k` and `-m`, which every worker would refuse by itself.

    Raises:
        ValueError: an expression is none.
    """
    for option, name in (("-k", "keyword"), ("-m", "markexpr")):
        expression = getattr(config.option, name, "")
        if expression and (problem := problem_of(expression)):
            raise ValueError(f"{option}: got {expression!r}, want an expression such as 'a and not b': {problem}")


def problem_of(expression: str) -> str:
    """Why pytest cannot read an expression, "" if it can."""
    try:
        Expression.compile(expression)
    except SyntaxError as error:
        return str(error.args[0])
    return ""


def parametrize(metafunc: pytest.Metafunc, framework: Framework, known: Known, ways: Ways) -> None:
    """Gives a test the values of its parameters.

    `variant`: every recomputation variant that the framework offers; `row`: every row of its covering array;
    `workaround`: every workaround that its adapter declares; `way`: every way that it declares here;
    `operation_technique` and others of `SHIPPED`: every technique that such parts are judged with.
    """
    if "variant" in metafunc.fixturenames:
        variants = framework.recompute_variants() or (None,)
        metafunc.parametrize("variant", variants, ids=[variant or "default" for variant in variants])
    if "function_way" in metafunc.fixturenames:
        function_ways = tuple(framework.function_ways()) or (None,)
        metafunc.parametrize("function_way", function_ways, ids=[way or "default" for way in function_ways])
    for part in SHIPPED:
        if (name := f"{part[:-1]}_technique") in metafunc.fixturenames:
            supported = framework.declares(SHIPPED[part]).supported
            techniques = framework.get_shipped(part).techniques() if supported else (None,)
            metafunc.parametrize(name, techniques, ids=[technique or "default" for technique in techniques])
    if "workaround" in metafunc.fixturenames:
        metafunc.parametrize("workaround", known.workarounds, ids=[w.finding.id for w in known.workarounds])
    for name in PARAMETERS.keys() & {*metafunc.fixturenames}:
        chosen_ways = [way for way in ways.offered if PARAMETERS[name](way)]
        metafunc.parametrize(name, chosen_ways, ids=map(str, chosen_ways))
    for name in {"row", "dropping_row"} & {*metafunc.fixturenames}:
        chosen = [row for row in rows(framework) if name == "row" or row.dropout]
        metafunc.parametrize(name, chosen, ids=[row.label for row in chosen])


FOLDER = Path(__file__).with_name("selections")
QUICK, CORE, ALL = "quick", "core", "all"
NAMES = (QUICK, CORE, ALL)
OWN_LOOP = "loop"
"""The mode of users' own loops, which have a selection of their own."""


@dataclass(frozen=True)
class Selection:
    """The tests of one framework and mode that `quick` consists of, and those that `core` leaves out.

    Attributes:
        quick, left_out: cases by CLAUSE/function: the text between the brackets, "" for a test without parameters.
    """

    quick: Mapping[str, Sequence[str]] = field(default_factory=dict)
    left_out: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def has(self, test: str, name: str) -> bool:
        """Whether a test, CLAUSE/function[parameters], is in the selection of this name."""
        function, _, case = test.partition("[")
        case = case.removesuffix("]")
        if name == QUICK:
            return case in self.quick.get(function, ())
        return name == ALL or case not in self.left_out.get(function, ())


def path_of(framework: str, mode: str, folder: Path = FOLDER) -> Path | None:
    """The file of a framework and mode; else of the framework's other modes, or else of the reference; None if empty.

    The first file of a framework is taken for its modes without a file; own loops have one for all.
    """
    paths = sorted(folder.glob("*.json"))
    own = [path for path in paths if path.stem.startswith(f"{framework}-") and not path.stem.endswith(f"-{OWN_LOOP}")]
    exact = [path for path in paths if path.stem == f"{framework}-{mode}"]
    loops = [path for path in paths if mode == OWN_LOOP and path.stem.endswith(f"-{OWN_LOOP}")]
    reference = [path for path in paths if path.stem.startswith("reference-")]
    return next(iter([*exact, *loops, *own, *reference]), None)


def read(path: Path | None) -> Selection:
    """The selection of a file, an empty one without a file."""
    if path is None:
        return Selection()
    content = json.loads(path.read_text("utf-8"))
    return Selection(content["quick"], content["left out of core"])


def write(path: Path, selection: Selection) -> None:
    """Writes a selection, one line for each function, so that a difference can be read."""

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

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Deselects the other tests."""
        kept = [item for item in items if code_of(item.nodeid) and self._selection.has(id_of(item.nodeid), self._name)]
        names = {item.nodeid for item in kept}
        self._config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in names])
        items[:] = kept


def durations(name: str, mode: str, device: str, folder: Path | None = None) -> dict[str, float]:
    """Seconds of each test in the nearest baseline of a framework; also of each function, the median of its cases.

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
