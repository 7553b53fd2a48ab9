"""The search for phrases that are no plain technical English; lint runs it on the tree."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.support.suite_runs import ROOT
from tools.commands import style
from tools.review.style import Phrase, hits, texts


def search(folder: Path, name: str, source: str) -> list[tuple[int, str, str]]:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(source, "utf-8")
    return [(hit.line, hit.phrase, hit.better) for hit in hits([path], folder)]


@pytest.mark.parametrize(
    ("name", "source", "expected"),
    [
        ("a.py", 'X = f"{1} Adam in eight bits"', (1, "in eight bits", "8-bit")),
        ("a.py", '"""One.\n\nThe call was\nseen to act.\n"""', (3, "was seen to", "takes effect, was observed to")),
        ("a.py", 'raise ValueError("mend it")', (1, "mend", "fix")),
        ("a.md", "One.\n\nIt did not come true.", (3, "did not come true", "occur")),
        ("a.py", "class CrewOfRanks:\n    ranks = 2", (1, "CrewOfRanks", "worker group")),
        ("a.py", "def made(blinding_of): pass", (1, "blinding_of", "sabotage")),
        ("a.py", "class Shown:\n    def told(self): pass", (1, "Shown", "a verb or noun: text, view, result")),
        ("a.py", "class Texts:\n    def _told(self): pass", (2, "_told", "a noun: report, text, lines")),
        ("a.py", "WIDTH = 1\nNOT_KEPT: int = 2", (2, "NOT_KEPT", "what it is: selection, copies, state")),
        ("shown.py", "", (1, "shown", "a verb or noun: text, view, result")),
        ("a.toml", 'reason = """\nTold by one a process."""', (2, "Told", "reported, named")),
    ],
)
def test_hits_of_a_planted_phrase_have_its_line(
    tmp_path: Path, name: str, source: str, expected: tuple[int, str, str]
) -> None:
    assert search(tmp_path, name, source)[0] == expected


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("a.py", '"""See `told` and `worker_group.make`; told: a line; they cannot tell, or tell apart."""'),
        ("a.py", "def make(told): return screw  # mend it"),
        ("a.py", '__all__ = ["told"]'),
        ("a.md", "```text\nmend it\n```\n[page](told.md)"),
        ("a.md", "<!-- some table: begin -->\nmend it\n<!-- some table: end -->"),
        ("a.py", "def walk(found):\n    seen = set()\n    return seen | found"),
        ("a.py", "def test_a_change_is_told(): pass"),
        ("held_out_scaling.py", ""),
        ("a.py", "from calls import shown"),
    ],
)
def test_hits_of_names_code_and_generated_blocks_are_none(tmp_path: Path, name: str, source: str) -> None:
    assert search(tmp_path, name, source) == []


def test_style_prints_hits_and_leaves_programs_of_findings_out(monkeypatch: pytest.MonkeyPatch) -> None:
    searched = {path.relative_to(ROOT).as_posix() for path in texts()}
    assert {"README.md", "conformance/cli/main.py", "results/report/text.py"} - searched == set()
    assert not any("/findings/" in name for name in searched)
    for phrases in ([Phrase("a.py", 3, "mend", "fix"), Phrase("b.md", 1, "told", "reported")], []):
        monkeypatch.setattr("tools.review.style.hits", lambda _, phrases=phrases: phrases)
        ended = CliRunner().invoke(style, standalone_mode=False)
        assert (ended.return_value, ended.output.splitlines()) == (1 if phrases else 0, list(map(str, phrases)))
    assert str(Phrase("a.py", 3, "mend", "fix")) == "a.py:3: 'mend': write 'fix'"
