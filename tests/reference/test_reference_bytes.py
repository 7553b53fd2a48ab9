"""What the reference keeps for backward, against sums that were made by hand, layer by layer."""

import pytest

from fixtures.data import digits_batch, token_batch, wide_batch
from fixtures.models import blocks, digits_convolution, encoder
from fixtures.recipe import BFLOAT16, FLOAT16, FLOAT32, Precision, Recipe, Recompute
from frameworks.reference import ReferenceFramework

LOW = pytest.mark.parametrize("precision", [FLOAT16, BFLOAT16], ids=lambda p: p.label)
EACH = pytest.mark.parametrize(
    ("precision", "size"), [(FLOAT32, 4), (FLOAT16, 2), (BFLOAT16, 2)], ids=lambda value: getattr(value, "label", "")
)
N, WIDTH, ROWS = 8, 32, 16


def recipe(precision: Precision = FLOAT32, segments: int = 0) -> Recipe:
    return Recipe(precision=precision, recompute=Recompute(segments) if segments else None)


@EACH
@pytest.mark.parametrize("segments", [0, 1, 2, 4, 8])
def test_saved_bytes_of_blocks(precision: Precision, size: int, segments: int) -> None:
    products = N - 1  # the input of each dense layer; the first one's is the batch
    functions = N  # GELU keeps what it is applied to
    inner = segments - 1 if segments else products + functions  # of recomputed ones, the input of each segment
    head = 1
    probabilities = ROWS * 10 * 4
    trainer = ReferenceFramework().trainer(blocks(N, WIDTH), recipe(precision, segments))
    expected = (inner + head) * ROWS * WIDTH * size + probabilities
    assert trainer.saved_bytes(wide_batch(ROWS, WIDTH)) == expected


FILTERS = 4
LARGE, POOLED, SMALL = 28 * 28 * FILTERS, 14 * 14 * FILTERS, 7 * 7 * 2 * FILTERS
"""Values of a sample behind the first convolution, behind the pooling and behind the second convolution."""

STATISTICS = 8 * (FILTERS + 2 * FILTERS)
"""Mean and variance of each channel of both batch norms, in float32."""


def convolution_bytes(precision: Precision) -> int:
    trainer = ReferenceFramework().trainer(digits_convolution(0.0, FILTERS), recipe(precision))
    return trainer.saved_bytes(digits_batch(ROWS, image=True))


def test_convolution() -> None:
    first = LARGE + LARGE  # batch norm's input and ReLU's result
    chosen = POOLED  # which of four values was largest, a byte each
    second = POOLED + SMALL + SMALL  # the convolution's input, batch norm's input, ReLU's result: the dense layer's too
    dense = 32  # ReLU's result, which is the head's input
    assert convolution_bytes(FLOAT32) == ROWS * (4 * (first + second + dense) + chosen + 10 * 4) + STATISTICS


@LOW
def test_convolution_in_mixed_precision(precision: Precision) -> None:
    wide = LARGE + LARGE + SMALL + SMALL  # batch norm computes in float32 and hands it on to ReLU
    low = POOLED + SMALL + 32  # what the second convolution, the dense layer and the head multiply
    assert convolution_bytes(precision) == ROWS * (4 * wide + 2 * low + POOLED + 10 * 4) + STATISTICS


TOKENS, HEADS, LENGTH = 16, 2, 16
"""Width of a token, heads and tokens of a sequence."""

VALUES = ROWS * LENGTH * TOKENS
"""Of one activation of the encoder."""

SHARES = ROWS * HEADS * LENGTH * LENGTH
"""How much each token attends to each other one, in every head."""

ROWS_OF_NORMS = ROWS * LENGTH * 3 * 8
"""Mean and variance of each token in three layer norms, in float32."""

PROBABILITIES = ROWS * LENGTH * 4 * 4
WIDE = 3
"""Activations that layer norms are applied to: they take the residual stream."""


def encoder_bytes(precision: Precision) -> int:
    model = encoder(width=TOKENS, heads=HEADS, blocks=1, length=LENGTH)
    return ReferenceFramework().trainer(model, recipe(precision)).saved_bytes(token_batch(ROWS, LENGTH))


def test_encoder() -> None:
    attention = 1 + 3 + 1  # its input, queries, keys and values, and what the output projection multiplies
    feed_forward = 1 + 2 + 2  # its input, and twice as many values before and behind GELU
    head = 1
    activations = WIDE + attention + feed_forward + head
    assert encoder_bytes(FLOAT32) == 4 * (activations * VALUES + SHARES) + ROWS_OF_NORMS + PROBABILITIES


@LOW
def test_encoder_in_mixed_precision(precision: Precision) -> None:
    attention = 3 + 3 + 1  # each of three projections casts the input for itself
    feed_forward = 1 + 2 + 2
    head = 1
    low = 2 * ((attention + feed_forward + head) * VALUES + SHARES)
    assert encoder_bytes(precision) == 4 * WIDE * VALUES + low + ROWS_OF_NORMS + PROBABILITIES
