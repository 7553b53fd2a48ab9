"""Cost of the techniques on a GPU: times of steps that fill it, and its allocator's peak.

All tests here are marked `gpu` and unsupported on a CPU. The adapter measures times, with the device's events if the
framework has them (`Framework.measure_time`). A test fails only if the whole interval of a ratio exceeds its bound.
"""

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pytest

from conformance.checks import subprocesses
from conformance.checks.api import Bound, Subject, Verdict, clause, need, need_device
from conformance.timing import (
    RECIPE,
    Fixture,
    compare_times,
    equal_blocks,
    example,
    products,
    saved_bytes,
    transformer_block,
)
from fixtures.recipe import BFLOAT16, FLOAT16, Adam, DynamicScaling, Precision, Recipe, Recompute
from frameworks.contract import Capability
from results.compare.ratio import FEWEST

pytestmark = pytest.mark.gpu

LOW = pytest.mark.parametrize("precision", [FLOAT16, BFLOAT16], ids=lambda p: p.label)
TF32 = pytest.mark.parametrize("tf32", ["default", "off", "on"])
"""Setting of float32 products: the framework's default, TensorFloat-32 off (all bits kept), TensorFloat-32 on."""

EPOCHS = 1_000
"""Number of epochs of the sine and cosine example; an epoch is one update on all of its points."""

BLOCKS, WIDTH, ROWS = 16, 1024, 16384
"""Blocks, their width and rows of the batch: activations need many times the bytes of the weights."""

SEGMENTS, MICRO_BATCHES = 4, 8
WORKSPACE = 64 * 2**20
"""Largest workspace of libraries of matrix products, in bytes; cuBLAS takes 32 MiB on the largest GPUs."""

TENSORS = 4
"""Additional activations of one block during its backward pass: gradients and their inputs."""
TECHNIQUES = {
    "O1-float16": RECIPE.replace(precision=FLOAT16),
    "O1-bfloat16": RECIPE.replace(precision=BFLOAT16),
    "recomputed": RECIPE.replace(recompute=Recompute(SEGMENTS)),
    "accumulated": RECIPE.replace(accumulation=MICRO_BATCHES),
}


def tall_blocks(count: int = BLOCKS) -> Fixture:
    """Return the workload for the allocator's peak."""
    return equal_blocks(count, WIDTH, ROWS, inputs=16)


def float32_products(subject: Subject, tf32: str) -> AbstractContextManager[None]:
    """Return the scope of a case of `TF32`; end the test if there is no such switch, except for the default."""
    if tf32 == "default" and not subject.framework.declares(Capability.TF32).supported:
        return nullcontext()
    need(subject, Capability.TF32)
    return subject.framework.tf32({"default": None, "off": False, "on": True}[tf32])


@clause("cost.recompute-time")
def test_recomputation_costs_one_forward_pass(subject: Subject, verdict: Verdict, variant: str | None) -> None:
    need_device(subject)
    technique = RECIPE.replace(recompute=Recompute(SEGMENTS, variant=variant))
    ratio = compare_times(subject, verdict, products(), technique, f"{SEGMENTS} segments, products")
    verdict.holds(
        ratio.high >= 1.0, "time of a step over the plain one's", ratio.summary, "at least 1", "faster-than-plain"
    )
    method = "a forward pass is at most half of a step, for backward has at least as many products"
    bound = Bound(1.5, {"method": method, "source": "arXiv:1604.06174"})
    verdict.within(ratio.low, bound, "lower end of a step's time over the plain one's", "slower-than-one-forward")


@clause("cost.mixed-speed")
@LOW
@TF32
def test_mixed_precision_is_no_slower(subject: Subject, verdict: Verdict, tf32: str, precision: Precision) -> None:
    """The step is dominated by products. TensorFloat-32 is no excuse: it has half the rate of 16-bit products."""
    need_device(subject)
    with float32_products(subject, tf32):
        what = f"{precision.label}, products, TF32 {tf32}"
        ratio = compare_times(subject, verdict, products(), RECIPE.replace(precision=precision), what)
    method = "products in 16 bits run at twice the rate of TensorFloat-32, and that at several times float32's"
    source = "arXiv:1710.03740; NVIDIA A100 Tensor Core GPU Architecture, 2020, table of peak rates"
    bound = Bound(1.0, {"method": method, "source": source})
    verdict.within(ratio.low, bound, "lower end of a step's time over the one's in float32", "slower-than-float32")


