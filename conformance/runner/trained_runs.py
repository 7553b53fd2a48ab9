"""The training runs behind a verdict: fixture and recipe of every trainer made during a test."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, is_dataclass, replace
from typing import Any

from fixtures.arrays import Array
from fixtures.model import Model
from fixtures.recipe import Recipe, written
from frameworks.contract import Framework, Trainer
from results.record.model import RunSetup

FOLDER = "FOLDER"
"""Placeholder for a folder of offloaded files, so that equal runs give equal records."""


def described(run: RunSetup) -> str:
    """The run in one line, for a failure's message."""
    parts = ", ".join(f"{name}={_text(value)}" for name, value in run.recipe.items())
    return f"{run.fixture} under {parts or 'the default recipe'}"


def run_of(model: Model, recipe: Recipe) -> RunSetup:
    """The record of a run of this model; a folder of offloaded files becomes `FOLDER`.

    A field of the recipe that is a data class itself holds its class under "kind" next to its own fields.
    """
    if recipe.offload is not None and recipe.offload.folder is not None:
        recipe = recipe.replace(offload=replace(recipe.offload, folder=FOLDER))
    default = Recipe()
    given = {field.name: getattr(recipe, field.name) for field in fields(Recipe)}
    changed = {name: _plain(value) for name, value in given.items() if value != getattr(default, name)}
    return RunSetup(model.name, changed)


@contextmanager
def recorded_runs(framework: Framework) -> Iterator[list[RunSetup]]:
    """Collects the distinct runs that the framework makes within the context.

    The list stays empty for a framework whose instances accept no attributes.
    """
    runs: list[RunSetup] = []
    make = framework.trainer

    def trainer(model: Model, recipe: Recipe, weights: Mapping[str, Array] | None = None) -> Trainer:
        run = run_of(model, recipe)
        if run not in runs:
            runs.append(run)
        return make(model, recipe, weights)

    replaced = vars(framework).get("trainer") if hasattr(framework, "__dict__") else None
    try:
        framework.trainer = trainer  # type: ignore[method-assign]
    except AttributeError:
        yield runs
        return
    try:
        yield runs
    finally:
        if replaced is None:
            del framework.trainer
        else:
            framework.trainer = replaced  # type: ignore[method-assign]


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return {"kind": type(value).__name__} | {name: _plain(part) for name, part in written(value).items()}
    return [_plain(each) for each in value] if isinstance(value, tuple) else value


def _text(value: Any) -> str:
    if not isinstance(value, Mapping):
        return f"{value:g}" if isinstance(value, float) else str(value)
    parts = [f"{name}={_text(part)}" for name, part in value.items() if name != "kind" and part is not None]
    return f"{value['kind']}({', '.join(parts)})"
