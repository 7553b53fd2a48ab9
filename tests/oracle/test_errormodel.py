"""The envelope catches errors that were planted, stays silent about correct runs, and is derived once."""

import math
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
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
def test_envelope_holds_rounding_to_nearest(precision: Precision, seed: int) -> None:
    case = digits_case(precision, seed)
    assert beyond(case, ran(case)) == []


@each_precision
@pytest.mark.parametrize("make", [digits_case, exact_case])
def test_envelope_holds_rounding_at_random(make: Callable[[Precision], Case], precision: Precision) -> None:
    """20 fresh members of the ensemble; one in a hundred outside would show in some of the six cases."""
    case = make(precision)
    runs = {seed: ran(case, rounding=Stochastic(np.random.default_rng([seed, 99]))) for seed in range(40)}
    assert {seed: result for seed, measured in runs.items() if (result := beyond(case, measured))} == {}


@pytest.mark.parametrize(
    ("trainer", "quantities"), [(FastTrainer, {"loss", "parameters"}), (SteepTrainer, {"gradient"})]
)
def test_envelope_excludes_a_small_fault(trainer: type[ReferenceTrainer], quantities: set[str]) -> None:
    for case in (digits_case(FLOAT32), exact_case(FLOAT32), exact_case(FLOAT16)):
        assert quantities <= set(beyond(case, ran(case, twin(trainer))))


@pytest.mark.parametrize("make", [digits_case, exact_case])
def test_envelope_of_float32_excludes_bfloat16(make: Callable[[Precision], Case]) -> None:
    case = make(FLOAT32)
    assert beyond(case, ran(case, rounding=Coarse())) == ["loss", "gradient", "parameters"]


def test_envelope_excludes_nan() -> None:
    case = digits_case(FLOAT16)
    good = ran(case)
    losses = good.losses.copy()
    losses[2] = math.nan
    spoilt = Run(losses, math.nan * good.gradient, math.nan * good.parameters)
    assert beyond(case, spoilt) == ["loss", "gradient", "parameters"]
    assert derived(case).worst_loss(losses)[2] == 2


# ---------------------------------------------------------------- shape of the envelope


def test_envelope_widens_with_the_format_and_names_its_derivation() -> None:
    envelopes = [derived(digits_case(precision)) for precision in PRECISIONS]
    for a, b in pairwise(envelopes):
        assert 0.0 < a.loss_spread[0] < b.loss_spread[0]
        assert a.gradient_spread < b.gradient_spread
        assert a.parameter_spread < b.parameter_spread
        assert (np.diff(b.loss_spread) >= 0.0).all()
    for precision, result in zip(PRECISIONS, envelopes, strict=True):
        assert result.judged() >= 1
        assert result.derivation["format"] == precision.format
        assert {"method", "samples", "multiplier", "seed", "origin"} <= result.derivation.keys()


def test_worst_loss_looks_at_judged_updates_alone() -> None:
    losses = np.array([2.0, 2.0, 2.0, 2.0])

    def of(*spread: float) -> Envelope:
        return Envelope(Run(losses, losses, losses), np.array(spread), 0.0, np.zeros(1), 0.0, {}, {})

    result = of(0.01, 0.1, 0.3, 0.4)
    assert result.judged() == 2
    assert result.worst_loss(losses + np.array([0.0, 0.1, 50.0, math.nan]))[2] == 1
    assert of(1.0, 1.0, 1.0, 1.0).judged() == 0
    with pytest.raises(ValueError, match="first update"):
        of(1.0, 1.0, 1.0, 1.0).worst_loss(losses)


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


@pytest.mark.usefixtures("own")
def test_envelope_origin_differs_with_what_it_derives_from() -> None:
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
def test_envelope_is_read_from_the_cache_unless_it_is_damaged(own: Path, damage: Callable[[bytes], bytes]) -> None:
    first = derived(exact_case(FLOAT16))
    (file,) = own.iterdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(errormodel, "ReferenceFramework", None)
        assert same(derived(exact_case(FLOAT16)), first), "the cache is read"
    file.write_bytes(damage(file.read_bytes()))
    assert same(derived(exact_case(FLOAT16)), first)
    assert same(derived(exact_case(FLOAT16)), first)
    assert list(own.iterdir()) == [file]


def test_envelope_derived_by_two_processes_at_once_is_one_file(own: Path) -> None:
    expected = derived(exact_case(FLOAT16)).loss_spread.tolist()
    shutil.rmtree(own)
    children = []
    for _ in range(2):
        child = os.fork()
        if child == 0:
            os._exit(0 if derived(exact_case(FLOAT16)).loss_spread.tolist() == expected else 1)
        children.append(child)
    assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0, 0]
    assert [path.suffix for path in own.iterdir()] == [".npz"]
