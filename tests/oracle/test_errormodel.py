"""The envelope catches errors that were planted, stays silent about correct runs, and is derived once."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from conformance.oracle import errormodel
from conformance.oracle.errormodel import Envelope, Run, envelope
from fixtures.arrays import Array
from fixtures.data import digits_batch, exact_batch
from fixtures.model import Model, Window
from fixtures.models import digits_mlp, exact_linear
from fixtures.recipe import BFLOAT16, FLOAT16, FLOAT32, SGD, DynamicScaling, Precision, Recipe
from frameworks.cache_folder import CACHE_FOLDER
from frameworks.contract import Conventions
from frameworks.reference import ReferenceFramework
from frameworks.reference.core.rounding import Nearest, Rounding, Stochastic
from frameworks.reference.training.trainer import ReferenceTrainer
from tests.support.suite_runs import ROOT, environment, hang_limit

PRECISIONS = [FLOAT32, FLOAT16, BFLOAT16]
each_precision = pytest.mark.parametrize("precision", PRECISIONS, ids=lambda p: p.label)


class FastTrainer(ReferenceTrainer):
    """Its learning rate is one per cent too large."""

    def learning_rate(self) -> float:
        return 1.01 * super().learning_rate()


class SteepTrainer(ReferenceTrainer):
    """Its gradients are a thousandth too large."""

    def accumulate_gradient(self, name: str, gradient: Array) -> None:
        super().accumulate_gradient(name, 1.001 * gradient)


class Coarse(Nearest):
    """Rounds to bfloat16 wherever float32 is asked for."""

    def round(self, array: Array, format_name: str, terms: int = 1) -> Array:
        return super().round(array, "bfloat16" if format_name == "float32" else format_name, terms)


def twin(trainer: type[ReferenceTrainer]) -> Callable[..., ReferenceFramework]:
    """The reference with other trainers."""
    return type("Twin", (ReferenceFramework,), {"trainer_class": trainer})


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of this module's own, the same for its tests."""
    folder = tmp_path_factory.getbasetemp() / "envelopes"
    monkeypatch.setenv(CACHE_FOLDER, str(folder))
    return folder


Case = tuple[Model, Recipe, list[Window]]


def digits_case(precision: Precision, seed: int = 0) -> Case:
    """A small MLP on digits, four updates."""
    scaling = DynamicScaling(initial=2.0**8) if precision is FLOAT16 else None
    windows: list[Window] = [(digits_batch(16, 16 * (4 * seed + i)),) for i in range(4)]
    return digits_mlp((16,)), Recipe(SGD(0.05), precision, scaling, seed=seed), windows


def exact_case(precision: Precision) -> Case:
    """One linear layer of power-of-two weights, three updates."""
    scaling = DynamicScaling(initial=2.0**8) if precision is FLOAT16 else None
    return exact_linear(), Recipe(SGD(2.0**-4), precision, scaling), [(exact_batch(seed=i),) for i in range(3)]


def ran(
    case: Case, framework: Callable[..., ReferenceFramework] = ReferenceFramework, rounding: Rounding | None = None
) -> Run:
    model, recipe, windows = case
    return errormodel.run(framework("cpu", rounding=rounding).trainer(model, recipe), windows)


def derived(case: Case) -> Envelope:
    return envelope(Conventions(), *case)


def beyond(case: Case, measured: Run) -> list[str]:
    """The quantities of a run that lie outside its envelope."""
    result = derived(case)
    distance, bound, _ = result.worst_loss(measured.losses)
    gradient, parameters = result.gradient(measured.gradient), result.parameters(measured.parameters)
    pairs = {"loss": (distance, bound), "gradient": gradient, "parameters": parameters}
    return [name for name, (value, limit) in pairs.items() if not value <= limit.value]


# ---------------------------------------------------------------- silent and caught


@each_precision
@pytest.mark.parametrize("seed", range(5))
def test_rounding_to_nearest_is_inside(precision: Precision, seed: int) -> None:
    case = digits_case(precision, seed)
    assert beyond(case, ran(case)) == []


@each_precision
@pytest.mark.parametrize("make", [digits_case, exact_case])
def test_rounding_at_random_is_inside(make: Callable[[Precision], Case], precision: Precision) -> None:
    """40 fresh members of the ensemble; one in a hundred outside would show in some of the six cases."""
    case = make(precision)
    runs = {seed: ran(case, rounding=Stochastic(np.random.default_rng([seed, 99]))) for seed in range(40)}
    assert {seed: result for seed, measured in runs.items() if (result := beyond(case, measured))} == {}


def test_a_rate_one_per_cent_too_large_is_caught() -> None:
    for case in (digits_case(FLOAT32), exact_case(FLOAT32), exact_case(FLOAT16)):
        measured = ran(case, twin(FastTrainer))
        assert {"loss", "parameters"} <= set(beyond(case, measured))


def test_a_gradient_a_thousandth_too_large_is_caught() -> None:
    for case in (digits_case(FLOAT32), exact_case(FLOAT32), exact_case(FLOAT16)):
        assert "gradient" in beyond(case, ran(case, twin(SteepTrainer)))


@pytest.mark.parametrize("make", [digits_case, exact_case])
def test_bfloat16_in_the_place_of_float32_is_caught(make: Callable[[Precision], Case]) -> None:
    case = make(FLOAT32)
    assert beyond(case, ran(case, rounding=Coarse())) == ["loss", "gradient", "parameters"]


