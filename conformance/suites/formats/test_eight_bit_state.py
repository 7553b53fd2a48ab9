"""8-bit Adam: moments as 8-bit codes, by blocks."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from conformance.checks.api import Subject, Verdict, clause, full, need, spike_gradients
from conformance.oracle.runs import flat
from conformance.techniques.eight_bit_state import (
    OF_ITS_WAY,
    PRODUCT,
    MomentBeforeEncoding,
    expand_blocks,
    first_update,
    paper_values,
    rule_of,
    state_bytes,
)
from conformance.techniques.formats import WITHIN
from fixtures.arrays import Array
from fixtures.data import digits_batch
from fixtures.model import Batch
from fixtures.models import digits_mlp, exact_linear
from fixtures.recipe import Adam, DynamicScaling, Recipe
from frameworks.contract import Capability, EightBitRule, Trainer

BLOCK = 256
ENTRIES = 40 * BLOCK + 77
"""Number of entries of each of the two parameters; the last block is not full."""
PARAMETERS = ("0.output.weight", "0.output.bias")
"""Parameters of the model: a matrix of one row and a vector, whose entries have the same order in every layout."""
EXACT = Adam(beta1=0.875, beta2=0.9375, state_bits=8)
"""Adam with betas β for which β and 1 - β are exact in float32."""
PERCEPTRON = digits_mlp((64,), "tanh")
GREY = 0.5
"""Background that makes all pixels nonzero, so that the gradients of a block are within a few decades of each other.

If a second moment is too small for a code and its first moment is not, the first moment is divided by epsilon only.
"""
DRAWS = 4
"""Number of draws of weights: with some draws, second moments of a block vanish in spite of the background."""


@dataclass(frozen=True, eq=False)
class StoredMoment:
    """A moment of a parameter, flat: its decoded values, its codes and each block's absmax."""

    decoded: Array
    codes: Array
    largest: Array

    @classmethod
    def of(cls, verdict: Verdict, trainer: Trainer, slot: str, name: str) -> StoredMoment:
        """Read the moment from a run, which must expose decoded values, codes and absmax."""
        state, names = trainer.optimizer_state(), [f"{kind}{slot}/{name}" for kind in ("", "codes/", "absmax/")]
        verdict.equal([key for key in names if key not in state], [], f"missing parts of {slot} of {name}", "lacking")
        return cls(*(state[key].ravel() for key in names))


def moments_of(rule: EightBitRule) -> tuple[tuple[str, Array, float, bool], ...]:
    """Return for each moment under `EXACT`: slot, values of codes, beta, and whether gradients are squared."""
    return ((rule.first, rule.first_codes, EXACT.beta1, False), (rule.second, rule.second_codes, EXACT.beta2, True))


