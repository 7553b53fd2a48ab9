"""Records as the summary of a CI job: nothing is lost, nothing hostile does anything."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from conformance.cli import main
from results.record.outcomes import Outcome
from results.record.reading import Record, write
from results.show.digest import markdown
from results.show.marks import cut, source
from tests.records.test_table import FOUR
from tests.support.reporting import infected
from tests.support.small_record import BASE
from tests.support.suite_runs import refused

EVIL = "<img src=x onerror=alert(1)> </details> | `a` **b** [c](javascript:x) @everyone\n# d\n::error::e \x1b[2J \u202e"


def of(outcome: Outcome, **changes: Any) -> Record:
    """A record with one verdict."""
    verdict = replace(BASE.verdicts[0], outcome=outcome, **changes)
    return replace(BASE, verdicts=(verdict,), observations=(), measurements=())


def hostile(text: str) -> Record:
    """A record that says `text` wherever it can say anything."""
    one = infected(text)
    verdicts = tuple(replace(each, seed=2**1000, duration_s=1e308) for each in one.verdicts)
    return replace(one, started=BASE.started, finished=BASE.finished, verdicts=verdicts, observations=())


# ---------------------------------------------------------------- Markdown


TABLE = {"table", "thead", "tbody", "tr", "th", "td"}
ELEMENTS = TABLE | {"h2", "h3", "p", "ul", "li", "strong", "code", "br", "details", "summary"}


def rendered(text: str) -> str:
    """The Markdown as HTML, raw HTML in it left as it is."""
    return str(MarkdownIt("commonmark", {"html": True}).enable("table").render(text))


def test_the_digest_counts_every_outcome_and_tells_what_to_do() -> None:
    record = of(Outcome.FAIL, message="the scale is inf", repro="python -m pytest 'a b'")
    text = markdown([record, FOUR[0]])
    assert text.startswith("## Conformance: 1 of 6 clauses need action (1 of 131 tests)\n")
    assert "| clauses | torch 2.13.0 eager cpu | torch 2.13.0+cpu eager cpu |\n" in text
    assert "| scaling | **1 fail** (1 clause, 1 test) | 1 known (1 clause, 26 tests) |\n" in text
    assert "| **total** | **1 fail** (1 clause, 1 test) | 5 known (5 clauses, 130 tests) |\n" in text
    assert "| tests | **1 fail** (1 test) | 105 pass · 10 known · 15 unsupported (130 tests) |\n" in text
    (line,) = (line for line in text.splitlines() if line.startswith("- **fail**"))
    for part in ("`scaling.stays-finite/test_a`", "the scale is inf", "`python -m pytest 'a b'`"):
        assert part in line
    assert "<summary>torch 2.13.0+cpu eager cpu: 10 known failures, findings: 1</summary>" in text


def test_the_digest_says_when_there_is_nothing_to_do() -> None:
    assert markdown(FOUR[:1]).startswith("## Conformance: no action needed in 5 clauses (130 tests)\n")
    assert "Needs action" not in markdown(FOUR[:1])
    unfinished = replace(FOUR[0], status="interrupted")
    assert markdown([unfinished]).startswith("## Conformance: 1 of 1 runs did not finish\n")


@pytest.mark.parametrize("text", [EVIL, "<b>", "|" * 50, "`" * 50, "\\", "--- \n\n---", "</summary></details><script>"])
def test_hostile_text_only_shows_itself(text: str) -> None:
    html = rendered(markdown([hostile(text)]))
    tags = set(re.findall(r"</?([a-zA-Z0-9]+)", html))
    assert tags == ELEMENTS
    assert html.count("<details>") == html.count("</details>") == 1
    assert html.count("<table>") == 1
    assert {row.count("<td") + row.count("<th") for row in html.split("<tr>")[1:]} == {2}
    assert "@everyone" not in re.sub(r"<code>.*?</code>", "", html), "nobody is called, for code calls nobody"
    assert "\x1b" not in html


def test_a_long_digest_is_cut_and_says_so() -> None:
    many = replace(
        BASE,
        verdicts=tuple(
            replace(
                BASE.verdicts[0], test=f"{BASE.verdicts[0].clause}/{i:04}", outcome=Outcome.ERROR, message="é" * 400
            )
            for i in range(2000)
        ),
    )
    text = markdown([many, FOUR[0]])
    assert len(text.encode()) < 300 * 1024
    assert re.search(r"\nCut at 256 KiB: \d+ more lines are left out\.\n$", text)
    assert "/0000`" in text
    assert "`1999`" not in text


@given(st.lists(st.sampled_from(["<details><summary>x</summary>", "</details>", "y" * 9, ""])), st.integers(0, 200))
def test_what_is_cut_leaves_no_fold_open(parts: list[str], limit: int) -> None:
    opened = 0
    lines = []
    for part in parts:
        if part != "</details>" or opened:
            opened += part.startswith("<details>") - (part == "</details>")
            lines.append(part)
    lines += ["</details>"] * opened
    text = cut(lines, limit)
    assert text.count("<details>") == text.count("</details>")
    whole = sum(len(line) + 1 for line in lines) <= limit
    assert ("left out" not in text) is whole
    if whole:
        assert text == "".join(f"{line}\n" for line in lines) or not lines


# ---------------------------------------------------------------- the command


def test_the_command_writes_a_file_or_prints(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "torch.json"
    write(path, BASE)
    assert main(["table", str(path), "--format", "markdown", "--output", str(tmp_path / "out.md")]) == 0
    assert (tmp_path / "out.md").read_text("utf-8") == markdown([BASE])
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["out.md", "torch.json"]
    capsys.readouterr()
    assert main(["table", str(path), "--format", "markdown"]) == 0
    assert capsys.readouterr().out == markdown([BASE])


def test_what_cannot_be_exported_ends_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = tmp_path / "good.json"
    write(good, BASE)
    (tmp_path / "old.json").write_text("kept")
    for words, message in (
        (
            (tmp_path / "none.json", "--format", "markdown", "--output", tmp_path / "old.json"),
            "none.json: cannot be read",
        ),
        ((good, "--format", "html"), "'html' is not one of"),
        ((good, "--format", "markdown", "--output", tmp_path / "no" / "x.md"), "x.md: cannot be written"),
    ):
        assert message in refused(capsys, "table", *map(str, words))
    assert (tmp_path / "old.json").read_text() == "kept"


@pytest.mark.parametrize("login", ["name:hunter2@", "name@", ":@"])
def test_an_address_with_a_password_is_no_link(login: str) -> None:
    assert source("https://example.org/@a") == " ([source](https://example.org/@a))"
    assert not re.search(r"\]\(|https?://", source(f"https://{login}example.org/a"))
