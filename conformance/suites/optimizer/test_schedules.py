"""Learning-rate schedules that frameworks ship."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from conformance.checks.api import Subject, Verdict, clause, full, need
from conformance.oracle.bound import Bound
from fixtures.arrays import Array
from fixtures.models import exact_linear
from fixtures.recipe import SGD, Adam, Optimizer, Recipe, Steps
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
    Triangular,
)
from frameworks.contract import Capability, Trainer

UPDATES = 10
RATE = 0.5
UNIT = 2.0**-24
"""Unit roundoff of float32. A power or a cosine has a few units of error; the weight that shows the rate adds one."""
_HALF = Steps((), (0.5,))
CURVES: dict[str, Curve] = {
    "exponential": Exponential(0.5),
    "exponential-every-3": Exponential(0.5, every=3),
    "staircase": Exponential(0.5, every=3, staircase=True),
    "inverse-time": InverseTime(0.5),
    "linear": Linear(0.25, 1.0, 4),
    "polynomial": Polynomial(6, 2.0),
    "polynomial-to-a-quarter": Polynomial(6, 1.0, 0.25),
    "cosine": Cosine(10),
    "cosine-to-a-quarter": Cosine(10, 0.25),
    "cosine-restarts": CosineRestarts(3),
    "longer-cosine-restarts": CosineRestarts(2, 2, 0.25),
    "triangular": Triangular(4.0, 2),
    "shrinking-triangular": Triangular(4.0, 2, shrink=True),
    "warmup-then-cosine": Joined((Linear(0.25, 1.0, 3), Cosine(8)), (3,)),
    "warmup-then-staircase": Joined((Linear(0.25, 1.0, 3), Exponential(0.5, 2, staircase=True)), (3,)),
    "joined-at-the-start": Joined((_HALF, Exponential(0.5)), (0,)),
    "three-parts": Joined((_HALF, Linear(0.25, 1.0, 3), Exponential(0.5)), (2, 5)),
    "one-cycle": OneCycle(4.0, 3, 10, 0.25),
    "chained": Chained((Linear(0.25, 1.0, 4), Exponential(0.5))),
    "chained-cosine": Chained((Cosine(12), Exponential(0.5, 3, staircase=True))),
    "chained-restarts": Chained((CosineRestarts(3), Exponential(0.5, 2, staircase=True))),
    "joined-inside": Joined((Joined((_HALF, Linear(0.5, 1.0, 2)), (2,)), Exponential(0.5)), (6,)),
}
each_curve = pytest.mark.parametrize("curve", CURVES)
each_cycled = pytest.mark.parametrize(
    "optimizer", [SGD(RATE, momentum=0.5), Adam(RATE, beta2=0.75)], ids=["momentum", "adam"]
)
CYCLE = OneCycle(4.0, 3, 10, 0.25, momenta=(0.75, 0.25))


def zeros() -> dict[str, Array]:
    """Return initial weights of zero."""
    return {name: np.zeros(shape, np.float32) for name, shape in exact_linear().parameter_shapes().items()}


def make_zero_run(subject: Subject, recipe: Recipe) -> Trainer:
    """Return a run whose initial weights are zero."""
    return subject.trainer(exact_linear(), recipe, zeros())


def measure_moves(trainer: Trainer, start: int, stop: int, parameter: int = 0) -> list[float]:
    """Return the moves of a weight by updates `start` to `stop` - 1; its gradient is 1 and -1 in turn."""
    name = list(trainer.parameters())[parameter]
    places = [float(trainer.parameters()[name].flat[0])]
    signs = [(-1.0) ** index for index in range(start, stop)]
    for sign in signs:
        trainer.apply_gradients(full(trainer, sign))
        places.append(float(trainer.parameters()[name].flat[0]))
    return [sign * (before - after) for sign, (before, after) in zip(signs, pairwise(places), strict=True)]


def judge(verdict: Verdict, curve: Curve, rates: list[float], start: int, rate: float = RATE) -> None:
    """Compare the rates from update `start` on with the formula."""
    expected = [rate * curve.factor(start + index) for index in range(len(rates))]
    worst = max(range(len(rates)), key=lambda index: abs(rates[index] - expected[index]))
    largest = max(rate * curve.factor(applied) for applied in range(UPDATES))
    bound = Bound(16 * UNIT * largest, {"method": "16 unit roundoffs of float32, of the largest rate"})
    what = f"distance of the rate from the formula's {expected[worst]:.6g} at update {start + worst}"
    verdict.within(abs(rates[worst] - expected[worst]), bound, what, "rate-differs")


@clause("optimizer.schedules")
@each_curve
def test_rates_follow_documented_formula(subject: Subject, verdict: Verdict, curve: str) -> None:
    trainer = make_zero_run(subject, Recipe(SGD(RATE), schedule=CURVES[curve]))
    judge(verdict, CURVES[curve], measure_moves(trainer, 0, UPDATES), 0)


@clause("optimizer.schedules")
@each_curve
def test_rates_resume_after_load(subject: Subject, verdict: Verdict, curve: str, tmp_path: Path) -> None:
    need(subject, Capability.CHECKPOINT)
    recipe = Recipe(SGD(RATE), schedule=CURVES[curve])
    trainer = make_zero_run(subject, recipe)
    for former, saved in pairwise((0, 0, 4)):
        measure_moves(trainer, former, saved)
        trainer.save(tmp_path / str(saved))
        resumed = make_zero_run(subject, recipe)
        resumed.restore(tmp_path / str(saved))
        judge(verdict, CURVES[curve], measure_moves(resumed, saved, UPDATES), saved)


@clause("optimizer.schedules")
@each_curve
def test_rates_resume_when_schedule_is_created(subject: Subject, verdict: Verdict, curve: str, tmp_path: Path) -> None:
    need(subject, Capability.LOAD_ORDER)
    recipe = Recipe(SGD(RATE), schedule=CURVES[curve])
    trainer, resumed = (make_zero_run(subject, recipe) for _ in range(2))
    measure_moves(trainer, 0, 4)
    trainer.save(tmp_path)
    resumed.restore_in(tmp_path, "schedule-made-there")
    judge(verdict, CURVES[curve], measure_moves(resumed, 4, UPDATES), 4)


@clause("optimizer.schedules")
@each_curve
def test_tensor_learning_rate_follows_documented_formula(subject: Subject, verdict: Verdict, curve: str) -> None:
    trainer = make_zero_run(subject, Recipe(SGD(RATE), schedule=CURVES[curve], tensor_rate=True))
    judge(verdict, CURVES[curve], measure_moves(trainer, 0, UPDATES), 0)


@clause("optimizer.schedules")
@each_curve
def test_each_group_follows_schedule_from_its_own_rate(subject: Subject, verdict: Verdict, curve: str) -> None:
    recipe = Recipe(SGD(RATE), groups=2, second_rate=2.0 * RATE, schedule=CURVES[curve])
    trainer = make_zero_run(subject, recipe)
    judge(verdict, CURVES[curve], measure_moves(trainer, 0, 5, parameter=1), 0, 2.0 * RATE)
    judge(verdict, CURVES[curve], measure_moves(trainer, 5, UPDATES), 5)


@clause("optimizer.schedules")
@each_cycled
def test_cyclic_schedule_changes_momentum(subject: Subject, verdict: Verdict, optimizer: Optimizer) -> None:
    judge_cycle(subject, verdict, Recipe(optimizer, schedule=CYCLE), parameter=0)


@clause("optimizer.schedules")
@each_cycled
def test_cyclic_schedule_changes_momentum_of_each_group(
    subject: Subject, verdict: Verdict, optimizer: Optimizer
) -> None:
    judge_cycle(subject, verdict, Recipe(optimizer, groups=2, second_rate=2.0 * RATE, schedule=CYCLE), parameter=1)


def judge_cycle(subject: Subject, verdict: Verdict, recipe: Recipe, parameter: int) -> None:
    """Compare the moves of a weight over a cycle with the float64 reference's."""
    need(subject, Capability.SCHEDULE)
    trainer, oracle = make_zero_run(subject, recipe), subject.oracle(exact_linear(), recipe, zeros())
    measured, expected = (measure_moves(run, 0, UPDATES, parameter) for run in (trainer, oracle))
    largest = max(map(abs, expected))
    for applied, (move, exact) in enumerate(zip(measured, expected, strict=True)):
        bound = Bound(64 * UNIT * largest, {"method": "64 unit roundoffs of float32, of the largest movement"})
        verdict.within(abs(move - exact), bound, f"distance of movement {applied} from {exact:.6g}", "momentum-differs")
