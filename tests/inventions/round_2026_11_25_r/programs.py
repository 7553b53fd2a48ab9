"""A small program for each fault of the round, whose results through the contract differ from the reference's."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from fixtures.data import digits_batch, exact_batch, sincos_batch, token_batch, vector_batch
from fixtures.layers import Activation, Dense, Dropout, Head, Heads
from fixtures.model import Batch, Model
from fixtures.models import (
    digits_convolution,
    digits_mlp,
    dropout_probe,
    encoder,
    exact_linear,
    exact_stack,
    scalar,
    sincos,
    two_heads,
)
from fixtures.recipe import (
    BFLOAT16,
    FLOAT16,
    SGD,
    Adam,
    AdamW,
    Aware,
    DynamicScaling,
    Offload,
    Precision,
    Ranks,
    Recipe,
    Recompute,
    StaticScaling,
    Steps,
)
from frameworks.contract import Update
from frameworks.reference import ReferenceFramework

Seen = dict[str, Any]
Program = Callable[[ReferenceFramework], Seen]

BATCH = exact_batch()
SCHEDULE = Steps((2, 4), (1.0, 0.5, 0.25))


def _of(update: Update) -> Seen:
    return dict(vars(update))


def _reloaded(
    framework: ReferenceFramework, model: Model, recipe: Recipe, batch: Batch, before: int, after: int = 1
) -> Seen:
    """The state of a run that is saved after some updates and goes on in another one."""
    first, second = (framework.trainer(model, recipe) for _ in range(2))
    for _ in range(before):
        first.update((batch,))
    with tempfile.TemporaryDirectory() as folder:
        first.save(Path(folder))
        second.restore(Path(folder))
    loaded = {f"loaded/{name}": value for name, value in second.state().items()}
    for _ in range(after):
        second.update((batch,))
    return second.state() | loaded


def loss_of_last_micro_batch(framework: ReferenceFramework) -> Seen:
    return _of(framework.trainer(exact_linear(), Recipe(accumulation=4)).update(BATCH.into(4)))


def one_key_for_the_window(framework: ReferenceFramework) -> Seen:
    batch = Batch(np.ones((1, 64), np.float32), {"output": np.zeros((1, 1), np.float32)})
    run = framework.trainer(dropout_probe(), Recipe(accumulation=2))
    run.update((batch, batch))
    return run.state()


def average_stays_in_the_model(framework: ReferenceFramework) -> Seen:
    run = framework.trainer(exact_linear(), Recipe(SGD(0.125), average=0.75))
    for _ in range(2):
        run.update((BATCH,))
    run.predict_averaged(BATCH.inputs)
    return run.predict(BATCH.inputs)


def average_starts_anew_after_load(framework: ReferenceFramework) -> Seen:
    return _reloaded(framework, exact_linear(), Recipe(SGD(0.125), average=0.75), BATCH, 2)


def moments_take_the_models_format(framework: ReferenceFramework) -> Seen:
    recipe = Recipe(Adam(), Precision("O2", "bfloat16"))
    return _reloaded(framework, digits_mlp((16,)), recipe, digits_batch(8), 2)


def schedule_is_advanced_by_the_load(framework: ReferenceFramework) -> Seen:
    return _reloaded(framework, exact_linear(), Recipe(SGD(0.125), schedule=SCHEDULE), BATCH, 2)


def decay_after_the_update(framework: ReferenceFramework) -> Seen:
    run = framework.trainer(digits_mlp((16,)), Recipe(AdamW(1e-2, weight_decay=0.1)))
    for _ in range(3):
        run.update((digits_batch(8),))
    return run.state()


def scaler_moves_once_an_optimizer(framework: ReferenceFramework) -> Seen:
    run = framework.trainer(scalar(), Recipe(scaling=DynamicScaling(256.0, interval=4), optimizers=2))
    return _of(run.feed({name: np.full_like(value, np.inf) for name, value in run.parameters().items()}))


def loss_divided_by_the_next_scale(framework: ReferenceFramework) -> Seen:
    run = framework.trainer(exact_linear(), Recipe(scaling=DynamicScaling(256.0, interval=1)))
    return _of(run.update((BATCH,)))


def casts_outlive_a_load(framework: ReferenceFramework) -> Seen:
    run, batch = framework.trainer(digits_mlp((16,)), Recipe(SGD(), FLOAT16)), digits_batch(8)
    with tempfile.TemporaryDirectory() as folder:
        run.save(Path(folder))
        run.update((batch,))
        run.predict(batch.inputs)
        run.restore(Path(folder))
    return run.predict(batch.inputs)


def offloaded_optimizer_keeps_its_rate(framework: ReferenceFramework) -> Seen:
    recipe = Recipe(SGD(0.125, momentum=0.5), schedule=Steps((1,), (1.0, 0.5)), offload=Offload(("optimizer",)))
    run = framework.trainer(exact_linear(), recipe)
    for _ in range(2):
        run.update((BATCH,))
    return run.state()


def counter_survives_overflow_found_by_hand(framework: ReferenceFramework) -> Seen:
    run = framework.trainer(scalar(), Recipe(scaling=DynamicScaling(256.0, interval=4)))
    for value in (1.0, 1.0, np.inf):
        update = run.feed({n: np.full_like(p, value) for n, p in run.parameters().items()}, unscale_calls=1)
    return _of(update)


def inverse_scale_in_half(framework: ReferenceFramework) -> Seen:
    run = framework.trainer(scalar(), Recipe(SGD(), FLOAT16, StaticScaling(2.0**27)))
    run.feed({name: np.full_like(value, 2.0**-10) for name, value in run.parameters().items()})
    return run.state()


def losses_of_an_open_window_are_lost(framework: ReferenceFramework) -> Seen:
    parts, recipe = BATCH.into(4), Recipe(accumulation=4)
    first, second = (framework.trainer(exact_linear(), recipe) for _ in range(2))
    with tempfile.TemporaryDirectory() as folder:
        for part in parts[:2]:
            first.accumulate(part, BATCH.items)
        first.save(Path(folder))
        second.restore(Path(folder))
    for part in parts[2:]:
        second.accumulate(part, BATCH.items)
    return _of(second.apply())


def save_of_another_optimizer_is_taken(framework: ReferenceFramework) -> Seen:
    first, second = (framework.trainer(exact_linear(), Recipe(each)) for each in (Adam(), SGD()))
    first.update((BATCH,))
    with tempfile.TemporaryDirectory() as folder:
        first.save(Path(folder))
        try:
            second.restore(Path(folder))
        except ValueError:
            return {"refused": True}
    return {"refused": False}


def _dropping() -> Model:
    layers = (Dense(16), Dropout(0.5), Activation("relu"), Dense(16), Dropout(0.5), Heads((Head("output", 10),)))
    return Model("dropping", layers, (784,), (("output", "cross_entropy"),))


def replays_the_first_micro_batchs_masks(framework: ReferenceFramework) -> Seen:
    run = framework.trainer(_dropping(), Recipe(accumulation=2, recompute=Recompute(2)))
    run.update(digits_batch(8).into(2))
    return run.state()


def replays_at_level_one(framework: ReferenceFramework) -> Seen:
    model = encoder(embedded=False, dropout=0.25, blocks=1)
    run = framework.trainer(model, Recipe(SGD(), Precision("O2", "bfloat16"), recompute=Recompute(2)))
    return run.gradients((vector_batch(2),))


def second_loss_skips_the_segments(framework: ReferenceFramework) -> Seen:
    batch = Batch(BATCH.inputs, dict.fromkeys("ab", BATCH.targets["output"][:, :2]))
    run = framework.trainer(two_heads(), Recipe(separate_losses=True, recompute=Recompute(1)))
    return run.gradients((batch,))


def masked_positions_count(framework: ReferenceFramework) -> Seen:
    return framework.trainer(encoder(blocks=1), Recipe()).gradients((token_batch(4),))


def ids_in_the_compute_format(framework: ReferenceFramework) -> Seen:
    return framework.trainer(encoder(blocks=1), Recipe(SGD(), BFLOAT16)).gradients((token_batch(2),))


def running_statistics_are_cast_to_evaluate(framework: ReferenceFramework) -> Seen:
    run, batch = framework.trainer(digits_convolution(0.0, 2), Recipe(SGD(), BFLOAT16)), digits_batch(4, image=True)
    run.update((batch,))
    return run.predict(batch.inputs)


def inner_scope_inherits_lists(framework: ReferenceFramework) -> Seen:
    values = np.ones((4, 4), np.float32)
    with framework.autocast(FLOAT16, wide=("matmul",)), framework.autocast(FLOAT16):
        return {"format": framework.run_op("matmul", values, values).dtype}


def largest_is_never_reset(framework: ReferenceFramework) -> Seen:
    product, ones = framework.delayed_product(np.ones((4, 4), np.float32), history=2), np.ones((2, 4), np.float32)
    for size in (64.0, 1.0, 1.0, 1.0):
        product.train((size * ones, ones))
    return {operand: kept.maxima for operand, kept in product.remembered().items()}


def last_block_is_filled_with_old_values(framework: ReferenceFramework) -> Seen:
    run = framework.trainer(digits_mlp((8,)), Recipe(Adam(state_bits=8)))
    gradient = np.full((784, 8), 1.0)
    gradient[-16:] = 2.0**-12
    run.feed({"0.weight": gradient})
    return run.optimizer_state()


def freeze_counts_from_the_load(framework: ReferenceFramework) -> Seen:
    recipe = Recipe(SGD(0.5), quantization=Aware(freeze=1))
    return _reloaded(framework, digits_mlp((16,)), recipe, digits_batch(8), 2)


def load_keeps_the_models_own_ranges(framework: ReferenceFramework) -> Seen:
    model, inputs = digits_mlp((16,)), digits_batch(8).inputs
    weights, technique = model.weights(0), framework.post_training()
    first, second = (technique.quantized("static-int8", model, weights, (size * inputs,)) for size in (1.0, 4.0))
    with tempfile.TemporaryDirectory() as folder:
        first.save(Path(folder))
        second.restore(Path(folder))
    return second.predict(inputs)


def files_hold_float32(framework: ReferenceFramework) -> Seen:
    run = framework.trainer(sincos(8), Recipe(SGD(0.1), offload=Offload(("parameters",), "disk")))
    run.update((sincos_batch(16),))
    return run.state()


def average_on_the_first_rank_alone(framework: ReferenceFramework) -> Seen:
    company = framework.company(exact_linear(), Recipe(SGD(0.125), average=0.75, ranks=Ranks(2)))
    for _ in range(2):
        company.update([(part,) for part in BATCH.into(2)])
    return {f"{rank}/{n}": v for rank, state in enumerate(company.states()) for n, v in state.items()}


def norm_leaves_out_the_last_rows(framework: ReferenceFramework) -> Seen:
    company = framework.company(exact_stack(), Recipe(SGD(0.125), clip=0.5, ranks=Ranks(3, "full")))
    sizes = BATCH.split(3, 3, 2)
    return {f"{rank}": update.gradient_norm for rank, update in enumerate(company.update([(p,) for p in sizes]))}


def empty_part_counts_as_one(framework: ReferenceFramework) -> Seen:
    company = framework.company(exact_linear(), Recipe(SGD(0.125), ranks=Ranks(2)))
    company.update([(part,) for part in BATCH.split(8, 0)])
    return company.states()[0]


PROGRAMS: tuple[Program, ...] = (
    loss_of_last_micro_batch,
    one_key_for_the_window,
    average_stays_in_the_model,
    average_starts_anew_after_load,
    moments_take_the_models_format,
    schedule_is_advanced_by_the_load,
    decay_after_the_update,
    scaler_moves_once_an_optimizer,
    loss_divided_by_the_next_scale,
    casts_outlive_a_load,
    offloaded_optimizer_keeps_its_rate,
    counter_survives_overflow_found_by_hand,
    inverse_scale_in_half,
    losses_of_an_open_window_are_lost,
    save_of_another_optimizer_is_taken,
    replays_the_first_micro_batchs_masks,
    replays_at_level_one,
    second_loss_skips_the_segments,
    masked_positions_count,
    ids_in_the_compute_format,
    running_statistics_are_cast_to_evaluate,
    inner_scope_inherits_lists,
    largest_is_never_reset,
    last_block_is_filled_with_old_values,
    freeze_counts_from_the_load,
    load_keeps_the_models_own_ranges,
    files_hold_float32,
    average_on_the_first_rank_alone,
    norm_leaves_out_the_last_rows,
    empty_part_counts_as_one,
)
"""A program for each fault, in the order of the faults."""
