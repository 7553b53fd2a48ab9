"""The comment that the GitHub action keeps on a pull request, with gh played by a small program."""

from __future__ import annotations

import json
import re
import sys

import pytest

from tests.support.runner import Runner
from tests.support.suite_runs import ROOT

GH = f"""#!{sys.executable}
import json, os, sys
words = sys.argv[2:]
with open(os.environ["FAKE_LOG"], "a") as log:
    log.write(json.dumps(words) + "\\n")
if os.environ.get("FAKE_DENIED") and "--method" in words:
    sys.exit("gh: Resource not accessible by integration (HTTP 403)")
path = os.environ["FAKE_COMMENTS"]
comments = json.load(open(path))
if "PATCH" in words:
    [comment] = [c for c in comments if words[-1].endswith(f"/repo/issues/comments/{{c['id']}}")]
    comment["body"] = json.load(sys.stdin)["body"]
elif "POST" in words:
    assert words[-1] == "repos/owner/repo/issues/7/comments", words
    bot = {{"user": {{"type": "Bot"}}, "author_association": "NONE"}}
    comments.append({{"id": len(comments), "body": json.load(sys.stdin)["body"], **bot}})
else:
    for at in range(0, len(comments), 2):
        print(json.dumps(comments[at : at + 2]), end="")
json.dump(comments, open(path, "w"))
"""
"""`gh api`: keeps comments in a file, and gives them in pages of two."""


@pytest.fixture
def pull(runner: Runner) -> Runner:
    """A runner with a comparison, and a pull request with five comments, one of them made up by a stranger."""
    runner.play("gh", GH)
    (runner.folder / "out").mkdir()
    (runner.folder / "out" / "comparison.md").write_text("**worse**\n")
    person = {"user": {"type": "User"}, "author_association": "NONE"}
    bodies = ["hello", "<!-- conformance: torch --> nothing is worse", "", "x <!-- conformance: torch -->", "end"]
    comments = [{"id": number, "body": body, **person} for number, body in enumerate(bodies)]
    (runner.folder / "comments.json").write_text(json.dumps(comments))
    runner.given = {"SUITE": str(ROOT), "PULL": "7", "NAME": "torch"}
    return runner


def bodies(runner: Runner) -> list[str]:
    return [comment["body"] for comment in json.loads((runner.folder / "comments.json").read_text())]


def test_a_comment_is_written_once_and_then_kept_up_to_date(pull: Runner) -> None:
    before = bodies(pull)
    pull.step("comment.sh")
    assert pull.status == 0, pull.log
    assert bodies(pull) == [*before, "<!-- conformance: torch -->\n**worse**\n"]
    (pull.folder / "out" / "comparison.md").write_text("**better**\n")
    pull.step("comment.sh")
    assert bodies(pull) == [*before, "<!-- conformance: torch -->\n**better**\n"]
    pull.step("comment.sh", NAME="tf")
    assert len(bodies(pull)) == 7


def test_a_long_comment_is_cut_to_what_github_takes(pull: Runner) -> None:
    (pull.folder / "out" / "comparison.md").write_text("a long line\n" * 10_000)
    pull.step("comment.sh")
    assert 60_000 < len(bodies(pull)[-1]) < 65_536
    assert "more lines are left out" in bodies(pull)[-1]


def test_a_token_that_may_not_write_is_a_notice(pull: Runner) -> None:
    before = bodies(pull)
    pull.step("comment.sh", FAKE_DENIED="1")
    assert pull.status == 0
    assert re.fullmatch(r"::notice::.*HTTP 403.*; the comparison stands in the job's summary\n", pull.log)
    assert bodies(pull) == before


@pytest.mark.parametrize("answer", ["", "[", "<html>", "[1]", "[{}]", '{"message": 1}'])
@pytest.mark.parametrize("status", ["0", "4"])
def test_whatever_gh_does_the_step_ends_well(pull: Runner, answer: str, status: str) -> None:
    pull.play("gh", '#!/bin/sh\ncat "$FAKE_COMMENTS"\nexit "$FAKE_STATUS"\n')
    (pull.folder / "comments.json").write_text(answer)
    pull.given["FAKE_STATUS"] = status
    pull.step("comment.sh")
    assert pull.status == 0, pull.log
    assert pull.log.count("\n") == 1


@pytest.mark.parametrize("name", ["a --> b", "x--y", "", "a\nb"])
def test_a_name_cannot_end_its_mark(pull: Runner, name: str) -> None:
    before = bodies(pull)
    pull.step("comment.sh", NAME=name)
    assert "::notice::" in pull.log
    assert bodies(pull) == before
