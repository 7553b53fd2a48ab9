"""The recorded figures: a sentence encoder in float32 and loaded in 8 bits."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tools.benchmarks.kit.samples import Origin, Store


@dataclass(frozen=True)
class LoadedEncoder:
    """Results of one way of loading.

    Attributes:
        side: how it was loaded.
        model_bytes: of all arrays of the encoder.
        linear_bytes: of its linear layers alone.
        mean_cosine, least_cosine: between a sentence's embedding and that in float32.
        retrieved: share of sentences whose nearest one of the other voice has the same meaning.
    """

    side: str
    model_bytes: int
    linear_bytes: int
    mean_cosine: float
    least_cosine: float
    retrieved: float


@dataclass(frozen=True)
class EncoderFigures(Origin):
    """The figures of one framework.

    Attributes:
        sentences: how many were embedded.
        layers, with_outliers: linear layers, and those with an outlier in what comes in, in float32.
        columns, outliers: of what comes in to all of them, and those of outliers.
    """

    sentences: int
    layers: int
    with_outliers: int
    columns: int
    outliers: int
    sides: tuple[LoadedEncoder, ...]


STORE = Store(Path(__file__).parent / "samples", EncoderFigures, "sides")
