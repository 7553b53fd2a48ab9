"""Options that several commands have."""

from __future__ import annotations

from pathlib import Path

import click

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
