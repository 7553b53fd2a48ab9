"""Moments of eight bits: how a recipe with them is written, and what the reference does with them in combinations."""

from pathlib import Path

import numpy as np
import pytest

from conformance.runner.trained_runs import run_of
from conformance.techniques.eight_bit_state.expected_moments import (
    MomentBeforeEncoding,
    block_maxima,
    paper_values,
    state_bytes,
)
from fixtures.arrays import Array
from fixtures.models import exact_linear
from fixtures.recipe import Adam, Offload, Precision, Ranks, Recipe, written
from frameworks.contract import Capability, EightBitRule, Unsupported, needs
from frameworks.reference import ReferenceFramework

ENTRIES = 4300
MODEL = exact_linear(1, ENTRIES)
RECIPE = Recipe(Adam(state_bits=8))
FLOAT16_MASTERS = Precision("O2", "float16")


def gradients(seed: int) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in MODEL.parameter_shapes().items()}


def state_after(recipe: Recipe, updates: int = 3) -> dict[str, Array]:
    trainer = ReferenceFramework("cpu").trainer(MODEL, recipe)
    for update in range(updates):
        trainer.apply_gradients(gradients(update))
    return trainer.optimizer_state()


def test_a_recipe_without_them_is_written_as_before() -> None:
    assert repr(Adam()) == "Adam(learning_rate=0.001, beta1=0.9, beta2=0.999, epsilon=1e-08)"
    assert list(written(Adam())) == ["learning_rate", "beta1", "beta2", "epsilon"]
    assert repr(Adam(state_bits=8, block=64)).endswith("epsilon=1e-08, state_bits=8, block=64)")
    assert "state_bits" not in run_of(MODEL, Recipe(Adam())).recipe["optimizer"]
    assert run_of(MODEL, RECIPE).recipe["optimizer"]["state_bits"] == 8


def test_adam_of_other_bits_or_blocks_is_refused_and_eight_need_a_capability() -> None:
    for wrong in ({"state_bits": 4}, {"state_bits": 8, "block": 0}):
        with pytest.raises(ValueError, match="8 or 32 bits"):
            Adam(**wrong)  # type: ignore[arg-type]
    assert needs(RECIPE) == (Capability.ADAM_8BIT,)
    assert needs(Recipe(Adam())) == ()


@pytest.mark.parametrize(
    "recipe",
    [
        RECIPE.replace(groups=2),
        RECIPE.replace(optimizers=2),
        RECIPE.replace(offload=Offload(("optimizer",), "disk")),
        RECIPE.replace(offload=Offload(("optimizer",))),
        RECIPE.replace(ranks=Ranks(2)),
    ],
    ids=["groups", "optimizers", "disk", "host", "ranks"],
)
def test_combinations_keep_the_same_codes(recipe: Recipe) -> None:
    measured, expected = state_after(recipe), state_after(RECIPE)
    names = [name for name in expected if name.startswith(("codes/", "absmax/"))]
    assert len(names) == 8
    for name in names:
        np.testing.assert_array_equal(measured[name], expected[name], name)


def test_masters_have_codes_and_low_weights_follow() -> None:
    assert state_after(RECIPE.replace(precision=FLOAT16_MASTERS))["codes/first_moment/0.output.bias"].dtype == np.uint8


def test_offloaded_and_resident_bytes_are_those_of_codes() -> None:
    expected = 2 * state_bytes(ENTRIES, 256, 4096)
    trainer = ReferenceFramework("cpu").trainer(MODEL, RECIPE.replace(offload=Offload(("optimizer",))))
    trainer.apply_gradients(gradients(0))
    assert trainer.offloaded() == {"optimizer": expected}
    rank_group = ReferenceFramework("cpu").rank_group(MODEL, RECIPE.replace(ranks=Ranks(2)))
    assert [sizes["optimizer"] for sizes in rank_group.resident_bytes()] == [expected] * 2


@pytest.mark.parametrize("level", ["optimizer", "gradients", "full"])
def test_shards_are_refused_with_a_try_that_does_not_act(level: str) -> None:
    framework = ReferenceFramework("cpu")
    with pytest.raises(Unsupported, match="blocks of a shard") as refused:
        framework.trainer(MODEL, RECIPE.replace(ranks=Ranks(2, level)))  # type: ignore[arg-type]
    assert refused.value.attempt is not None
    assert refused.value.attempt() is False


def test_a_save_with_other_moments_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    framework = ReferenceFramework("cpu")
    saved, other = framework.trainer(MODEL, Recipe(Adam())), framework.trainer(MODEL, RECIPE)
    saved.save(tmp_path)
    other.apply_gradients(gradients(0))
    before = other.state()
    with pytest.raises(ValueError, match="another model or recipe"):
        other.restore(tmp_path)
    after = other.state()
    assert all(np.array_equal(after[name], value) for name, value in before.items())


# ---------------------------------------------------------------- the oracle


def test_the_paper_s_values_are_those_of_the_reference() -> None:
    assert block_maxima(np.array([1.0, -3.0, 2.0, 0.0, -5.0]), 2).tolist() == [3.0, 2.0, 5.0]
    rule = ReferenceFramework("cpu").rule(EightBitRule)
    for values, signed in ((rule.first_codes, True), (rule.second_codes, False)):
        expected = paper_values(signed)
        assert len(expected) == 256
        np.testing.assert_allclose(values, expected, rtol=2.0**-23)


def test_a_code_next_to_the_nearest_is_noticed_and_one_half_way_is_not() -> None:
    values = np.array([-1.0, 0.0, 0.5, 1.0], np.float32)
    moment = MomentBeforeEncoding(np.array([1.0, 0.25, 0.4, 0.0]), np.array([1.0, 0.25, 0.4, 0.0]))
    largest = np.ones(1, np.float32)
    for codes in ([3, 2, 2, 1], [3, 1, 2, 1]):
        assert moment.off(np.array(codes), largest, values, 4) <= 1.0
    for codes in ([2, 2, 2, 1], [3, 2, 1, 1], [3, 2, 2, 2]):
        assert moment.off(np.array(codes), largest, values, 4) > 1.0


def test_in_a_block_of_zeros_every_code_stands_for_zero() -> None:
    values, zero, one = np.array([-1.0, 0.0, 1.0], np.float32), np.zeros(1, np.float32), np.ones(1, np.float32)
    moment = MomentBeforeEncoding(np.zeros(2), np.zeros(2))
    assert moment.off(np.array([1, 2]), zero, values, 2) == 0.0
    assert moment.largest_off(zero, 2) == 0.0
    assert not moment.off(np.array([1, 2]), one, values, 2) <= 1.0
    assert not moment.largest_off(one, 2) <= 1.0
