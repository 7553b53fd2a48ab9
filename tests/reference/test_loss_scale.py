"""The reference's loss scaler, and the conventions by which frameworks differ."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fixtures.data import exact_batch
from fixtures.models import exact_linear, scalar
from fixtures.recipe import SGD, Adam, AdamW, DynamicScaling, Optimizer, Precision, Recipe, StaticScaling
from frameworks.contract import Conventions, ScalerRule
from frameworks.reference.core.rounding import Exact
from frameworks.reference.training.scaler import LossScale
from tests.support.reference_runs import same, trained


class TestScaler:
    @given(
        st.lists(st.booleans(), max_size=300),
        st.integers(1, 5),
        st.integers(-126, 127),
        st.sampled_from([1.5, 2.0, 3.0]),
        st.sampled_from([0.5, 0.25, 0.8]),
    )
    def test_the_scale_stays_finite_and_positive(
        self, schedule: list[bool], interval: int, exponent: int, growth: float, backoff: float
    ) -> None:
        scale = LossScale(2.0**exponent, growth, backoff, interval, 2.0**-126, 2.0**127)
        for finite in schedule:
            scale = scale.adjust(finite)
            assert 0.0 < scale.scale < math.inf
            assert math.isfinite(float(np.float32(1.0 / scale.scale)))
            assert scale.scale == float(np.float32(scale.scale))
            assert 0 <= scale.good_steps < interval

    @settings(max_examples=25)
    @given(st.lists(st.sampled_from([1.0, math.inf, -math.inf, math.nan]), max_size=40), st.integers(1, 4))
    def test_a_run_follows_the_closed_form(self, schedule: list[float], interval: int) -> None:
        run = trained(scalar(), Recipe(SGD(2.0**-6), scaling=DynamicScaling(2.0**10, interval=interval)))
        exponent, good, applied = 10, 0, 0
        for value in schedule:
            update = run.apply_gradients({"0.output.weight": np.ones((1, 1)), "0.output.bias": np.array([value])})
            good = good + 1 if value == 1.0 else 0
            applied += value == 1.0
            exponent = max(exponent + (good == interval) - (value != 1.0), -14)
            good %= interval
            assert (update.scale_after, update.good_steps) == (2.0**exponent, good)
            assert update.skipped == (value != 1.0)
            assert run.parameters()["0.output.bias"][0] == -applied * 2.0**-6

    def test_a_static_scale_never_moves(self) -> None:
        run = trained(scalar(), Recipe(SGD(0.5), scaling=StaticScaling(8.0)))
        updates = [run.apply_gradients({"0.output.bias": np.array([v])}) for v in (1.0, math.inf, 1.0)]
        assert [u.scale_after for u in updates] == [8.0] * 3
        assert [u.skipped for u in updates] == [False, True, False]
        assert run.parameters()["0.output.bias"][0] == -1.0

    @pytest.mark.parametrize("latched", [False, True])
    def test_poison_after_unscaling_is_judged_by_the_rule(self, latched: bool) -> None:
        rule = ScalerRule(minimum=2.0**-126, maximum=2.0**127, latched=latched)
        recipe = Recipe(SGD(0.5), scaling=DynamicScaling(2.0**10))
        run = trained(scalar(), recipe, conventions=Conventions(scaler=rule))
        update = run.apply_gradients({"0.output.bias": np.ones(1)}, inject={"0.output.bias": np.array([math.nan])})
        assert update.skipped == (not latched)

    def test_what_overflows_in_the_optimizers_format_is_not_applied(self) -> None:
        recipe = Recipe(SGD(0.5), Precision("O3", "float16"), scaling=DynamicScaling(2.0**-8))
        run = trained(scalar(), recipe)
        before = run.parameters()
        assert run.apply_gradients({"0.output.bias": np.array([1e5])}).skipped
        assert same(run.parameters(), before)

    def test_settings_that_cannot_work_are_refused(self) -> None:
        refused = DynamicScaling(0.0), DynamicScaling(2.0**200), DynamicScaling(interval=0), StaticScaling(math.inf)
        for scaling in refused:
            with pytest.raises(ValueError, match=r"scale|needed"):
                trained(scalar(), Recipe(scaling=scaling))


class TestConventions:
    def moved(self, optimizer: Optimizer, gradients: list[float], **conventions: object) -> float:
        run = trained(scalar(0.0), Recipe(optimizer), conventions=Conventions(**conventions), rounding=Exact())
        for g in gradients:
            run.apply_gradients({"0.output.bias": np.array([g])})
        return float(run.parameters()["0.output.bias"][0])

    def test_where_epsilon_joins(self) -> None:
        adam = Adam(0.1, epsilon=0.5)
        first, second, t = 0.1 * 2.0, 0.001 * 4.0, 1
        outside = first / (1 - 0.9**t) / (math.sqrt(second / (1 - 0.999**t)) + 0.5)
        inside = math.sqrt(1 - 0.999**t) / (1 - 0.9**t) * first / (math.sqrt(second) + 0.5)
        assert self.moved(adam, [2.0], adam_epsilon="outside") == pytest.approx(-0.1 * outside, rel=1e-12)
        assert self.moved(adam, [2.0], adam_epsilon="inside") == pytest.approx(-0.1 * inside, rel=1e-12)

    def test_decay_is_decoupled(self) -> None:
        run = trained(scalar(1.0), Recipe(AdamW(0.5, weight_decay=0.25)), rounding=Exact())
        run.apply_gradients({"0.output.weight": np.zeros((1, 1))})
        assert run.parameters()["0.output.weight"][0, 0] == 1.0 - 0.5 * 0.25

    @pytest.mark.parametrize("rule", ["drop-window", "drop-micro-batch"])
    def test_what_a_non_finite_micro_batch_costs(self, rule: str) -> None:
        recipe = Recipe(SGD(0.5), accumulation=2, scaling=DynamicScaling(2.0**10))
        conventions = Conventions(nonfinite_micro_batch=rule)
        run = trained(scalar(), recipe, conventions=conventions)
        update = run.apply_gradients({"0.output.bias": np.array([math.inf])}, {"0.output.bias": np.array([2.0])})
        assert update.skipped == (rule == "drop-window")
        assert update.scale_after == 2.0**9
        assert run.parameters()["0.output.bias"][0] == (0.0 if rule == "drop-window" else -0.5)

    @pytest.mark.parametrize(("rule", "applied", "left"), [("flush", True, 0), ("carry", False, 1), ("drop", False, 0)])
    def test_an_incomplete_window(self, rule: str, applied: bool, left: int) -> None:
        run = trained(exact_linear(), Recipe(SGD(0.5), accumulation=2), conventions=Conventions(remainder=rule))
        run.accumulate(exact_batch(4), 8)
        assert run.apply().skipped is not applied
        assert run.window.micro_batches == left
