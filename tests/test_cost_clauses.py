"""The clauses about times judge the ratio of pairs, and only where the control and the device let them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import process_time_ns

import numpy as np
import pytest

from conformance.subject import Subject
from conformance.suites import test_cost as suite
from conformance.verdict import Abstention, Verdict, Violation
from fixtures.recipe import FLOAT16
from frameworks.contract import Unsupported
from frameworks.reference import ReferenceFramework

SUBJECT = Subject(ReferenceFramework("cpu"))


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device of its own, as the clauses see it: a step that is bound by products, which here is a brief one."""
    monkeypatch.setattr(suite, "bound_by_products", lambda _: suite.brief())


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Makes the times of the twin and of the technique so many times those of the plain step, with 0.1 % of noise."""

    def choose(technique: float, twin: float = 1.0) -> None:
        def interleaved(
            works: Mapping[str, object], rounds: int, rng: np.random.Generator, clock: object
        ) -> dict[str, list[int]]:
            factors = {"plain": 1.0, "twin": twin, "technique": technique}
            assert (list(works), clock) == (list(factors), process_time_ns)
            return {side: [int(x) for x in 1e6 * f * rng.normal(1.0, 0.001, rounds)] for side, f in factors.items()}

        monkeypatch.setattr(suite, "interleaved", interleaved)

    return choose


def recomputation() -> Verdict:
    verdict = Verdict()
    suite.test_recomputation_costs_one_forward_pass(SUBJECT, verdict, None)
    return verdict


def mixed() -> Verdict:
    verdict = Verdict()
    suite.test_mixed_precision_is_no_slower(SUBJECT, verdict, FLOAT16)
    return verdict


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize(
    ("run", "factor"), [(recomputation, 1.01), (recomputation, 1.3), (recomputation, 1.49), (mixed, 0.4), (mixed, 0.99)]
)
def test_a_ratio_within_its_bound_passes(timed: Callable[..., None], run: Callable[[], Verdict], factor: float) -> None:
    timed(factor, twin=1.005)
    (measured,) = run().measurements.values()
    unit, samples, control = measured
    assert (unit, len(samples), len(control)) == ("s", 60, 60)
    assert np.median(samples) / np.median(control) == pytest.approx(factor, rel=0.01)
    assert np.median(control) == pytest.approx(1e-3, rel=0.002)


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize(
    ("run", "factor", "signature"),
    [
        (recomputation, 1.6, "slower-than-one-forward"),
        (recomputation, 0.9, "faster-than-plain"),
        (mixed, 1.1, "slower-than-float32"),
    ],
)
def test_an_interval_wholly_beyond_the_bound_fails(
    timed: Callable[..., None], run: Callable[[], Verdict], factor: float, signature: str
) -> None:
    timed(factor)
    with pytest.raises(Violation) as caught:
        run()
    assert caught.value.signature == signature


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("twin", [0.9, 1.1])
def test_a_plain_step_that_differs_from_itself_leaves_the_clause(timed: Callable[..., None], twin: float) -> None:
    timed(9.0, twin)
    with pytest.raises(Abstention, match="the same step in two runs differs: ratio"):
        recomputation()


@pytest.mark.parametrize("run", [recomputation, mixed])
def test_without_a_device_nothing_is_demanded(run: Callable[[], Verdict]) -> None:
    with pytest.raises(Unsupported, match="no device allocator"):
        run()


@pytest.mark.parametrize("factor", [0.5, 9.0])
def test_a_brief_step_is_timed_and_not_judged(timed: Callable[..., None], factor: float) -> None:
    timed(factor)
    verdict = Verdict()
    suite.test_steps_with_recomputation_are_timed(SUBJECT, verdict, None)
    suite.test_steps_in_mixed_precision_are_timed(SUBJECT, verdict, FLOAT16)
    assert sorted(verdict.measurements) == ["seconds a step, 4 segments", "seconds a step, O1-float16"]


def test_an_allocators_grain_is_allowed_on_a_device_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    framework = ReferenceFramework("cpu")
    assert suite.slack(Subject(framework), 3) == 8
    monkeypatch.setattr(framework, "device", "cuda")
    assert suite.slack(Subject(framework), 3) == 8 + 3 * 512


def test_a_step_on_a_device_waits_for_its_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    framework, seen = ReferenceFramework("cpu"), []
    made = framework.trainer

    def watched(*given: object) -> object:
        trainer = made(*given)
        predict = trainer.predict
        monkeypatch.setattr(trainer, "predict", lambda inputs: seen.append(inputs.shape) or predict(inputs))
        return trainer

    monkeypatch.setattr(framework, "trainer", watched)
    model, batch = suite.brief()
    suite.step(Subject(framework), model, batch, suite.RECIPE)()
    assert seen == []
    monkeypatch.setattr(framework, "device", "cuda")
    suite.step(Subject(framework), model, batch, suite.RECIPE)()
    assert seen == [(1, 32)]
