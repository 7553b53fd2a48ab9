"""Cost of the techniques: counted bytes, and interleaved step times."""

from collections.abc import Callable

import pytest

from conformance import timing
from conformance.checks.api import Bound, Subject, Verdict, clause
from conformance.timing import RECIPE, compare_times
from fixtures.data import digits_batch, token_batch, wide_batch
from fixtures.model import Batch, Model
from fixtures.models import blocks, digits_convolution, digits_mlp, encoder
from fixtures.recipe import BFLOAT16, FLOAT16, FLOAT32, Precision, Recompute

LOW = pytest.mark.parametrize("precision", [FLOAT16, BFLOAT16], ids=lambda p: p.label)
N, WIDTH, ROWS, LABELS = 8, 128, 64, 10
BOUNDARY = ROWS * WIDTH * 4
"""Bytes of the activations between two blocks, in float32."""

SCALARS = 8
"""Bytes of a loss and of its item count, in float32, which some frameworks save for backward."""

GRAIN = 512
"""Granularity of a device's allocator in bytes, for frameworks that count allocated bytes; on a CPU none does."""

SMALL: dict[str, Callable[[], tuple[Model, Batch]]] = {
    "convolution": lambda: (digits_convolution(0.0, 4), digits_batch(32, image=True)),
    "encoder": lambda: (encoder(width=16, heads=2, blocks=1), token_batch(32)),
}
TECHNIQUES = {
    "plain": RECIPE,
    "float16": RECIPE.replace(precision=FLOAT16),
    "recomputed": RECIPE.replace(recompute=Recompute(4)),
}


def slack(subject: Subject, tensors: int) -> int:
    """Return the bytes by which a count of `tensors` tensors may exceed the tensors' own bytes."""
    return SCALARS + (0 if subject.framework.device == "cpu" else GRAIN * tensors)


def shares(subject: Subject, model: Model, batch: Batch, precision: Precision) -> tuple[float, float]:
    """Return the saved bytes in float32, and the share of them that a precision needs."""
    wide, mixed = (subject.trainer(model, RECIPE.replace(precision=p)).saved_bytes(batch) for p in (FLOAT32, precision))
    return float(wide), mixed / wide


@clause("cost.mixed-bytes")
@LOW
@pytest.mark.parametrize("fixture", SMALL)
def test_mixed_precision_saves_fewer_bytes(
    subject: Subject, verdict: Verdict, fixture: str, precision: Precision
) -> None:
    _, share = shares(subject, *SMALL[fixture](), precision)
    verdict.measure("saved bytes over those in float32", "1", [share])
    verdict.holds(0.5 <= share < 1.0, "saved bytes over those in float32", share, "0.5 to below 1", "not-fewer")


@clause("cost.mixed-bytes")
@LOW
def test_matmul_saves_half_the_bytes(subject: Subject, verdict: Verdict, precision: Precision) -> None:
    rows, model = 8 * ROWS, blocks(N, WIDTH)
    batch = wide_batch(rows, WIDTH)
    wide, share = shares(subject, model, batch, precision)
    ranks = subject.framework.ranks()
    weights = sum(value.size for value in model.weights(0).values()) * (1 if ranks is None else ranks.count)
    copies = 2 * (batch.inputs.size + weights)
    loss = 2 * rows * LABELS + slack(subject, 6 * N)
    derivation = {
        "method": "half, a 16-bit copy of every input and of every rank's weights, and the loss in float32",
        "copies": copies,
        "loss": loss,
        "float32": wide,
        "source": "arXiv:1710.03740",
    }
    bound = Bound(0.5 + (copies + loss) / wide, derivation)
    verdict.within(share, bound, "saved bytes over those in float32", "not-halved")


def saved_bytes(subject: Subject, count: int, segments: int, variant: str | None = None) -> int:
    """Return the saved bytes of `count` blocks with `segments` recomputed segments; 0 means no recomputation."""
    return timing.saved_bytes(subject, timing.equal_blocks(count, WIDTH, ROWS), segments, variant)


def extra_activations(subject: Subject, variant: str | None) -> int:
    """Return how many activations a variant keeps next to the boundaries: one per block if it keeps products by
    definition."""
    return N if variant in subject.conventions.keeps_products else 0


