"""The generated parts of the README are what their command makes now."""

from __future__ import annotations

from pathlib import Path

import pytest

from conformance.expectations.entries import load_known
from conformance.pages import findings, generate

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("page", generate.PAGES)
def test_the_pages_are_up_to_date(page: str) -> None:
    text, made = (ROOT / page).read_text("utf-8"), generate.blocks()
    wanted = {name: made[name] for name in generate.PAGES[page]}
    assert generate.placed(text, wanted) == text, "run `python -m conformance.pages.generate`"


def test_a_file_without_markers_is_refused_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "README.md"
    path.write_text("nothing to fill\n")
    assert generate.main([str(path)]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert path.read_text() == "nothing to fill\n"


def test_every_finding_is_one_item_and_every_clause_is_named() -> None:
    known = load_known()
    listed = findings.blocks(known)["findings"]
    items = [line for line in listed.splitlines() if line.startswith("- ")]
    assert len(items) == len(known.findings)
    assert all(f"`{entry.clause}`" in listed for entry in known.expectations)


def test_every_workaround_is_a_row() -> None:
    known = load_known()
    rows = findings.blocks(known)["workarounds"].splitlines()[2:]
    assert len(rows) == len(known.workarounds)
    assert all(each.does in "\n".join(rows) for each in known.workarounds)