@clause("cost.mixed-speed")
@LOW
@TF32
def test_mixed_precision_speeds_up_transformer_block(
    subject: Subject, verdict: Verdict, tf32: str, precision: Precision
) -> None:
    """The bound applies where float32 keeps all bits: TensorFloat-32 gains more than norms, softmax and casts leave."""
    need_device(subject)
    with float32_products(subject, tf32):
        what = f"{precision.label}, transformer block, TF32 {tf32}"
        ratio = compare_times(subject, verdict, transformer_block(), RECIPE.replace(precision=precision), what)
    if tf32 == "off":
        bound = Bound(1.0, {"method": "its products in 16 bits are no slower", "source": "arXiv:1710.03740"})
        verdict.within(ratio.low, bound, "lower end of a step's time over the one's in float32", "slower-than-float32")


@clause("cost.mixed-speed")
@LOW
def test_time_of_sine_and_cosine_example(subject: Subject, verdict: Verdict, precision: Precision) -> None:
    """Measure the example's 1,000 epochs in as many parts as there are pairs; 0.68 of the plain time is published.

    The ratio has no bound: the products are so small that starting a step's operations takes longer than the
    operations, and mixed precision has more operations to start.
    """
    need_device(subject)
    plain = Recipe(Adam(1e-2))
    scaling = DynamicScaling() if precision == FLOAT16 else None
    technique = plain.replace(precision=precision, scaling=scaling)
    what, steps = f"{precision.label}, sine and cosine", -(-EPOCHS // FEWEST)
    compare_times(subject, verdict, example(), technique, what, plain=plain, steps=steps)


def count_peak_bytes(subject: Subject, technique: str) -> int:
    """Return the peak of the bytes saved for the backward pass of `tall_blocks`, by the exact count."""
    model, batch = tall_blocks()
    part = batch.into(TECHNIQUES[technique].accumulation)[-1]
    count = subject.trainer(model, TECHNIQUES[technique]).saved_bytes(part)
    if technique != "recomputed":
        return count
    segment = tall_blocks(BLOCKS // SEGMENTS)
    return count + saved_bytes(subject, segment, 0) - saved_bytes(subject, segment, 1)


@clause("cost.peak-follows-count")
@pytest.mark.parametrize("technique", TECHNIQUES)
def test_allocator_peak_matches_byte_count(subject: Subject, verdict: Verdict, tmp_path: Path, technique: str) -> None:
    """Compare a technique's share of the plain step's peak, without the weights, with its share of the count.

    A peak consists of the weights, the counted bytes c, and the working memory w of one block. With ' for the
    technique, (c' + w') / (c + w) - c' / c lies within w / (c + w).
    """
    need_device(subject)
    need(subject, Capability.SAVED_BYTES)
    model, batch = tall_blocks()
    recipes = {"plain": RECIPE, "technique": TECHNIQUES[technique]}
    peaks = {
        side: subprocesses.peak_bytes(subject, model, recipe, batch.into(recipe.accumulation), tmp_path / side)
        for side, recipe in recipes.items()
    }
    counts = {"plain": saved_bytes(subject, (model, batch), 0), "technique": count_peak_bytes(subject, technique)}
    for side, name in (("plain", "plain"), ("technique", technique)):
        verdict.measure(f"bytes at most by the allocator, {name}", "B", [peaks[side]])
        verdict.measure(f"bytes at most by the count, {name}", "B", [counts[side]])
    weights = sum(value.nbytes for value in model.weights(0).values())
    above = {side: peak - weights for side, peak in peaks.items()}
    verdict.holds(above["plain"] > 0, "the plain step's peak above its weights", above["plain"], "above 0", "no-peak")
    work = TENSORS * ROWS * WIDTH * 4 + weights + WORKSPACE
    derivation = {
        "method": "four activations of a block in float32, every gradient, and the libraries' workspace",
        "bytes": work,
        "peaks": peaks,
        "counts": counts,
        "source": "arXiv:1604.06174, section 4.1",
    }
    shares = above["technique"] / above["plain"], counts["technique"] / counts["plain"]
    bound = Bound(work / above["plain"], derivation)
    verdict.within(abs(shares[0] - shares[1]), bound, "the peak's share of the plain one's, from the count's", "apart")