@clause("cost.recompute-bytes")
@pytest.mark.parametrize("segments", [1, 2, 4, 8])
def test_each_segment_saves_one_boundary(
    subject: Subject, verdict: Verdict, segments: int, variant: str | None
) -> None:
    """Saved bytes follow a closed form: s boundaries of b·w float32 values, and the bytes of the head and its loss.

    A segment keeps its input. The first segment's input is the batch, which is not counted. The head is not recomputed;
    its input, the last block's output, is counted instead.
    """
    alone = saved_bytes(subject, 0, 0)
    expected = (segments + extra_activations(subject, variant)) * BOUNDARY + alone
    above = saved_bytes(subject, N, segments, variant) - expected
    derivation = {"method": "closed form", "bytes": expected, "head and loss": alone, "source": "arXiv:1604.06174"}
    bound = Bound(float(slack(subject, segments + 2)), derivation)
    verdict.within(float(abs(above)), bound, "distance of the saved bytes from the closed form", "not-the-closed-form")


@clause("cost.recompute-bytes")
def test_peak_is_boundaries_and_largest_segment(subject: Subject, verdict: Verdict, variant: str | None) -> None:
    """Peak bytes are the boundaries plus one segment's own activations during its backward pass.

    These are the activations that only its blocks keep without recomputation. If a block keeps 2 tensors, s segments
    of n blocks need the share (s + 2n/s - 1) / 2n: 1, 9/16, 7/16 and 9/16 for s = 1, 2, 4 and 8 of n = 8.
    """
    plain = saved_bytes(subject, N, 0)
    most = {}
    for segments in (2, 4, 8):
        largest = saved_bytes(subject, N // segments, 0) - saved_bytes(subject, N // segments, 1, variant)
        most[segments] = (saved_bytes(subject, N, segments, variant) + largest) / plain
        verdict.measure(f"bytes at most over those of the whole, {segments} segments", "1", [most[segments]])
    extra = extra_activations(subject, variant) / (2 * N)
    derivation = {"method": "(s + 2n/s - 1) / 2n for s = 4, n = 8 is 7/16", "kept": extra, "source": "arXiv:1604.06174"}
    bound = Bound(0.5 + extra, derivation)
    verdict.within(most[4], bound, "bytes at most with four segments over those of the whole", "not-halved")


@clause("cost.accumulation-bytes")
@pytest.mark.parametrize("k", [2, 8])
def test_micro_batch_saves_its_share_of_bytes(subject: Subject, verdict: Verdict, k: int) -> None:
    model, batch = digits_mlp((256, 128)), digits_batch(32 * k)
    trainer, parts = subject.trainer(model, RECIPE.replace(accumulation=k)), batch.into(k)
    for part in parts[:-1]:
        trainer.accumulate(part, batch.items)
    one, whole = trainer.saved_bytes(parts[-1]), subject.trainer(model, RECIPE).saved_bytes(batch)
    verdict.measure(f"saved bytes of the last of {k} micro-batches over those of one batch", "1", [one / whole])
    bound = Bound(float(k * slack(subject, 8)), {"method": "the loss of every micro-batch, and the allocator's grain"})
    verdict.within(
        float(abs(k * one - whole)), bound, f"{k} times the last one's bytes, from the whole's", "not-a-share"
    )


@clause("cost.bytes-repeat")
@pytest.mark.parametrize("technique", TECHNIQUES)
def test_byte_counts_repeat(subject: Subject, verdict: Verdict, technique: str) -> None:
    model, batch = blocks(N, WIDTH), wide_batch(ROWS, WIDTH)
    runs = [subject.trainer(model, TECHNIQUES[technique]) for _ in range(3)]
    counts = [run.saved_bytes(batch) for run in runs]
    for _ in range(3):
        runs[0].update((batch,))
        counts.append(runs[0].saved_bytes(batch))
    verdict.measure(f"saved bytes, {technique}", "B", counts[:1])
    verdict.holds(counts[0] > 0, "something is held", counts[0], "above 0", "nothing-counted")
    verdict.equal(counts, [counts[0]] * 6, "saved bytes of three runs, and after each of three updates", "count-drifts")


def brief() -> tuple[Model, Batch]:
    """Return model and batch of a step that is fast on every machine."""
    return blocks(N, 32), wide_batch(16, 32)


@clause("cost.recompute-time")
def test_time_of_recomputed_steps(subject: Subject, verdict: Verdict, variant: str | None) -> None:
    technique = RECIPE.replace(recompute=Recompute(4, variant=variant))
    compare_times(subject, verdict, brief(), technique, "4 segments")


@clause("cost.mixed-speed")
@LOW
def test_time_of_mixed_precision_steps(subject: Subject, verdict: Verdict, precision: Precision) -> None:
    compare_times(subject, verdict, brief(), RECIPE.replace(precision=precision), precision.label)