def test_what_is_not_a_number_is_caught() -> None:
    case = digits_case(FLOAT16)
    good = ran(case)
    losses = good.losses.copy()
    losses[2] = math.nan
    spoilt = Run(losses, math.nan * good.gradient, math.nan * good.parameters)
    assert beyond(case, spoilt) == ["loss", "gradient", "parameters"]
    assert derived(case).worst_loss(losses)[2] == 2


# ---------------------------------------------------------------- shape of the envelope


def test_the_envelope_widens_with_the_format() -> None:
    narrow, middle, wide = (derived(digits_case(precision)) for precision in PRECISIONS)
    for a, b in ((narrow, middle), (middle, wide)):
        assert a.loss_spread[0] < b.loss_spread[0]
        assert a.gradient_spread < b.gradient_spread
        assert a.parameter_spread < b.parameter_spread


@each_precision
def test_the_envelope_never_narrows_and_says_where_it_comes_from(precision: Precision) -> None:
    result = derived(digits_case(precision))
    assert result.judged() >= 1
    assert result.loss_spread[0] > 0.0
    if precision is not FLOAT32:
        assert (np.diff(result.loss_spread) >= 0.0).all()
    assert result.derivation["format"] == precision.format
    assert {"method", "samples", "multiplier", "seed", "origin"} <= result.derivation.keys()


def test_updates_beyond_what_can_be_learnt_are_not_judged() -> None:
    losses = np.array([2.0, 2.0, 2.0, 2.0])
    spread = np.array([0.01, 0.1, 0.3, 0.4])
    result = Envelope(Run(losses, losses, losses), spread, 0.0, np.zeros(1), 0.0, {}, {})
    assert result.judged() == 2
    assert result.worst_loss(losses + np.array([0.0, 0.1, 50.0, math.nan]))[2] == 1


def test_an_envelope_in_which_no_update_is_judged_has_no_worst_loss() -> None:
    losses = np.array([2.0, 2.0])
    result = Envelope(Run(losses, losses, losses), np.array([1.0, 1.0]), 0.0, np.zeros(1), 0.0, {}, {})
    assert result.judged() == 0
    with pytest.raises(ValueError, match="first update"):
        result.worst_loss(losses)


# ---------------------------------------------------------------- cache


def same(a: Envelope, b: Envelope) -> bool:
    arrays = ((a.exact.losses, b.exact.losses), (a.exact.gradient, b.exact.gradient), (a.loss_spread, b.loss_spread))
    spreads = (a.gradient_spread, a.parameter_spread) == (b.gradient_spread, b.parameter_spread)
    return spreads and all(np.array_equal(x, y) for x, y in arrays) and a.derivation == b.derivation


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of one test's own."""
    monkeypatch.setenv(CACHE_FOLDER, str(tmp_path / "own"))
    return tmp_path / "own"


def test_the_cache_gives_the_same_envelope_without_deriving_it(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = derived(exact_case(FLOAT16))
    assert len(list(own.iterdir())) == 1
    monkeypatch.setattr(errormodel, "ReferenceFramework", None)
    assert same(derived(exact_case(FLOAT16)), first)


@pytest.mark.usefixtures("own")
def test_what_the_envelope_derives_from_tells_envelopes_apart() -> None:
    model, recipe, windows = exact_case(FLOAT16)
    changes = [
        (model, recipe.replace(seed=1), windows),
        (model, recipe.replace(optimizer=SGD(2.0**-5)), windows),
        (model, recipe, windows[:2]),
        (model, recipe, windows[::-1]),
        (replace(model, starts=()), recipe, windows),
    ]
    origins = [derived(case).derivation["origin"] for case in [(model, recipe, windows), *changes]]
    assert len(set(origins)) == len(origins)


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[:0],
        lambda content: content[:0] + b"no archive",
        lambda content: content[: len(content) // 2],
        lambda content: content[:200] + bytes(60) + content[260:],
        lambda content: content[4:],
        lambda content: content.replace(b"gradient.npy", b"graduate.npy"),
    ],
    ids=["empty", "foreign", "cut", "zeros", "shifted", "renamed"],
)
def test_a_damaged_cache_is_derived_anew(own: Path, damage: Callable[[bytes], bytes]) -> None:
    first = derived(exact_case(FLOAT16))
    (file,) = own.iterdir()
    file.write_bytes(damage(file.read_bytes()))
    assert same(derived(exact_case(FLOAT16)), first)
    assert same(derived(exact_case(FLOAT16)), first)
    assert list(own.iterdir()) == [file]


def test_two_processes_may_derive_the_same_envelope_at_once(own: Path) -> None:
    program = (
        "from tests.oracle.test_errormodel import derived, exact_case; from fixtures.recipe import FLOAT16\n"
        "for _ in range(3): print(derived(exact_case(FLOAT16)).loss_spread.tolist())"
    )
    words = [sys.executable, "-c", program]
    around = environment(**{CACHE_FOLDER: str(own), "PYTHONPATH": os.fspath(ROOT)})
    running = [subprocess.Popen(words, cwd=ROOT, env=around, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    printed = {line for process in running for line in process.communicate(timeout=hang_limit())[0].splitlines()}
    assert [process.returncode for process in running] == [0, 0]
    assert printed == {str(derived(exact_case(FLOAT16)).loss_spread.tolist())}
    assert [path.suffix for path in own.iterdir()] == [".npz"]
