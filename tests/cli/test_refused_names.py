"""Names that the commands do not know, and what they say of those that they know and have nothing of."""

from __future__ import annotations

import pytest

from conformance.cli import main


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """The one line in which a command refuses these words."""
    assert main(words) == 2
    said = capsys.readouterr()
    assert not said.out
    assert len(said.err.splitlines()) == 1
    return said.err


@pytest.mark.parametrize("words", [("findings", "reference"), ("findings", "reference", "--run")])
def test_a_framework_without_findings_has_none(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 0
    assert capsys.readouterr().out == "reference has no findings\n"


def test_no_issue_without_a_known_failure(capsys: pytest.CaptureFixture[str]) -> None:
    text = "no known failure of reference in scaling.automaton; it has no known failure in any clause; `"
    assert text in refused(capsys, "issue", "scaling.automaton", "--framework", "reference")
    said = refused(capsys, "issue", "formats.decode", "--framework", "torch")
    assert "no known failure of torch in formats.decode; it has some in: a" in said
