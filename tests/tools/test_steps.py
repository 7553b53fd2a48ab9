"""The pytest-benchmark suite of steps: what its JSON says, what it refuses to time, and how it ends."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import pytest

from fixtures.arrays import Array
from fixtures.data import exact_batch
from fixtures.model import Model
from fixtures.models import exact_linear
from fixtures.recipe import Recipe
from frameworks.contract import Capability, Declaration, Trainer
from frameworks.reference import ReferenceFramework
from frameworks.reference.training.trainer import ReferenceTrainer
from tests.support.suite_runs import Ended, run
from tools.benchmarks.steps.cases import AT_MOST, FIXTURES, SETTLING, NotTheStep, reach_all, settle, techniques

BATCH = exact_batch(8)


class Narrow(ReferenceFramework):
    """A twin of the reference that declares no bfloat16 and raises where a recipe recomputes, or does nothing."""

    def declares(self, capability: Capability) -> Declaration:
        if capability is Capability.O1_BFLOAT16:
            return Declaration(False, "this twin has no such format")
        return super().declares(capability)

    def trainer(self, model: Model, recipe: Recipe, weights: Mapping[str, Array] | None = None) -> ReferenceTrainer:
        if recipe.recompute is not None:
            raise TypeError("a segment is not run twice here")
        if (recipe.precision.level, recipe.accumulation) == ("O0", 1):
            raise TypeError(f"{model.name} cannot be trained")
        return super().trainer(model, recipe, weights)


class Cut(ReferenceTrainer):
    """Its backward pass ends before the first parameter."""

    def gradients(self, window: Any) -> dict[str, Array]:
        return dict(list(super().gradients(window).items())[1:])


class Counted:
    """Counts updates; the first ones, as many as are asked for, are skipped."""

    def __init__(self, skipped: int) -> None:
        self.skipped, self.updates = skipped, 0

    def update(self, window: Any) -> Any:
        self.updates += 1
        return type("Update", (), {"skipped": self.updates <= self.skipped, "loss": float(len(window))})


def steps(framework: str, *words: str | Path) -> Ended:
    """The suite's end, with few rounds."""
    few = ("-p", "pytest_benchmark.plugin", "--benchmark-max-time=0.01", "--benchmark-min-rounds=2")
    suite = ("tools/benchmarks/steps", "-rs", f"--framework={framework}")
    return run([sys.executable, "-m", "pytest", *suite, *few, *map(str, words)])


def test_the_json_tells_framework_fixture_and_technique(tmp_path: Path) -> None:
    file = tmp_path / "times.json"
    ended = steps("reference", "-k", "digits-mlp and (plain or accumulation)", "--benchmark-json", file)
    assert ended.status == 0, ended.lines
    benchmarks = json.loads(file.read_text("utf-8"))["benchmarks"]
    assert [b["name"] for b in benchmarks] == [
        "test_step[reference-emulated-cpu-digits-mlp-plain]",
        "test_step[reference-emulated-cpu-digits-mlp-accumulation-4]",
    ]
    assert {b["group"] for b in benchmarks} == {"digits-mlp"}
    assert [b["extra_info"]["technique"] for b in benchmarks] == ["plain", "accumulation-4"]
    for info in (b["extra_info"] for b in benchmarks):
        assert info["framework"] == "reference"
        assert (info["mode"], info["device"], info["fixture"]) == ("emulated", "cpu", "digits-mlp")
        assert (info["version"], info["samples"], info["threads"]) == (ReferenceFramework("cpu").version(), 32, None)
        assert info["thread_variables"]["OMP_NUM_THREADS"] == "1"
    assert all(b["stats"]["rounds"] >= 2 and b["stats"]["min"] > 0.0 for b in benchmarks)


def test_what_cannot_be_timed_is_skipped_with_its_reason_and_a_plain_step_that_raises_is_an_error() -> None:
    ended = steps("tests.tools.test_steps:Narrow", "-k", "digits-mlp and (bfloat16 or recomputation or plain)")
    assert ended.status == 1, ended.lines
    skipped = "\n".join(line for line in ended.lines if line.startswith("SKIPPED"))
    assert "precision.O1-bfloat16: this twin has no such format" in skipped
    assert "raises TypeError: a segment is not run twice here" in skipped
    assert any("TypeError: digits-mlp cannot be trained" in line for line in ended.lines)


def test_steps_of_an_unknown_framework_or_mode_are_refused_in_one_line() -> None:
    for ended in (steps("nowhere"), steps("reference", "--mode=nowhere")):
        assert (ended.status, len(ended.lines)) == (2, 1), ended.lines
        assert "nowhere" in ended.lines[0]


def test_updates_are_made_until_three_were_applied() -> None:
    trainer = Counted(skipped=5)
    settle(cast(Trainer, trainer), (BATCH,))
    assert trainer.updates == 5 + SETTLING


def test_a_scale_that_never_fits_is_told() -> None:
    trainer = Counted(skipped=AT_MOST)
    with pytest.raises(NotTheStep, match=f"{AT_MOST} of {AT_MOST} updates were skipped"):
        settle(cast(Trainer, trainer), (BATCH,))
    assert trainer.updates == AT_MOST


def test_a_backward_pass_that_leaves_a_parameter_out_is_told() -> None:
    whole = ReferenceFramework("cpu").trainer(exact_linear(), Recipe())
    reach_all(whole, (BATCH,))
    framework = type("Cutting", (ReferenceFramework,), {"trainer_class": Cut})("cpu")
    with pytest.raises(NotTheStep, match=r"1 parameters no gradient, the first is 0\.output\.weight"):
        reach_all(framework.trainer(exact_linear(), Recipe()), (BATCH,))


@pytest.mark.parametrize("fixture", FIXTURES)
def test_every_technique_takes_the_same_samples(fixture: str) -> None:
    _, batch = FIXTURES[fixture]()
    for recipe in techniques(("one", "two")).values():
        window = batch.into(recipe.accumulation)
        assert len(window) == recipe.accumulation
        assert sum(len(part) for part in window) == len(batch)
    assert [*techniques(("one", "two"))][-2:] == ["recomputation-one", "recomputation-two"]
    assert [*techniques(())][-1] == "recomputation"
