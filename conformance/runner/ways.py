"""Option `--way TECHNIQUE.NAME`, which runs the suites with a technique's other public call; runs behind a verdict."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any
from unittest.mock import patch

import pytest

from conformance.runner.baselines import nearest
from conformance.test_ids.inventory import code_of, id_of
from fixtures.arrays import Array
from fixtures.model import Model
from fixtures.recipe import LEVELS_OF, Recipe, collect_fields
from frameworks.contract import Framework, Trainer
from frameworks.registry import built_in
from frameworks.ways import Way, find_installed_ways, sets
from results.record.model import RunSetup, TestVerdict
from results.record.reading import load

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
_SAVED = ("save", "sav", "resum", "restor", "checkpoint", "load")
"""Parts of the names of tests that write and read a checkpoint."""


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
        result = nearest(framework.name, framework.mode, framework.device)
        verdicts = () if result is None else load(result).verdicts
        techniques = [way.technique for way in ways.chosen]
        self._known: Collection[str] = {verdict.test for verdict in verdicts}
        self.due = {v.test for v in verdicts if any(may_use(v, technique) for technique in techniques)}

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Keep the tests that may use a chosen technique, and the tests that the baseline does not have."""
        tests = {item: id_of(item.nodeid) for item in items if code_of(item.nodeid) is not None}
        due = {test for test in tests.values() if test in self.due or test not in self._known}
        selection = [item for item, test in tests.items() if test in due and not test.startswith(f"{_CLAUSE}/")]
        config.hook.pytest_deselected(items=[item for item in items if item not in selection])
        items[:] = selection


FOLDER = "FOLDER"
"""Placeholder for a folder of offloaded files, so that equal runs give equal records."""


def describe_run(run: RunSetup) -> str:
    """Return the run in one line, for a failure's message."""
    parts = ", ".join(f"{name}={_text(value)}" for name, value in run.recipe.items())
    return f"{run.fixture} under {parts or 'the default recipe'}"


def run_of(model: Model, recipe: Recipe) -> RunSetup:
    """Return the record of a training run of this model; a folder of offloaded files becomes `FOLDER`.

    A recipe field that is itself a dataclass stores the name of its class under "kind", next to its own fields.
    """
    if recipe.offload is not None and recipe.offload.folder is not None:
        recipe = recipe.replace(offload=replace(recipe.offload, folder=FOLDER))
    default = Recipe()
    values = {field.name: getattr(recipe, field.name) for field in fields(Recipe)}
    changed = {name: _plain(value) for name, value in values.items() if value != getattr(default, name)}
    return RunSetup(model.name, changed)


@contextmanager
def recorded_runs(framework: Framework) -> Iterator[list[RunSetup]]:
    """Collect the distinct training runs that the framework makes within the context.

    The list stays empty for a framework whose instances accept no attributes.
    """
    runs: list[RunSetup] = []
    make = framework.trainer

    def trainer(model: Model, recipe: Recipe, weights: Mapping[str, Array] | None = None) -> Trainer:
        run = run_of(model, recipe)
        if run not in runs:
            runs.append(run)
        return make(model, recipe, weights)

    with ExitStack() as stack:
        with suppress(AttributeError):
            stack.enter_context(patch.object(framework, "trainer", trainer))
        yield runs


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return {"kind": type(value).__name__} | {name: _plain(part) for name, part in collect_fields(value).items()}
    return [_plain(item) for item in value] if isinstance(value, tuple) else value


def _text(value: Any) -> str:
    if not isinstance(value, Mapping):
        return f"{value:g}" if isinstance(value, float) else str(value)
    parts = [f"{name}={_text(part)}" for name, part in value.items() if name != "kind" and part is not None]
    return f"{value['kind']}({', '.join(parts)})"
