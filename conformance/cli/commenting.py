"""`conformance comment`: Markdown on a pull request, one comment for each name, by GitHub's own command `gh`."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from conformance.cli.options import PATH
from results.record.files import RecordError, one_line, read
from results.show.marks import cut

LIMIT = 60 * 1024
"""Bytes of a comment; GitHub refuses more than 65,536 characters."""

_TRUSTED = frozenset({"OWNER", "MEMBER", "COLLABORATOR"})
_PATIENCE_S = 60


@click.command()
@click.argument("file", type=PATH, metavar="FILE")
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
        done = place(repository, pull, name, read(file).decode("utf-8", "replace"))
    except CommentError as error:
        raise RecordError(
            file, f"could not be posted ({error})", "give gh a token that may comment on the pull request"
        ) from None
    click.echo(f"comment {name} {done} on pull request {pull}")
    return 0


class CommentError(Exception):
    """The comment could not be written; the message is one line that says why."""


def place(repository: str, pull: int, name: str, text: str) -> str:
    """Writes the comment of this name, or replaces the text of an existing one.

    Only a comment of a bot or of a user with write access is replaced, never one of a stranger.

    Args:
        repository: OWNER/NAME.
        pull: number of the pull request.
        name: without "--", which would end the HTML comment that marks it.
        text: Markdown, cut to `LIMIT`.

    Returns:
        "written" or "updated".

    Raises:
        CommentError: `gh` is not installed, or GitHub refuses, as for pull requests from forks.
    """
    mark = f"<!-- conformance: {name} -->"
    body = {"body": f"{mark}\n{cut(text.splitlines(), LIMIT)}"}
    comments = f"repos/{repository}/issues/{pull}/comments"
    for comment in _pages(_gh("--paginate", f"{comments}?per_page=100")):
        if _ours(comment, mark):
            _gh("--method", "PATCH", "--input", "-", f"repos/{repository}/issues/comments/{comment['id']}", sent=body)
            return "updated"
    _gh("--method", "POST", "--input", "-", comments, sent=body)
    return "written"


def _ours(comment: dict[str, Any], mark: str) -> bool:
    author = comment.get("user") or {}
    trusted = author.get("type") == "Bot" or comment.get("author_association") in _TRUSTED
    return trusted and str(comment.get("body")).startswith(mark)


def _pages(text: str) -> Iterator[dict[str, Any]]:
    """The items of consecutive JSON lists, which is how `gh` prints pages."""
    decoder, at = json.JSONDecoder(), 0
    while text := text[at:].lstrip():
        try:
            page, at = decoder.raw_decode(text)
        except ValueError:
            page = None
        if not isinstance(page, list) or not all(isinstance(item, dict) and "id" in item for item in page):
            raise CommentError("gh did not return a list of comments")
        yield from page


def _gh(*words: str, sent: object = None) -> str:
    command = shutil.which("gh")
    if command is None:
        raise CommentError("the command gh is not installed here")
    try:
        done = subprocess.run(
            [command, "api", *words],
            input=None if sent is None else json.dumps(sent),
            capture_output=True,
            text=True,
            encoding="utf-8",
            errors="replace",
            timeout=_PATIENCE_S,
            check=False,
            env={**os.environ, "GH_PROMPT_DISABLED": "1"},
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CommentError(f"gh gave no answer ({type(error).__name__})") from None
    if done.returncode:
        raise CommentError(one_line(done.stderr.strip() or f"gh ended with status {done.returncode}"))
    return done.stdout
