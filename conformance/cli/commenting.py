"""`conformance comment`: Markdown on a pull request."""

from __future__ import annotations

import re
from pathlib import Path

import click

from conformance.cli import comments
from results.record.files import RecordError, read


@click.command()
@click.argument("file", type=click.Path(path_type=Path), metavar="FILE")
@click.option("--pull", type=click.IntRange(min=1), required=True, metavar="N", help="Number of the pull request.")
@click.option(
    "--repository",
    envvar="GITHUB_REPOSITORY",
    required=True,
    metavar="OWNER/NAME",
    show_envvar=True,
    help="Repository of the pull request.",
)
@click.option(
    "--name", default="conformance", show_default=True, help="Name of the comment; comments with other names stay."
)
def comment(file: Path, pull: int, repository: str, name: str) -> int:
    """Write the Markdown in FILE as a comment, or replace the existing comment of this name.

    \b
    conformance compare OLD NEW --format markdown --output changes.md
    conformance comment changes.md --pull 12 --repository owner/name

    Uses `gh`, which takes its token from GH_TOKEN. Exit status: 0, written; 2, not written, with the reason in one
    line.
    """
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", repository, re.ASCII):
        raise click.BadParameter(f"got {repository!r}, want OWNER/NAME", param_hint="--repository")
    if not re.fullmatch(r"[\w.+-]+", name, re.ASCII) or "--" in name:
        raise click.BadParameter("want letters, digits and single . _ + - only", param_hint="--name")
    try:
        done = comments.place(repository, pull, name, read(file).decode("utf-8", "replace"))
    except comments.CommentError as error:
        raise RecordError(
            file, f"could not be posted ({error})", "give gh a token that may comment on the pull request"
        ) from None
    click.echo(f"comment {name} {done} on pull request {pull}")
    return 0
