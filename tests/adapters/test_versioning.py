"""What has a version of its own: an adapter that is written for another version of the contract is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fixtures.models import exact_linear
from fixtures.recipe import SGD, Recipe
from frameworks.contract import CONTRACT_VERSION
from frameworks.registry import UnknownFramework, load
from tests.support.suite_runs import ROOT, judge

HERE = "tests.adapters.test_versioning"


class OfAnotherContract:
    """An adapter that says so."""

    contract = CONTRACT_VERSION + 1

    def __init__(self, *_: object) -> None:
        raise AssertionError("it is refused before it is made")


def test_an_adapter_of_another_contract_is_refused_in_one_line() -> None:
    ended = judge(f"--framework={HERE}:OfAnotherContract", "-k", "automaton")
    assert ended.status == 2
    (line,) = [line for line in ended.lines if "contract" in line]
    assert f"got {CONTRACT_VERSION + 1}, want {CONTRACT_VERSION}; update the adapter" in line


def test_an_adapter_of_this_contract_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = (
        "from frameworks.reference import ReferenceFramework\n\n\nclass Mine(ReferenceFramework):\n    contract = {}\n"
    )
    for name, version in (("current", CONTRACT_VERSION), ("former", 1), ("last", 2), ("older", 0)):
        (tmp_path / f"contract_{name}.py").write_text(source.format(version), "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    assert {load(f"contract_{name}:Mine").name for name in ("current", "former", "last")} == {"reference"}
    with pytest.raises(UnknownFramework, match=f"got 0, want {CONTRACT_VERSION}; "):
        load("contract_older:Mine")


def test_the_page_says_which_version_the_contract_has() -> None:
    assert f"    contract = {CONTRACT_VERSION}\n" in (ROOT / "docs" / "versioning.md").read_text("utf-8")


OF_VERSION_1 = """
from frameworks.reference import ReferenceFramework
from frameworks.reference.trainer import ReferenceTrainer

class Doubling(ReferenceTrainer):
    def feed(self, *window, poison=None, **named):
        doubled = [{name: 2.0 * value for name, value in each.items()} for each in window]
        return super().feed(*doubled, poison=poison, **named)

class Mine(ReferenceFramework):
    contract = 1
    trainer_class = Doubling
"""


def test_an_adapter_of_version_1_runs_by_its_former_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "of_version_1.py").write_text(OF_VERSION_1, "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.warns(DeprecationWarning, match="is now") as warned:
        framework = load("of_version_1:Mine")
    messages = {str(warning.message) for warning in warned}
    assert "frameworks.reference.trainer is now frameworks.reference.training.trainer" in messages
    assert "Doubling.feed is now apply_gradients" in messages
    run = framework.trainer(exact_linear(), Recipe(SGD(0.5)))
    before = run.parameters()
    run.apply_gradients({name: np.ones_like(value) for name, value in before.items()})
    assert all((run.parameters()[name] == value - 1.0).all() for name, value in before.items())


OF_VERSION_2 = """
from fixtures.recipe import Aware, Recipe
from frameworks.base import BaseFramework
from frameworks.contract import Capability, Passed, Remembered
from frameworks.reference import ReferenceFramework

class Mine(ReferenceFramework):
    contract = 2

    def clipped_by_hand(self, gradient, *, limit, scale):
        recipe = Recipe().but(quantization=Aware())
        assert Capability.AWARE in {Capability.AWARE} and recipe.quantization is not None
        return gradient + limit + scale
"""


def test_an_adapter_of_version_2_runs_by_its_former_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "of_version_2.py").write_text(OF_VERSION_2, "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.warns(DeprecationWarning, match="Mine.clipped_by_hand is now clip_in_manual_step"):
        framework = load("of_version_2:Mine")
    assert framework.clip_in_manual_step(np.ones(1), limit=2.0, scale=3.0).tolist() == [6.0]


def test_a_helper_that_is_gone_says_what_to_do() -> None:
    with pytest.raises(
        ImportError, match=r"frameworks\.base has no structure_attempts: name its capabilities in supported\(\)"
    ):
        exec("from frameworks.base import structure_attempts")
