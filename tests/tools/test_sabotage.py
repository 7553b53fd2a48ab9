"""The vacuity probe lists a test that looks at nothing, and no test that looks; sabotages spoil only what they say."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fixtures.data import exact_batch
from fixtures.models import exact_linear
from fixtures.recipe import SGD, DynamicScaling, Recipe
from frameworks.reference import ReferenceFramework
from tests.support.suite_runs import checkout, judge
from tools.sabotage import SABOTAGES

SUITE = """
import numpy as np

from conformance.checks.api import Subject, Verdict, clause, full
from conformance.search.properties import explore
from fixtures.data import exact_batch
from fixtures.models import exact_linear
from fixtures.recipe import SGD, DynamicScaling, Recipe
from frameworks.contract import Capability
from hypothesis import strategies as st

SCALED = Recipe(SGD(2.0**-6), scaling=DynamicScaling(initial=2.0**10, interval=1))


@clause("scaling.automaton")
def test_looks_at_the_scale(subject: Subject, verdict: Verdict) -> None:
    trainer = subject.trainer(exact_linear(), SCALED)
    verdict.equal(trainer.apply_gradients(full(trainer, 1.0)).scale_after, 2.0**11, "scale after an update")


@clause("scaling.skip-is-atomic")
def test_looks_at_parameters(subject: Subject, verdict: Verdict) -> None:
    trainer = subject.trainer(exact_linear(), SCALED)
    before = trainer.parameters()
    trainer.update((exact_batch(8),))
    verdict.changed(before, trainer.parameters(), "parameters")


@clause("resume.bit-identical")
def test_looks_at_what_was_loaded(subject: Subject, verdict: Verdict, tmp_path) -> None:
    assert not list(tmp_path.iterdir())
    saved, resumed = (subject.trainer(exact_linear(), SCALED) for _ in range(2))
    saved.update((exact_batch(8),))
    saved.save(tmp_path)
    resumed.restore(tmp_path)
    verdict.same_state(resumed.state(), saved.state(), "state")


@clause("autocast.matmul-is-low")
def test_looks_at_an_operation(subject: Subject, verdict: Verdict) -> None:
    verdict.equal(subject.framework.run_op("sum", np.ones(4, np.float32)).value.item(), 4.0, "a sum")


@clause("scaling.stays-finite")
@explore(st.integers(1, 4), examples=3)
def test_looks_at_every_case(subject: Subject, verdict: Verdict, case: int) -> None:
    trainer = subject.trainer(exact_linear(), SCALED)
    skipped = [trainer.apply_gradients(full(trainer, 1.0)).skipped for _ in range(case)]
    verdict.holds(skipped == [False] * case, "none is skipped")
    verdict.equal(trainer.scaler_state()["scale"].item(), 2.0 ** (10 + case), "scale")


@clause("composition.coverage")
def test_observes(subject: Subject, verdict: Verdict) -> None:
    verdict.observe("nothing", 0)
"""
BLIND = """

@clause("scaling.stays-positive")
def test_sees_nothing(subject: Subject, verdict: Verdict) -> None:
    trainer = subject.trainer(exact_linear(), SCALED)
    trainer.update((exact_batch(8),))
    verdict.holds(len(trainer.parameters()) == 2, "there are two parameters")


@clause("scaling.stays-finite")
def test_compares_a_thing_with_itself(subject: Subject, verdict: Verdict) -> None:
    parameters = subject.trainer(exact_linear(), SCALED).parameters()
    verdict.equal(parameters, parameters, "parameters")
"""


@pytest.fixture(scope="module")
def copies(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A checkout whose tests all look, and one with two that do not."""
    folder = tmp_path_factory.mktemp("checkouts")
    return {
        "seeing": checkout(folder / "seeing", small=SUITE),
        "blind": checkout(folder / "blind", small=SUITE + BLIND),
    }


def test_a_suite_whose_tests_look_passes_the_probe(copies: dict[str, Path]) -> None:
    ended = judge("-p", "tools.sabotage.vacuity", root=copies["seeing"])
    assert ended.status == 0, ended.lines
    assert "0 vacuous of 5 passing tests; 1 observations and measurements left out" in ended.output


def test_vacuous_tests_are_listed_and_no_others(copies: dict[str, Path]) -> None:
    ended = judge("-p", "tools.sabotage.vacuity", root=copies["blind"])
    assert ended.status == 1
    assert "2 vacuous of 7 passing tests" in ended.output
    listed = [line for line in ended.lines if "not changed by" in line]
    assert [line.split()[0] for line in listed] == ["scaling.stays-finite", "scaling.stays-positive"]
    assert "test_compares_a_thing_with_itself" in listed[0]
    assert "test_sees_nothing" in listed[1]
    assert all(line.endswith(", ".join(SABOTAGES)) for line in listed)


def test_without_the_flag_nothing_is_probed(copies: dict[str, Path]) -> None:
    ended = judge(root=copies["blind"])
    assert ended.status == 0, ended.lines
    assert "vacuous" not in ended.output


@pytest.mark.parametrize("name", SABOTAGES)
def test_a_blinded_run_still_trains_saves_and_loads(name: str, tmp_path: Path) -> None:
    blinded = SABOTAGES[name](ReferenceFramework())
    recipe = Recipe(SGD(2.0**-6), scaling=DynamicScaling(initial=2.0**10), accumulation=2)
    trainer = blinded.trainer(exact_linear(), recipe)
    update = trainer.update(exact_batch(8).into(2))
    trainer.save(tmp_path)
    blinded.trainer(exact_linear(), recipe).restore(tmp_path)
    assert len(update.micro_losses) == 2
    assert trainer.state().keys() == ReferenceFramework().trainer(exact_linear(), recipe).state().keys()
    assert trainer.predict(exact_batch(4).inputs)["output"].shape == (4, 4)


def test_a_frozen_run_stands_still_and_only_there() -> None:
    frozen = SABOTAGES["frozen-parameters"](ReferenceFramework()).trainer(exact_linear(), Recipe(SGD(2.0**-6)))
    real = ReferenceFramework().trainer(exact_linear(), Recipe(SGD(2.0**-6)))
    for run in (frozen, real):
        run.update((exact_batch(8),))
    np.testing.assert_equal(frozen.parameters(), exact_linear().weights(0))
    np.testing.assert_equal(frozen.optimizer_state(), real.optimizer_state())
    assert all(not np.array_equal(real.parameters()[n], value) for n, value in frozen.parameters().items())
