"""Options that several commands have."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import click


class FiniteRange(click.FloatRange):
    """A range of numbers without NaN and infinity."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"got {value}, want a finite number", param, ctx)
        return number


FORMAT = click.option(
    "--format",
    "style",
    type=click.Choice(["table", "markdown", "json"]),
    default="table",
    show_default=True,
    help="Output format.",
)
OUTPUT = click.option(
    "--output", type=click.Path(path_type=Path), metavar="FILE", help="Write to FILE instead of printing."
)
