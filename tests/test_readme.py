"""The generated parts of README and docs are what their command makes now."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from conformance.cli import developing, main
from conformance.expectations.entries import load_known
from conformance.pages import findings, generate
from conformance.spec.clauses import load_clauses

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("page", [page.relative_to(ROOT).as_posix() for page in generate.pages()])
def test_the_pages_are_up_to_date(page: str) -> None:
    path, text = ROOT / page, (ROOT / page).read_text("utf-8")
    blocks = generate.texts([name for name in generate.markers(path) if name not in generate.MEASURED])
    assert generate.placed(path, text, blocks) == text, "run `conformance self pages`"
    if page in generate.WHOLE:
        assert generate.resolve(generate.WHOLE[page])() == text, "run `conformance self pages`"


def test_every_block_has_one_place() -> None:
    places = Counter(name for page in generate.pages() for name in generate.markers(page))
    names = {name for names in generate.SOURCES.values() for name in names} | generate.MEASURED
    assert places == Counter(names)


@pytest.mark.parametrize("source", generate.SOURCES)
def test_a_source_makes_the_blocks_that_it_is_listed_with(source: str) -> None:
    assert set(generate.resolve(source)()) == set(generate.SOURCES[source])


def test_a_stale_page_is_told_and_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "docs").mkdir()
    page = tmp_path / "docs" / "some.md"
    page.write_text("Above.\n<!-- clauses: begin -->\nold\n<!-- clauses: end -->\nBelow.\n")
    (tmp_path / "README.md").write_text("Nothing is generated here.\n")
    monkeypatch.setattr(generate, "ROOT", tmp_path)
    monkeypatch.setattr(developing, "ROOT", tmp_path)
    assert main(["self", "pages", "--check"]) == 1
    assert "\nold\n" in page.read_text()
    assert main(["self", "pages"]) == 0
    assert page.read_text().startswith("Above.\n<!-- clauses: begin -->\n")
    assert f"\n{len(load_clauses())} clauses (" in page.read_text()
    assert page.read_text().endswith("<!-- clauses: end -->\nBelow.\n")
    assert main(["self", "pages", "--check"]) == 0


def test_each_page_is_named_before_it_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[str] = []
    pages = [ROOT / "docs" / name for name in ("clauses.md", "faults.md")]
    resolve = generate.resolve
    monkeypatch.setattr(generate, "resolve", lambda source: (steps.append(source), resolve(source))[1])
    generate.stale(pages, write=False, report=lambda page: steps.append(page.name))
    wholes = [generate.WHOLE[page.relative_to(ROOT).as_posix()] for page in pages]
    assert [step for step in steps if step in (*wholes, *(page.name for page in pages))] == [
        step for page, whole in zip(pages, wholes, strict=True) for step in (page.name, whole)
    ]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("nothing to fill\n", "has no generated part"),
        ("<!-- clauses: begin -->\n", "there is no <!-- clauses: begin --> … <!-- clauses: end -->"),
        ("<!-- clause: begin --><!-- clause: end -->", "nothing makes a block 'clause'"),
    ],
)
def test_a_page_that_cannot_be_made_is_refused_in_one_line(
    text: str, problem: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "README.md"
    page.write_text(text)
    assert main(["self", "pages", str(page)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert problem in line
    assert page.read_text() == text


def test_a_block_without_a_place_is_refused() -> None:
    with pytest.raises(generate.PageError, match="no page has <!-- such a block: begin -->"):
        generate.place({"such a block": ""})


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(generate.SOURCES, "no_such_package.tables:blocks", ("such a block",))
    with pytest.raises(generate.PageError, match="no_such_package is missing: run `tox -e dev"):
        generate.texts(["such a block"])


def test_every_finding_is_one_item_and_every_clause_is_named() -> None:
    known = load_known()
    listed = findings.blocks(known)["findings"]
    items = [line for line in listed.splitlines() if line.startswith("- ")]
    assert len(items) == len(known.findings)
    assert all(f"`{entry.clause}`" in listed for entry in known.expectations)


def test_a_finding_by_which_no_clause_fails_says_so() -> None:
    known = load_known()
    blocks = findings.blocks(known)
    failing = {(entry.framework, entry.finding.id) for entry in known.expectations}
    without = {(each.framework, each.id) for each in known.findings} - failing
    said = {line for line in blocks["findings"].splitlines() if "No clause fails: [generated programs]" in line}
    assert len(said) == len(without) > 0
    assert all(any(f"**{framework}** [`{name}`]" in line for line in said) for framework, name in without)
    row = next(
        line for line in blocks["finding counts"].splitlines() if line.startswith("| `conformance self programs`")
    )
    assert sum(map(int, re.findall(r"\| (\d+)", row))) == len(without)


def test_every_workaround_is_a_row() -> None:
    known = load_known()
    rows = findings.blocks(known)["workarounds"].splitlines()[2:]
    assert len(rows) == len(known.workarounds)
    assert all(each.does in "\n".join(rows) for each in known.workarounds)
