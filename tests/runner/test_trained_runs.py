"""A verdict names the fixtures and recipes that it rests on, and a failure says which run it saw."""

from pathlib import Path

from conformance.checks.subject import Subject
from conformance.runner.trained_runs import described, recorded_runs, run_of
from conformance.suites.composition import test_ways
from fixtures.models import exact_linear, exact_stack
from fixtures.recipe import BFLOAT16, Adam, DynamicScaling, Offload, Recipe, Recompute
from frameworks.reference import ReferenceFramework
from results.record.model import RunSetup

RECIPE = Recipe(Adam(0.5), BFLOAT16, DynamicScaling(initial=8.0), accumulation=2, recompute=Recompute(2))


def test_a_run_holds_what_differs_from_the_default_recipe() -> None:
    model = exact_stack()
    assert run_of(model, Recipe()) == RunSetup(model.name, {})
    run = run_of(model, RECIPE)
    assert run.recipe == {
        "optimizer": {"kind": "Adam", "learning_rate": 0.5, "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8},
        "precision": {"kind": "Precision", "level": "O1", "format": "bfloat16"},
        "scaling": {
            "kind": "DynamicScaling",
            "initial": 8.0,
            "growth": None,
            "backoff": None,
            "interval": None,
            "enabled": True,
        },
        "accumulation": 2,
        "recompute": {"kind": "Recompute", "segments": 2, "depth": 1, "variant": None},
    }
    assert described(run) == (
        f"{model.name} under optimizer=Adam(learning_rate=0.5, beta1=0.9, beta2=0.999, epsilon=1e-08), "
        "precision=Precision(level=O1, format=bfloat16), scaling=DynamicScaling(initial=8, enabled=True), "
        "accumulation=2, recompute=Recompute(segments=2, depth=1)"
    )


def test_a_run_is_the_same_wherever_its_files_were(tmp_path: Path) -> None:
    first, second = (
        Recipe(offload=Offload(("optimizer",), "disk", str(tmp_path / name))) for name in ("first", "second")
    )
    assert run_of(exact_stack(), first) == run_of(exact_stack(), second)
    assert str(tmp_path) not in described(run_of(exact_stack(), first))
    assert run_of(exact_stack(), first) != run_of(exact_stack(), Recipe(offload=Offload(("optimizer",), "disk")))


def test_runs_are_recorded_once_each_and_only_meanwhile() -> None:
    framework, model = ReferenceFramework("cpu"), exact_stack()
    with recorded_runs(framework) as runs:
        for recipe in (Recipe(), RECIPE, Recipe()):
            framework.trainer(model, recipe)
    framework.trainer(model, Recipe(accumulation=3))
    assert runs == [run_of(model, Recipe()), run_of(model, RECIPE)]
    assert "trainer" not in vars(framework)


def test_a_framework_whose_methods_cannot_be_replaced_is_judged_all_the_same() -> None:
    class Closed(ReferenceFramework):
        def __setattr__(self, name: str, value: object) -> None:
            if name == "trainer":
                raise AttributeError(name)
            super().__setattr__(name, value)

    framework = Closed("cpu")
    with recorded_runs(framework) as runs:
        framework.trainer(exact_stack(), Recipe())
    assert runs == []


def test_a_run_by_the_default_way_is_left_out() -> None:
    framework = ReferenceFramework("cpu")
    subject = Subject(framework)
    with recorded_runs(framework) as runs:
        test_ways._by_default_way(subject, exact_linear(), Recipe())
        assert runs == []
        subject.trainer(exact_linear(), Recipe())
    assert [run.fixture for run in runs] == ["exact-linear"]
