"""Learning-rate curves: their factors, and the rule of a rate that follows a metric."""

import math

import pytest

from fixtures.plateau import Plateau, PlateauRule
from fixtures.recipe import Adam, Recipe
from fixtures.schedules import (
    Chained,
    Cosine,
    CosineRestarts,
    Curve,
    Exponential,
    InverseTime,
    Joined,
    Linear,
    OneCycle,
    Polynomial,
    Steps,
    Triangular,
)
from frameworks.reference.training.update_rules import optimizer_of

HALF = Steps((), (0.5,))


@pytest.mark.parametrize(
    ("curve", "factors"),
    [
        (Exponential(0.5), [1, 0.5, 0.25, 0.125]),
        (Exponential(0.25, every=2), [1, 0.5, 0.25, 0.125]),
        (Exponential(0.5, every=2, staircase=True), [1, 1, 0.5, 0.5]),
        (InverseTime(0.5), [1, 2 / 3, 0.5, 0.4]),
        (Linear(0.25, 1.0, 3), [0.25, 0.5, 0.75, 1, 1]),
        (Polynomial(2, 2.0), [1, 0.25, 0, 0]),
        (Polynomial(2, 1.0, 0.5), [1, 0.75, 0.5, 0.5]),
        (Cosine(2), [1, 0.5, 0]),
        (Cosine(2, 0.5), [1, 0.75, 0.5]),
        (CosineRestarts(2), [1, 0.5, 1, 0.5, 1]),
        (CosineRestarts(1, 2), [1, 1, 0.5, 1]),
        (Triangular(3.0, 2), [1, 2, 3, 2, 1, 2]),
        (Triangular(3.0, 1, shrink=True), [1, 3, 1, 2, 1, 1.5]),
        (Chained((Exponential(0.5), Linear(0.5, 1.0, 2))), [0.5, 0.375, 0.25, 0.125]),
        (OneCycle(3.0, 2, 4, 0.5), [1, 2, 3, 1.75, 0.5]),
        (Joined((HALF, Exponential(0.5)), (2,)), [0.5, 0.5, 1, 0.5]),
        (Joined((HALF, Exponential(0.5)), (0,)), [1, 0.5, 0.25]),
        (Joined((Joined((HALF, Linear(0.5, 1.0, 1)), (1,)), HALF), (3,)), [0.5, 0.5, 1, 0.5]),
    ],
    ids=str,
)
def test_factors(curve: Curve, factors: list[float]) -> None:
    assert [curve.factor(applied) for applied in range(len(factors))] == pytest.approx(factors, abs=1e-12)


def test_a_cycle_gives_the_first_beta_of_each_update() -> None:
    recipe = Recipe(Adam(), schedule=OneCycle(3.0, 1, 3, 0.5, momenta=(0.75, 0.25)))
    assert [vars(optimizer_of(recipe, 0, applied))["beta1"] for applied in range(4)] == [0.75, 0.25, 0.5, 0.75]


@pytest.mark.parametrize("boundaries", [(), (3, 1), (1, 2, 3)], ids=str)
def test_a_join_has_one_boundary_fewer_than_parts_in_order(boundaries: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="boundaries between 3 parts"):
        Joined((HALF, HALF, HALF), boundaries)


def test_a_curve_is_printed_as_it_is_written() -> None:
    assert str(Exponential(0.5, every=3)) == "Exponential(ratio=0.5, every=3, staircase=False)"


@pytest.mark.parametrize(
    ("plateau", "own", "metrics", "rates"),
    [
        (Plateau(patience=1), {}, [4, 4, 3, 3], [1, 0.5, 0.5, 0.25]),
        (Plateau(), {}, [math.nan, 4, 3, 3, 3], [1, 1, 1, 1, 0.5]),
        (Plateau(patience=1, cooldown=1), {}, [4, 4, 3, 3.5], [1, 0.5, 0.5, 0.25]),
        (Plateau(patience=1, cooldown=1), {"waits": True}, [4, 4, 3, 3.5], [1, 0.5, 0.5, 0.5]),
        (Plateau(patience=1, minimum=0.75), {}, [4, 4, 4], [1, 0.75, 0.75]),
        (Plateau(patience=1, minimum=2.0), {}, [4, 4], [1, 1]),
        (Plateau(patience=1, threshold=0.5, relative=True, mode="max"), {}, [4, 6, 7], [1, 0.5, 0.5]),
        (Plateau(patience=1, threshold=0.5, relative=True), {}, [-4, -6, -7], [1, 0.5, 0.5]),
        (Plateau(patience=1, threshold=0.5, relative=True), {"signed": True}, [-4, -3, -1], [1, 1, 0.5]),
    ],
    ids=str,
)
def test_a_plateau_lowers_the_rate(
    plateau: Plateau, own: dict[str, bool], metrics: list[float], rates: list[float]
) -> None:
    assert list(map(PlateauRule(plateau, **own).take, metrics)) == rates
