"""README's generated blocks and the published schema are what their command makes now."""

from __future__ import annotations

from pathlib import Path

import pytest

from conformance.cli import main
from tools.commands import commands
from tools.docs import generate


def test_the_readme_and_the_schema_are_up_to_date() -> None:
    assert generate.stale(write=False) == [], "run `python -m tools pages`"


def test_a_stale_block_is_reported_and_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "README.md"
    page.write_text("Above.\n<!-- scores: begin -->\nold\n<!-- scores: end -->\nBelow.\n")
    monkeypatch.setattr(generate, "ROOT", tmp_path)
    assert main(["pages", "--check"], commands) == 1
    assert "\nold\n" in page.read_text()
    assert main(["pages"], commands) == 0
    assert page.read_text().startswith("Above.\n<!-- scores: begin -->\n")
    assert "\n  regression gate " in page.read_text()
    assert page.read_text().endswith("<!-- scores: end -->\nBelow.\n")
    assert main(["pages", "--check"], commands) == 0


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("<!-- scores: begin -->\n", "there is no <!-- scores: begin --> … <!-- scores: end -->"),
        ("<!-- score: begin --><!-- score: end -->", "nothing makes a block 'score'"),
    ],
)
def test_a_readme_that_cannot_be_made_is_refused_in_one_line(
    text: str, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "README.md"
    page.write_text(text)
    monkeypatch.setattr(generate, "ROOT", tmp_path)
    assert main(["pages"], commands) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert problem in line
    assert page.read_text() == text


def test_a_measured_block_is_placed_and_a_placeholder_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "README.md").touch()
    page = tmp_path / "docs" / "some.md"
    blank = generate.PLACEHOLDER.format("some")
    page.write_text(f"<!-- a: begin -->\nold\n<!-- a: end -->\n<!-- b: begin -->\n{blank}\n<!-- b: end -->\n")
    monkeypatch.setattr(generate, "ROOT", tmp_path)
    generate.place({"a": "new", "b": "new"})
    assert page.read_text() == f"<!-- a: begin -->\nnew\n<!-- a: end -->\n<!-- b: begin -->\n{blank}\n<!-- b: end -->\n"
    with pytest.raises(generate.PageError, match="no page has <!-- such a block: begin -->"):
        generate.place({"such a block": ""})


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generate, "SOURCES", {"no_such_package.tables:blocks": ("such a block",)})
    with pytest.raises(generate.PageError, match="no_such_package is not installed"):
        generate.texts(["such a block"])
