"""Measure the effect of 8-bit loading on a real sentence encoder, all-MiniLM-L6-v2.

    python -m tools encoder torch    takes the figures, keeps them, and fills the page from all kept ones
    python -m tools encoder          fills the page only

It installs nothing. Exit status 0; 1 if outliers in floating point bring the embeddings no nearer to those of float32;
2 with one line if a library or the encoder is not installed, or figures cannot be read.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from tools.benchmarks import kit
from tools.benchmarks.encoder import samples


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures if PyTorch is named, fills the page, and returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tools encoder", description="Measure the effect of 8-bit loading on a sentence encoder."
    )
    parser.add_argument(
        "framework", nargs="?", choices=("torch",), help="measure this framework; without it, only fill the page"
    )
    return kit.run(parser.parse_args(arguments), _measured, "encoder in 8 bits")


def _measured(_: argparse.Namespace) -> Sequence[str]:
    from tools.benchmarks.encoder import measuring

    figures = measuring.encoded()
    samples.STORE.save(figures, figures.framework)
    return problems(figures)


def problems(figures: samples.EncoderFigures) -> list[str]:
    """A line if it is farther from float32 with outliers in floating point than with codes for all."""
    _, with_outliers, without = figures.sides
    if with_outliers.mean_cosine >= without.mean_cosine:
        return []
    return [f"{with_outliers.side}: {with_outliers.mean_cosine}, {without.side}: {without.mean_cosine}"]


if __name__ == "__main__":
    sys.exit(main())
