"""The page's block: a table of the committed figures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from tools.benchmarks.encoder.samples import STORE, EncoderFigures


def blocks() -> Mapping[str, str]:
    """The table of all committed figures, and when and where they were taken.

    Raises:
        ValueError: a file holds none.
        OSError: it cannot be read.
    """
    return {"encoder in 8 bits": "\n".join(_lines(STORE.all()))}


def _lines(figures: Sequence[EncoderFigures]) -> Iterator[str]:
    sizes = "bytes | ÷ float32's | of linear layers | ÷ float32's"
    yield f"| loaded in | {sizes} | mean cosine | least cosine | retrieved |"
    yield "|---|--:|--:|--:|--:|--:|--:|--:|"
    for each in figures:
        whole = each.sides[0]
        for side in each.sides:
            cells = (
                side.side,
                f"{side.model_bytes:,}",
                f"{side.model_bytes / whole.model_bytes:.3f}",
                f"{side.linear_bytes:,}",
                f"{side.linear_bytes / whole.linear_bytes:.3f}",
                f"{side.mean_cosine:.6f}",
                f"{side.least_cosine:.6f}",
                f"{side.retrieved:.3f}",
            )
            yield f"| {' | '.join(cells)} |"
    yield ""
    for each in figures:
        yield (
            f"- {each.sentences} sentences; of {each.columns} columns that enter the body's linear layers"
            f" {each.outliers} are of outliers, in {each.with_outliers} of {each.layers} layers."
        )
        yield f"- {each.label}: {each.started}; {each.machine}."