def draw_gradients(seed: int, *, decades: float = 9.0, zeros: bool = False) -> dict[str, Array]:
    """Return gradients of both signs; magnitudes differ between blocks, and entries of a block span decades.

    Args:
        zeros: whether every third entry and the whole second block are zero.
    """
    rng = np.random.default_rng([8, seed])
    gradients = {}
    for name, shape in zip(PARAMETERS, ((1, ENTRIES), (ENTRIES,)), strict=True):
        values = 10.0 ** rng.uniform(-decades, 0.0, ENTRIES) * rng.choice([-1.0, 1.0], ENTRIES)
        values *= np.repeat(2.0 ** rng.integers(-12, 5, ENTRIES // BLOCK + 1), BLOCK)[:ENTRIES]
        if zeros:
            values[::3] = values[BLOCK : 2 * BLOCK] = 0.0
        gradients[name] = values.astype(np.float32).reshape(shape)
    return gradients


def wide_run(subject: Subject, recipe: Recipe = Recipe(EXACT)) -> Trainer:
    """Return a run of a matrix of one row and a vector, with `ENTRIES` entries each."""
    return subject.trainer(exact_linear(1, ENTRIES), recipe)


@clause("quantization.adam8-map")
def test_adam8_dequantization_map(subject: Subject, verdict: Verdict) -> None:
    rule = rule_of(subject)
    for moment, values, signed in (("first", rule.first_codes, True), ("second", rule.second_codes, False)):
        gaps = np.sort(values.astype(np.float64)) - paper_values(signed)
        smallest = float(values[values > 0].min())
        verdict.observe(f"{moment} moment", {"smallest": smallest, "furthest": float(np.max(np.abs(gaps)))})


@clause("quantization.adam8-encoding")
def test_codes_represent_zero_and_absmax(subject: Subject, verdict: Verdict) -> None:
    rule = rule_of(subject)
    for moment, values in (("first", rule.first_codes), ("second", rule.second_codes)):
        verdict.equal(len(np.unique(values)), 256, f"values of the {moment} moment", "map")
        verdict.holds(0.0 in values and values.max() == 1.0, f"0 and 1 of the {moment} moment", values, "both", "map")
    verdict.holds(bool((rule.second_codes >= 0).all()), "signs of the second moment", rule.second_codes, "none", "map")


@clause("quantization.adam8-encoding")
@pytest.mark.parametrize("zeros", [False, True], ids=["all", "zeros-between"])
def test_each_entry_has_nearest_code_of_its_block(subject: Subject, verdict: Verdict, zeros: bool) -> None:
    rule = rule_of(subject)
    trainer = wide_run(subject)
    for update in range(3):
        gradients = draw_gradients(update, zeros=zeros)
        former = {} if not update else trainer.optimizer_state()
        trainer.apply_gradients(gradients)
        for name in PARAMETERS:
            for slot, values, beta, squared in moments_of(rule):
                stored, what = StoredMoment.of(verdict, trainer, slot, name), f"{slot} of {name} after update {update}"
                verdict.equal(stored.largest.shape, (ENTRIES // BLOCK + 1,), f"blocks of {what}", "blocks")
                verdict.equal(stored.codes.shape, (ENTRIES,), f"codes of {what}", "blocks")
                stands_for = values[stored.codes] * expand_blocks(stored.largest, ENTRIES, BLOCK)
                _same(verdict, stored.decoded, stands_for, f"decoded {what}")
                old = former[f"{slot}/{name}"].ravel() if former else np.zeros(ENTRIES)
                moment = MomentBeforeEncoding.after(old, gradients[name].ravel(), beta, squared=squared)
                absmax_error = moment.absmax_error(stored.largest, BLOCK)
                verdict.within(absmax_error, WITHIN, f"largest magnitudes of {what}, of the bound", "largest")
                code_error = moment.code_error(stored.codes, stored.largest, values, BLOCK)
                verdict.within(code_error, WITHIN, f"codes of {what} beyond the nearest, of the bound", "not-nearest")
                zero = moment.value == 0
                verdict.holds(
                    bool((stored.decoded[zero] == 0).all()), f"zeros of {what}", stored.decoded[zero], 0, "zero"
                )


def _same(verdict: Verdict, measured: Array, expected: Array, what: str) -> None:
    with np.errstate(invalid="ignore", divide="ignore"):
        errors = np.where(measured == expected, 0.0, np.abs(measured - expected) / np.abs(expected))
    verdict.within(float(errors.max()), PRODUCT, f"{what}, relative", "decoded")


@clause("quantization.adam8-encoding")
def test_single_nonzero_entry_keeps_rest_of_block_zero(subject: Subject, verdict: Verdict) -> None:
    rule = rule_of(subject)
    trainer = wide_run(subject)
    gradients = full(trainer, 0.0)
    for gradient in gradients.values():
        gradient.reshape(-1)[BLOCK - 1 :: 2 * BLOCK] = 1.0
    trainer.apply_gradients(gradients)
    for name in PARAMETERS:
        for slot in (rule.first, rule.second):
            stored = StoredMoment.of(verdict, trainer, slot, name)
            zero = gradients[name].ravel() == 0
            verdict.holds(not stored.decoded[zero].any(), f"zeros in {slot} of {name}", stored.decoded[zero], 0, "zero")
            verdict.holds(bool((stored.decoded[~zero] > 0).all()), f"ones in {slot} of {name}", stored.decoded[~zero])


@clause("quantization.adam8-encoding")
def test_parameter_without_gradient_never_changes(subject: Subject, verdict: Verdict) -> None:
    trainer = wide_run(subject, Recipe(Adam(learning_rate=0.01, state_bits=8)))
    before = trainer.parameters()
    for update in range(30):
        trainer.apply_gradients(draw_gradients(update, zeros=True))
    after = trainer.parameters()
    for name, gradient in draw_gradients(0, zeros=True).items():
        constant = gradient == 0
        verdict.equal(after[name][constant], before[name][constant], f"entries of {name} without a gradient", "drift")
        moved = after[name][~constant] != before[name][~constant]
        verdict.holds(bool(moved.all()), f"the others of {name}", int(moved.sum()), int(moved.size), "unmoved")


@clause("quantization.adam8-trajectory")
def test_first_update_matches_float_adam(subject: Subject, verdict: Verdict) -> None:
    need(subject, Capability.ADAM_8BIT)
    recipe, gradients = Recipe(EXACT), draw_gradients(0, decades=2.0)
    short, wide = wide_run(subject, recipe), wide_run(subject, Recipe(Adam(beta1=EXACT.beta1, beta2=EXACT.beta2)))
    before = wide.parameters()
    short.apply_gradients(gradients)
    wide.apply_gradients(gradients)
    measured, expected = short.parameters(), wide.parameters()
    smallest = min(float(np.abs(value).min()) for value in gradients.values())
    largest = max(float(np.abs(value).max()) for value in before.values())
    bound = first_update(EXACT.learning_rate, EXACT.epsilon or 0.0, smallest, largest)
    verdict.differs(before, expected, "weights by float Adam's update")
    gap = float(np.max(np.abs(flat(measured) - flat(expected))))
    verdict.within(gap, bound, "weights after the first update", "first-update")


def distance(short: Trainer, wide: Trainer, background: float) -> float:
    """Return the distance of two runs after 100 updates on digits, relative to the movement of the second run.

    Args:
        background: value added to all pixels.
    """
    digits = [digits_batch(32, 32 * index) for index in range(20)]
    batches = [Batch(batch.inputs + np.float32(background), batch.targets) for batch in digits]
    start = flat(wide.parameters())
    for update in range(100):
        for run in (short, wide):
            run.update((batches[update % len(batches)],))
    end = flat(wide.parameters())
    return float(np.linalg.norm(flat(short.parameters()) - end) / np.linalg.norm(end - start))


@clause("quantization.adam8-trajectory")
def test_hundred_updates_stay_near_float_adam(subject: Subject, verdict: Verdict) -> None:
    need(subject, Capability.ADAM_8BIT)
    for draw in range(DRAWS):
        short, wide = (Recipe(adam, seed=1000 * draw) for adam in (Adam(state_bits=8), Adam()))
        control = distance(subject.oracle(PERCEPTRON, short), subject.oracle(PERCEPTRON, wide), GREY)
        if control <= OF_ITS_WAY.value / 2:
            break
    else:
        verdict.abstain(f"second moments vanish with these weights: the oracle itself is {control:.3g} of its way off")
    gap = distance(subject.trainer(PERCEPTRON, short), subject.trainer(PERCEPTRON, wide), GREY)
    verdict.within(gap, OF_ITS_WAY, "distance from float Adam's weights, in units of its way", "distance")
    verdict.observe("distance", {"measured": gap, "oracle": control})


@clause("quantization.adam8-rare-inputs")
def test_hundred_updates_with_sparse_inputs(subject: Subject, verdict: Verdict) -> None:
    need(subject, Capability.ADAM_8BIT)
    short, wide = (subject.trainer(PERCEPTRON, Recipe(adam)) for adam in (Adam(state_bits=8), Adam()))
    verdict.observe("distance", float(f"{distance(short, wide, 0.0):.1g}"))


@clause("quantization.adam8-bytes")
@pytest.mark.parametrize("smallest", [4096, 2048])
@pytest.mark.parametrize("shape", [(63, 65), (64, 64), (65, 65)], ids=["4095", "4096", "4225"])
def test_moments_have_declared_bytes(subject: Subject, verdict: Verdict, shape: tuple[int, int], smallest: int) -> None:
    rule, name = rule_of(subject), PARAMETERS[0]
    trainer = subject.trainer(exact_linear(*shape), Recipe(Adam(state_bits=8, smallest=smallest)))
    trainer.apply_gradients(full(trainer, 1.0))
    state, entries = trainer.optimizer_state(), shape[0] * shape[1]
    encoded = any(f"codes/{slot}/{name}" in state for slot in (rule.first, rule.second))
    kinds = ("codes/", "absmax/") if encoded else ("",)
    arrays = {
        f"{kind}{slot}": state.get(f"{kind}{slot}/{name}") for kind in kinds for slot in (rule.first, rule.second)
    }
    lacking = sorted(kind for kind, array in arrays.items() if array is None)
    verdict.equal(lacking, [], "missing parts of the moments", "lacking")
    measured = sum(array.nbytes for array in arrays.values() if array is not None)
    verdict.equal(measured, state_bytes(entries, BLOCK, smallest), f"bytes of {entries} entries", "bytes")
    verdict.observe("bytes a parameter", measured / entries)


@clause("quantization.adam8-survives-saving")
def test_resumed_adam8_run_matches_bitwise(subject: Subject, verdict: Verdict, tmp_path: Path) -> None:
    need(subject, Capability.ADAM_8BIT, Capability.CHECKPOINT)
    saved, other = wide_run(subject), wide_run(subject)
    for update in range(3):
        saved.apply_gradients(draw_gradients(update))
    saved.save(tmp_path)
    other.apply_gradients(draw_gradients(9))
    other.restore(tmp_path)
    verdict.same_state(other.state(), saved.state(), "state as restored", "restored")
    for update in range(3, 6):
        for run in (saved, other):
            run.apply_gradients(draw_gradients(update))
    verdict.same_state(other.state(), saved.state(), "state three updates later", "continued")


@clause("quantization.adam8-survives-saving")
def test_checkpoint_with_other_block_size_is_refused(subject: Subject, verdict: Verdict, tmp_path: Path) -> None:
    need(subject, Capability.ADAM_8BIT, Capability.CHECKPOINT)
    saved = wide_run(subject, Recipe(Adam(state_bits=8, block=64)))
    other = wide_run(subject)
    saved.apply_gradients(draw_gradients(0))
    saved.save(tmp_path)
    try:
        other.restore(tmp_path)
    except ValueError:
        return
    measured, expected = ({n: a for n, a in run.optimizer_state().items() if "/" in n} for run in (other, saved))
    verdict.same_state(measured, expected, "moments as restored", "blocks", ignoring=("codes/", "absmax/"))


@clause("quantization.adam8-skips")
def test_overflow_changes_no_code(subject: Subject, verdict: Verdict) -> None:
    need(subject, Capability.ADAM_8BIT, Capability.DYNAMIC_SCALING)
    trainer = wide_run(subject, Recipe(EXACT, scaling=DynamicScaling(2.0**4, interval=100)))
    for update in range(2):
        trainer.apply_gradients(draw_gradients(update))
    before = {**trainer.parameters(), **trainer.optimizer_state()}
    skipped = trainer.apply_gradients(spike_gradients(trainer, np.inf, base=1.0))
    verdict.equal(skipped.skipped, True, "an update whose gradients overflow is skipped", "applied")
    verdict.same_state(
        {**trainer.parameters(), **trainer.optimizer_state()}, before, "the run after the skipped update", "moved"
    )
    trainer.apply_gradients(draw_gradients(2))
    verdict.differs(before, {**trainer.parameters(), **trainer.optimizer_state()}, "the run after the next update")
