"""The generated parts of the README are what their command makes now."""

from __future__ import annotations

from pathlib import Path

import pytest

from conformance import readme

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("page", readme.PAGES)
def test_the_pages_are_up_to_date(page: str) -> None:
    text, made = (ROOT / page).read_text("utf-8"), readme.blocks()
    wanted = {name: made[name] for name in readme.PAGES[page]}
    assert readme.placed(text, wanted) == text, "run `python -m conformance.readme`"


def test_a_file_without_markers_is_refused_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "README.md"
    path.write_text("nothing to fill\n")
    assert readme.main([str(path)]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert path.read_text() == "nothing to fill\n"


def test_one_item_stands_for_all_entries_of_one_reason() -> None:
    listed = readme.known_failures(readme.load_expectations())
    items = [line for line in listed.splitlines() if line.startswith("- ")]
    assert len(items) == len(set(items))
    assert all("](http" in item for item in items)


def test_every_expected_clause_is_listed() -> None:
    expectations = readme.load_expectations()
    listed = readme.known_failures(expectations)
    assert all(f"`{entry.clause}`" in listed for entry in expectations)
