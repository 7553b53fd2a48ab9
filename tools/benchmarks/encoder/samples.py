"""The recorded figures of a sentence encoder, in float32 and loaded in 8 bits, and the table of the committed ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tools.benchmarks.kit import Origin, Store
from tools.docs.generate import table


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


def blocks() -> Mapping[str, str]:
    """The table of all committed figures, and when and where they were taken; it fails as `Store.all`."""
    figures = STORE.all()
    sizes = ("bytes", "÷ float32's", "of linear layers", "÷ float32's")
    rows = [
        (
            side.side,
            f"{side.model_bytes:,}",
            f"{side.model_bytes / each.sides[0].model_bytes:.3f}",
            f"{side.linear_bytes:,}",
            f"{side.linear_bytes / each.sides[0].linear_bytes:.3f}",
            f"{side.mean_cosine:.6f}",
            f"{side.least_cosine:.6f}",
            f"{side.retrieved:.3f}",
        )
        for each in figures
        for side in each.sides
    ]
    lines = [table(("loaded in", *sizes, "mean cosine", "least cosine", "retrieved"), rows, right=7), ""]
    for each in figures:
        lines.append(
            f"- {each.sentences} sentences; of {each.columns} columns that enter the body's linear layers"
            f" {each.outliers} are of outliers, in {each.with_outliers} of {each.layers} layers."
        )
        lines.append(f"- {each.label}: {each.started}; {each.machine}.")
    return {"encoder in 8 bits": "\n".join(lines)}
